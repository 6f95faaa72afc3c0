//! A run is followed event by event on a real pseudo-terminal.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::ColorChoice;
use serde_json::Value;
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::{Vote, VoteRefusal};
use sympozium_ipc::run_api::{BridgePhase, Decision, Usage};
use sympozium_testkit::terminal::Terminal as Screen;
use sympozium_testkit::wait_until;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::arguments::RunFormat;
use super::follow::{FollowEnd, FollowOptions, RunControl, StopNotice, Streams, follow};
use super::prompt::Terminal;
use super::screen::TerminalEnv;
use super::signals::Signals;
use sympozium_runs::ApprovalMode;
use sympozium_runs::EventLog;
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;
use sympozium_runs::TargetFlags;
use sympozium_runs::VoteResult;
use sympozium_runs::{Event, Question};

const DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
const PROMPT: &str = "[s]how again";

/// The votes: question, vote, reason.
type Decisions = Vec<(String, Vote, Option<String>)>;

/// A fake of the run.
#[derive(Debug, Default)]
struct FakeRun {
    decisions: Mutex<Decisions>,
    events: EventLog,
    /// Completes the vote on `slow`.
    arrives: Notify,
    /// Completes `lost`.
    lost: Notify,
}

impl RunControl for FakeRun {
    async fn vote(
        &self,
        approval: &str,
        action: &Digest,
        vote: Vote,
        reason: Option<&str>,
    ) -> anyhow::Result<VoteResult> {
        assert_eq!(*action, Digest::new(DIGEST));
        let decision = (approval.to_owned(), vote, reason.map(str::to_owned));
        self.decisions.lock().unwrap().push(decision);
        if approval == "slow" {
            self.arrives.notified().await;
            return Ok(VoteResult::Recorded);
        }
        if approval == "not-theirs" {
            return Ok(VoteResult::Refused(VoteRefusal::Author.to_string()));
        }
        self.events.emit(answered(approval, vote != Vote::Deny));
        Ok(VoteResult::Decided)
    }

    fn stop(&self, _: StopLevel) -> StopNotice {
        StopNotice { text: "ending", detaches: false }
    }
}

fn answered(approval: &str, yes: bool) -> Event {
    let decision = if yes { Decision::Approved } else { Decision::Denied };
    Event::Answered { approval: approval.to_owned(), decision: Some(decision), by: Some("ada".to_owned()) }
}

/// A run that is being followed.
struct Harness {
    fake: Arc<FakeRun>,
    screen: Screen,
    stdout: Option<File>,
    outcome: JoinHandle<FollowEnd>,
}

/// Options that differ from the default.
struct Options {
    output: RunFormat,
    approve: ApprovalMode,
    color: ColorChoice,
    /// Whether stderr is the terminal.
    on_screen: bool,
    /// Whether there is a terminal to type on.
    with_person: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            output: RunFormat::Text,
            approve: ApprovalMode::Ask,
            color: ColorChoice::Auto,
            on_screen: true,
            with_person: true,
        }
    }
}

impl Harness {
    fn new() -> Self {
        Self::with(Options::default()).0
    }

    /// Also returns the file that stderr is, if it is not the terminal.
    fn with(setting: Options) -> (Self, Option<File>) {
        let screen = Screen::new(40, 80).unwrap();
        let (stdout, to_stdout) = rustix::pipe::pipe().unwrap();
        let (stderr, to_stderr): (Option<OwnedFd>, OwnedFd) = match setting.on_screen {
            true => (None, screen.open().unwrap()),
            false => {
                let (read, write) = rustix::pipe::pipe().unwrap();
                (Some(read), write)
            }
        };
        let fake = Arc::new(FakeRun::default());
        let terminal = setting.with_person.then(|| screen.open_nonblocking().unwrap());
        let options = FollowOptions {
            target: TargetFlags::local(),
            output: setting.output,
            approve: setting.approve,
            color: setting.color,
            environment: TerminalEnv { no_color: false, is_dumb: false },
        };
        let control = Arc::clone(&fake);
        let outcome = tokio::spawn(async move {
            let streams = Streams {
                stdout: to_stdout,
                stderr: to_stderr,
                terminal: terminal.map(|it| Terminal::new(it).unwrap()),
            };
            let mut signals = Signals::none();
            let followed = follow(
                &control.events,
                control.events.reader(),
                &*control,
                options,
                streams,
                &mut signals,
                control.lost.notified(),
            );
            followed.await.unwrap()
        });
        let followed = Self { fake, screen, stdout: Some(stdout.into()), outcome };
        followed.emit(Event::Planned {
            run: "run-1".to_owned(),
            uid: "uid".to_owned(),
            agent: "assistant".to_owned(),
            model: "scripted/x".to_owned(),
            skills: Vec::new(),
            origins: Vec::new(),
            plan: Digest::new(DIGEST),
            directory: Some("/nowhere".into()),
            workspace: None,
        });
        (followed, stderr.map(File::from))
    }

    fn emit(&self, event: Event) {
        self.fake.events.emit(event);
    }

    fn warn(&self, text: &str) {
        self.emit(Event::Warning { text: text.to_owned() });
    }

    fn ask(&self, approval: &str) {
        self.emit(Event::Asked {
            question: Question {
                approval: approval.to_owned(),
                tool: "execute_command".to_owned(),
                pack: None,
                action: Digest::new(DIGEST),
                shown: format!("tool: execute_command\nshell: rm {approval}"),
                deadline_ms: u64::MAX,
                run_scope: approval != "once-only",
            },
        });
    }

    /// Waits until the prompt was shown this many times.
    fn wait_for_prompts(&self, count: usize) {
        let raw = || self.screen.raw().matches(PROMPT).count();
        let came = wait_until(Duration::from_secs(60), || raw() >= count);
        assert!(came, "{}", self.screen.screen());
    }

    fn decisions(&self) -> Decisions {
        self.fake.decisions.lock().unwrap().clone()
    }

    /// Ends the run, and returns the contents of stdout.
    async fn end(&mut self) -> String {
        self.emit(Event::Ended {
            outcome: RunEnd::Succeeded { answer: "All \u{1b}[31mis well.".to_owned() },
            usage: Usage::default(),
            leftovers: Vec::new(),
        });
        let outcome = (&mut self.outcome).await.unwrap();
        assert!(matches!(outcome, FollowEnd::RunEnded(RunEnd::Succeeded { .. })));
        let mut text = String::new();
        if let Some(mut stdout) = self.stdout.take() {
            stdout.read_to_string(&mut text).unwrap();
        }
        text
    }
}

fn decision(approval: &str, says: Vote, reason: Option<&str>) -> (String, Vote, Option<String>) {
    (approval.to_owned(), says, reason.map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_says_yes_once_or_for_the_run_or_no_with_a_reason() {
    let mut run = Harness::new();
    for (number, (approval, typed)) in
        [("ask-1", "y\n"), ("ask-2", "a\n"), ("ask-3", "n too dangerous\n"), ("ask-4", "NO\n")].into_iter().enumerate()
    {
        run.ask(approval);
        run.wait_for_prompts(number + 1);
        run.screen.type_in(typed).unwrap();
        run.screen.wait_for(&format!("{approval} "));
    }
    assert_eq!(run.end().await, "All \\u{1b}[31mis well.\n");
    assert_eq!(
        run.decisions(),
        [
            decision("ask-1", Vote::Approve, None),
            decision("ask-2", Vote::ApproveForRun, None),
            decision("ask-3", Vote::Deny, Some("too dangerous")),
            decision("ask-4", Vote::Deny, None),
        ]
    );
    let screen = run.screen.screen();
    assert!(
        screen.contains(
            "── ask-1: may the agent do exactly this?\n│ tool: execute_command\n│ shell: rm ask-1\n── no answer in "
        ),
        "{screen}"
    );
    assert!(screen.contains("ask-3 denied by ada"), "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_the_question_was_shown_does_not_count() {
    let mut run = Harness::new();
    run.screen.type_in("y\ny\nyes").unwrap();
    run.screen.wait_for_raw("yes");
    run.ask("ask-1");
    run.wait_for_prompts(1);
    run.screen.type_in("n\n").unwrap();
    run.screen.wait_for("ask-1 denied by ada");
    // Two answers at once: the second is for a question that was not shown yet.
    run.ask("ask-2");
    run.wait_for_prompts(2);
    run.screen.type_in("n\ny\n").unwrap();
    run.screen.wait_for("ask-2 denied by ada");
    run.ask("ask-3");
    run.wait_for_prompts(3);
    run.screen.type_in("n\n").unwrap();
    run.screen.wait_for("ask-3 denied by ada");
    run.end().await;
    let all = ["ask-1", "ask-2", "ask-3"].map(|it| decision(it, Vote::Deny, None));
    assert_eq!(run.decisions(), all);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_is_asked_again() {
    let mut run = Harness::new();
    run.ask("once-only");
    run.wait_for_prompts(1);
    assert!(!run.screen.screen().contains("[a]llow"));
    for (number, typed) in ["\n", "a\n", "yy\n", "y please\n", "s\n"].into_iter().enumerate() {
        run.screen.type_in(typed).unwrap();
        run.wait_for_prompts(number + 2);
    }
    assert_eq!(run.screen.raw().matches("shell: rm once-only").count(), 2);
    assert_eq!(run.decisions(), []);
    run.screen.type_in("y\n").unwrap();
    run.screen.wait_for("once-only approved by ada");
    run.end().await;
    assert_eq!(run.decisions(), [decision("once-only", Vote::Approve, None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_goes_on_while_an_answer_is_on_its_way() {
    let mut run = Harness::new();
    run.ask("slow");
    run.wait_for_prompts(1);
    run.ask("ask-2");
    run.screen.type_in("y\n").unwrap();
    assert!(wait_until(Duration::from_secs(60), || run.decisions().len() == 1));
    run.warn("the disk is nearly full");
    run.screen.wait_for("warning: the disk is nearly full");
    // The next question waits for the effect of the first vote.
    assert_eq!(run.screen.raw().matches(PROMPT).count(), 1);
    run.fake.arrives.notify_one();
    run.screen.wait_for("recorded; the run's plan decides whether it is enough");
    run.wait_for_prompts(2);
    run.screen.type_in("n\n").unwrap();
    run.screen.wait_for("ask-2 denied by ada");
    run.end().await;
    assert_eq!(run.decisions(), [decision("slow", Vote::Approve, None), decision("ask-2", Vote::Deny, None),]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_followed_any_more_leaves_a_whole_screen() {
    let run = Harness::new();
    run.ask("ask-1");
    run.wait_for_prompts(1);
    // Held back until the user answers, which does not happen.
    run.warn("the disk is nearly full");
    run.fake.lost.notify_one();
    assert_eq!(run.outcome.await.unwrap(), FollowEnd::Lost);
    run.screen.wait_for("the run is not followed any more");
    run.screen.wait_for("warning: the disk is nearly full");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_input_leaves_a_question_to_others() {
    let mut run = Harness::new();
    run.ask("ask-1");
    run.wait_for_prompts(1);
    run.screen.type_in("\u{4}").unwrap();
    run.screen.wait_for("hint: questions are pending, to be answered elsewhere");
    run.emit(answered("ask-1", true));
    run.screen.wait_for("ask-1 approved by ada");
    // The next question is asked here again.
    run.ask("ask-2");
    run.wait_for_prompts(2);
    run.screen.type_in("y\n").unwrap();
    run.screen.wait_for("ask-2 approved by ada");
    run.end().await;
    assert_eq!(run.decisions(), [decision("ask-2", Vote::Approve, None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_answered_elsewhere_goes_away() {
    let mut run = Harness::new();
    run.ask("ask-1");
    run.ask("ask-2");
    run.wait_for_prompts(1);
    run.warn("held while somebody types");
    run.screen.type_in("n").unwrap();
    run.emit(answered("ask-1", true));
    // The next question is asked, and input for the first does not count for it.
    run.wait_for_prompts(2);
    run.screen.type_in("\n").unwrap();
    run.wait_for_prompts(3);
    run.emit(Event::Answered { approval: "ask-2".to_owned(), decision: Some(Decision::Expired), by: None });
    run.end().await;
    run.screen.wait_for("sympozium audit verify run-1");
    assert_eq!(run.decisions(), []);
    let screen = run.screen.screen();
    let places = [
        "── ask-1",
        "no answer is needed here any more",
        "warning: held while somebody types",
        "ask-1 approved by ada",
        "── ask-2",
        "ask-2 expired",
        "succeeded after",
    ]
    .map(|it| screen.find(it));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_count_is_said_to_be_none() {
    let mut run = Harness::new();
    run.ask("not-theirs");
    run.wait_for_prompts(1);
    run.screen.type_in("y\n").unwrap();
    run.screen.wait_for("that does not count: the policy of this run");
    run.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_on_the_terminal_although_everything_else_is_in_a_file() {
    let (mut run, stderr) = Harness::with(Options { on_screen: false, ..Options::default() });
    run.ask("ask-1");
    run.wait_for_prompts(1);
    run.screen.type_in("y\n").unwrap();
    let decided = || !run.decisions().is_empty();
    assert!(wait_until(Duration::from_secs(60), decided));
    run.end().await;
    let mut text = String::new();
    stderr.unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("ask-1: may execute_command do this?\n"), "{text}");
    assert!(text.contains("ask-1 approved by ada\n"), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains(PROMPT), "{text}");
    assert!(!run.screen.screen().contains("succeeded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_types_it_is_said_once_that_questions_wait() {
    let (mut run, _) = Harness::with(Options { with_person: false, ..Options::default() });
    run.ask("ask-1");
    run.ask("ask-2");
    run.screen.wait_for("ask-2: may execute_command");
    run.end().await;
    run.screen.wait_for("sympozium audit verify run-1");
    let screen = run.screen.screen();
    assert_eq!(screen.matches("hint: questions are pending").count(), 1, "{screen}");
    assert!(!screen.contains(PROMPT), "{screen}");
    assert_eq!(run.decisions(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_answers_by_itself_says_so_and_asks_nobody() {
    let (mut run, _) = Harness::with(Options { approve: ApprovalMode::All, ..Options::default() });
    run.ask("ask-1");
    run.screen.wait_for("ask-1: --approve all approves it");
    run.end().await;
    run.screen.wait_for("sympozium audit verify run-1");
    assert!(!run.screen.raw().contains(PROMPT));
    assert_eq!(run.decisions(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_changes_shows_what_is_going_on_and_leaves_nothing_behind() {
    let mut run = Harness::new();
    run.emit(Event::Phase { phase: BridgePhase::Working });
    run.emit(Event::Progress { text: format!("thinking {}", "日本語".repeat(40)) });
    run.screen.wait_for("0 s  thinking 日本語");
    run.screen.wait_for("1 s  thinking 日本語");
    run.warn("something happened");
    run.end().await;
    run.screen.wait_for("sympozium audit verify run-1");
    let screen = run.screen.screen();
    assert!(!screen.contains("thinking"), "{screen}");
    // It never exceeded one row.
    assert_eq!(screen.lines().position(|it| it.starts_with("succeeded")), Some(4), "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_colours_there_is_no_escape_and_no_line_that_changes() {
    let (mut run, _) = Harness::with(Options { color: ColorChoice::Never, ..Options::default() });
    run.emit(Event::Progress { text: "thinking".to_owned() });
    run.ask("ask-1");
    run.wait_for_prompts(1);
    run.screen.type_in("y\n").unwrap();
    run.screen.wait_for("ask-1 approved by ada");
    run.end().await;
    run.screen.wait_for("sympozium audit verify run-1");
    let raw = run.screen.raw();
    assert!(!raw.contains('\u{1b}') && !raw.contains("thinking"), "{raw:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_gone_ends_nothing() {
    let mut run = Harness::new();
    run.ask("ask-1");
    run.wait_for_prompts(1);
    run.screen = Screen::new(1, 1).unwrap();
    for number in 0..10 {
        run.warn(&format!("{number}"));
    }
    assert_eq!(run.end().await, "All \\u{1b}[31mis well.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_get_each_event_as_a_line_or_one_object_at_the_end() {
    let output = |output| Options { output, ..Options::default() };
    let (mut run, _) = Harness::with(output(RunFormat::Jsonl));
    run.warn("a\u{1b}[31m");
    let text = run.end().await;
    let lines: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let kinds: Vec<_> = lines.iter().map(|it| it["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["planned", "warning", "ended"]);
    assert_eq!(lines[1]["text"], "a\u{1b}[31m");
    assert!(!text.contains('\u{1b}'));
    run.screen.wait_for("warning: a");
    assert!(!run.screen.screen().contains("agent assistant"));

    let (mut run, _) = Harness::with(output(RunFormat::Json));
    run.warn("b");
    let summary: Value = serde_json::from_str(&run.end().await).unwrap();
    assert_eq!(summary["answer"], "All \u{1b}[31mis well.");
    assert_eq!(summary["outcome"]["is"], "succeeded");
    assert_eq!((&summary["exitCode"], &summary["warnings"][0]), (&0.into(), &"b".into()));
    assert_eq!(summary["receipts"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_has_seen_enough_ends_nothing() {
    for output in [RunFormat::Text, RunFormat::Json, RunFormat::Jsonl] {
        let (mut run, _) = Harness::with(Options { output, ..Options::default() });
        drop(run.stdout.take());
        for number in 0..100 {
            run.warn(&format!("{number}"));
        }
        assert_eq!(run.end().await, "");
    }
}
