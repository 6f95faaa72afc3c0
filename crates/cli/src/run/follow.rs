//! Follows a run until its end: events to the screen and stdout, questions to the user, votes back to the run.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use clap::ColorChoice;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use rustix::termios::isatty;
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::{Vote, VoteOutcome, VoteRefusal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::answer::{self, Summary};
use super::arguments::RunFormat;
use super::display::line::{Line, Style};
use super::display::{Detail, RunDisplay};
use super::prompt::{self, PromptInput, Terminal};
use super::screen::{Screen, TerminalEnv};
use super::signals::{SignalRequest, Signals};
use super::writer::Writer;
use sympozium_local::realise::RunHandle;
use sympozium_runs::ApprovalMode;
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;
use sympozium_runs::TargetFlags;
use sympozium_runs::time::now_ms;
use sympozium_runs::{Event, Question, TimedEvent};
use sympozium_runs::{EventLog, EventReader};

/// Interval of updates of the status line.
const FRAME_INTERVAL: Duration = Duration::from_millis(120);
/// While a question is pending: interval of checks whether the process is in the foreground again.
const FOREGROUND_POLL: Duration = Duration::from_millis(500);

/// What the user may do with a run.
pub trait RunControl {
    /// Why a vote does not count.
    type VoteError: fmt::Display;

    /// Votes on one exact action.
    async fn vote(
        &self,
        approval: &str,
        action: &Digest,
        says: Vote,
        reason: Option<&str>,
    ) -> Result<VoteEffect, Self::VoteError>;

    /// Asks the run to end. Returns what to tell the user.
    fn stop(&self, how: StopLevel) -> StopNotice;
}

/// The effect of a vote that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteEffect {
    /// The question is decided.
    Decided,
    /// This many more approvals are needed.
    MoreNeeded(u32),
    /// The vote is stored; how many are needed is not known here.
    Recorded,
}

impl From<VoteOutcome> for VoteEffect {
    fn from(counted: VoteOutcome) -> Self {
        match counted {
            VoteOutcome::Decided => Self::Decided,
            VoteOutcome::Pending(more) => Self::MoreNeeded(more),
        }
    }
}

/// What to tell the user after a request to end the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopNotice {
    pub text: &'static str,
    /// Whether to stop following without waiting for the run's end.
    pub detaches: bool,
}

impl RunControl for RunHandle {
    type VoteError = VoteRefusal;

    async fn vote(
        &self,
        approval: &str,
        action: &Digest,
        says: Vote,
        reason: Option<&str>,
    ) -> Result<VoteEffect, VoteRefusal> {
        Self::vote(self, approval, action, says, reason).map(VoteEffect::from)
    }

    fn stop(&self, how: StopLevel) -> StopNotice {
        Self::stop(self, how);
        let text = match how {
            StopLevel::Gently | StopLevel::None => "ending the run; press Ctrl-C again to kill it",
            StopLevel::Now => "killing the run",
        };
        StopNotice { text, detaches: false }
    }
}

#[derive(Debug, Clone)]
pub struct FollowOptions {
    pub target: TargetFlags,
    pub output: RunFormat,
    pub approve: ApprovalMode,
    pub color: ColorChoice,
    pub environment: TerminalEnv,
}

#[derive(Debug)]
pub struct Streams {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// The user's terminal, if there is one.
    pub terminal: Option<Terminal>,
}

/// How following ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowEnd {
    /// The run has ended.
    RunEnded(RunEnd),
    /// The user has detached; the run may go on.
    Detached,
    /// No more events will come, although the run goes on.
    Lost,
}

/// Follows a run until its end, until the user detaches, or until `lost` completes, which means that no more events
/// will come. An error, such as an unusable stream, does not end the run.
pub async fn follow<S: RunControl>(
    events: &EventLog,
    mut reader: EventReader,
    steering: &S,
    manner: FollowOptions,
    streams: Streams,
    signals: &mut Signals,
    lost: impl Future<Output = ()>,
) -> anyhow::Result<FollowEnd> {
    tokio::pin!(lost);
    // Votes in flight. In a cluster they take time; everything else continues meanwhile.
    let mut deciding = FuturesUnordered::new();
    let mut follower = Follower::new(steering, manner, streams, events)?;
    let mut frames = interval(FRAME_INTERVAL);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let outcome = loop {
        follower.ask_next_question();
        let wait = follower.next_wakeup();
        tokio::select! {
            // Signals first; then events before anything that adds more, because the log drops old ones.
            biased;
            asks = signals.next() => if follower.handle_signal(asks) == SignalAction::Detach {
                follower.detach().await;
                return Ok(FollowEnd::Detached);
            },
            timed = reader.next() => {
                if let Some(outcome) = follower.handle_event(&timed) {
                    break outcome;
                }
            }
            () = wait_until_shown(&mut follower.asking) => follower.mark_shown(),
            line = read_typed(&mut follower.terminal), if follower.is_shown() => {
                if let Some(word) = follower.handle_input(line) {
                    deciding.push(send_vote(steering, word));
                }
            }
            Some(decided) = deciding.next() => follower.handle_vote_effect(&decided),
            () = &mut lost => {
                // Print the events from before.
                let told = std::iter::from_fn(|| reader.next().now_or_never());
                if let Some(outcome) = told.filter_map(|timed| follower.handle_event(&timed)).next() {
                    break outcome;
                }
                follower.close_open_question("the run is not followed any more");
                follower.detach().await;
                return Ok(FollowEnd::Lost);
            }
            _ = frames.tick(), if follower.screen.has_status_line() => follower.tick(),
            () = sleep_optional(wait) => follower.tick(),
        }
    };
    {
        let finishing = follower.finish(&outcome);
        tokio::pin!(finishing);
        loop {
            tokio::select! {
                finished = &mut finishing => break finished?,
                // A blocked reader must not keep the process from exiting.
                asks = signals.next() => if asks != SignalRequest::Resized { break },
            }
        }
    }
    Ok(FollowEnd::RunEnded(outcome))
}

/// A vote that was typed.
struct TypedVote {
    question: Question,
    vote: Vote,
    reason: Option<String>,
}

/// Sends a vote to the run.
async fn send_vote<S: RunControl>(steering: &S, word: TypedVote) -> Result<VoteEffect, String> {
    let Question { approval, action, .. } = &word.question;
    let decided = steering.vote(approval, action, word.vote, word.reason.as_deref());
    decided.await.map_err(|why| why.to_string())
}

async fn wait_until_shown(asking: &mut Option<OpenQuestion>) {
    match asking.as_mut().and_then(|it| it.shown.as_mut()) {
        // If the writer is gone, it has shown what it could.
        Some(mark) => drop(mark.await),
        None => std::future::pending().await,
    }
}

async fn read_typed(terminal: &mut Option<Terminal>) -> Option<String> {
    match terminal {
        Some(terminal) => terminal.read_line().await,
        None => None,
    }
}

async fn sleep_optional(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}

#[derive(Debug)]
struct Follower<'f, S> {
    control: &'f S,
    options: FollowOptions,
    display: RunDisplay,
    summary: Summary,
    screen: Screen,
    /// Where questions are shown if the screen is not a terminal.
    question_screen: Option<Screen>,
    terminal: Option<Terminal>,
    stdout: StdoutWriter,
    /// The question that is being asked.
    asking: Option<OpenQuestion>,
    /// Whether a vote is in flight.
    is_voting: bool,
    /// Questions that are not asked here: already answered, or left to another terminal.
    skipped: BTreeSet<String>,
    has_printed_hint: bool,
}

/// What to do after a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignalAction {
    Continue,
    Detach,
}

#[derive(Debug)]
struct OpenQuestion {
    question: Question,
    /// Completes when the question is visible; input from before does not count. `None` after that.
    shown: Option<oneshot::Receiver<()>>,
}

#[derive(Debug)]
struct StdoutWriter {
    writer: Arc<Writer>,
    is_terminal: bool,
    jsonl_task: Option<JoinHandle<anyhow::Result<()>>>,
}

impl StdoutWriter {
    fn new(stream: OwnedFd, output: RunFormat, events: &EventLog) -> anyhow::Result<Self> {
        let is_terminal = isatty(&stream);
        let writer = Arc::new(Writer::start(stream)?);
        let lines = (output == RunFormat::Jsonl).then(|| {
            let (writer, events) = (Arc::clone(&writer), events.clone());
            tokio::spawn(async move { write_events(&writer, &events).await })
        });
        Ok(Self { writer, is_terminal, jsonl_task: lines })
    }

    async fn finish(self) -> anyhow::Result<()> {
        if let Some(lines) = self.jsonl_task {
            lines.await??;
        }
        self.writer.flush().await;
        Ok(())
    }
}

/// Writes every event as a line, at the pace of the reader.
async fn write_events(writer: &Writer, events: &EventLog) -> anyhow::Result<()> {
    let mut reader = events.reader();
    loop {
        let timed = reader.next().await;
        writer.write(answer::to_json_line(&timed)?).await;
        if matches!(timed.event, Event::Ended { .. }) {
            return Ok(());
        }
    }
}

impl<'f, S: RunControl> Follower<'f, S> {
    fn new(steering: &'f S, manner: FollowOptions, streams: Streams, events: &EventLog) -> anyhow::Result<Self> {
        let Streams { stdout, stderr, terminal } = streams;
        let screen = Screen::new(stderr, manner.color, manner.environment)?;
        let aside = match &terminal {
            Some(terminal) if !screen.is_terminal() => {
                let stream = terminal.try_clone_fd()?;
                Some(Screen::new(stream, manner.color, manner.environment)?)
            }
            _ => None,
        };
        let detail = match manner.output {
            RunFormat::Text => Detail::All,
            RunFormat::Json | RunFormat::Jsonl => Detail::Needed,
        };
        Ok(Self {
            control: steering,
            display: RunDisplay::new(detail, manner.target.clone()),
            summary: Summary::default(),
            screen,
            question_screen: aside,
            terminal,
            stdout: StdoutWriter::new(stdout, manner.output, events)?,
            options: manner,
            asking: None,
            is_voting: false,
            skipped: BTreeSet::new(),
            has_printed_hint: false,
        })
    }

    fn handle_event(&mut self, timed: &TimedEvent) -> Option<RunEnd> {
        self.summary.add_event(timed);
        let lines = self.display.handle_event(timed);
        match &timed.event {
            Event::Answered { approval, .. } => self.close_question(approval),
            Event::Ended { .. } => self.close_open_question("the run is over"),
            _ => {}
        }
        self.screen.print(&lines);
        if let Event::Asked { question } = &timed.event {
            self.print_automatic_vote(question);
        }
        self.show_status();
        match &timed.event {
            Event::Ended { outcome, .. } => Some(outcome.clone()),
            _ => None,
        }
    }

    fn tick(&mut self) {
        let lines = self.display.tick(now_ms());
        self.screen.print(&lines);
        self.show_status();
    }

    fn show_status(&mut self) {
        if self.screen.has_status_line() {
            self.screen.show_status(self.display.status_line(now_ms()));
        }
    }

    /// How long to sleep if nothing happens.
    fn next_wakeup(&self) -> Option<Duration> {
        let display = self.display.next_tick_ms();
        let display = display.map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        // The user may bring the process to the foreground.
        let waits = self.asking.is_none() && self.next_question().is_some();
        display.into_iter().chain(waits.then_some(FOREGROUND_POLL)).min()
    }

    fn handle_signal(&mut self, asks: SignalRequest) -> SignalAction {
        let mut next = SignalAction::Continue;
        let text = match asks {
            SignalRequest::Resized => {
                self.screen.measure();
                if let Some(aside) = &mut self.question_screen {
                    aside.measure();
                }
                return SignalAction::Continue;
            }
            SignalRequest::Stop(how) => {
                let StopNotice { text, detaches: leaves } = self.control.stop(how);
                if leaves {
                    next = SignalAction::Detach;
                }
                self.display.set_ending();
                text
            }
            SignalRequest::Exit => "the run is being killed; please wait",
        };
        self.close_open_question("the run is ending");
        self.screen.print(&[Line::wrapped(2).add(Style::Attention, text)]);
        next
    }

    /// With `--approve all` or `none` the run answers by itself: prints that.
    fn print_automatic_vote(&mut self, question: &Question) {
        let text = match self.options.approve {
            ApprovalMode::Ask => return,
            ApprovalMode::All => "--approve all says yes",
            ApprovalMode::None => "--approve none says no",
        };
        let line = Line::wrapped(4).plain(&format!("  {}: ", question.approval));
        self.screen.print(&[line.add(Style::Attention, text)]);
    }

    /// The oldest question that is to be asked here and has not been. One at a time: the effect of a vote is printed
    /// before the next question.
    fn next_question(&self) -> Option<&Question> {
        if self.options.approve != ApprovalMode::Ask || self.is_voting {
            return None;
        }
        let mut questions = self.display.questions().iter();
        questions.find(|it| !self.skipped.contains(&it.approval))
    }

    /// Asks the next question, if none is open.
    fn ask_next_question(&mut self) {
        if self.asking.is_some() {
            return;
        }
        let Some(question) = self.next_question().cloned() else {
            return;
        };
        match &self.terminal {
            Some(terminal) if terminal.is_foreground() => {
                self.screen.hold();
                self.ask(question);
            }
            // In the background: asked when the process is in the foreground again.
            Some(_) => self.print_elsewhere_hint(),
            None => {
                self.skipped.insert(question.approval);
                self.print_elsewhere_hint();
            }
        }
    }

    /// Shows a question.
    fn ask(&mut self, question: Question) {
        let lines = prompt::question_lines(&question, now_ms());
        self.screen_for_questions().print_now(&lines);
        match self.screen_for_questions().flush_marker() {
            Some(mark) => {
                let mark = Some(mark);
                self.asking = Some(OpenQuestion { question, shown: mark });
            }
            // The queue of the writer is full: the question would not be seen.
            None => {
                self.skipped.insert(question.approval);
                self.screen.release();
            }
        }
    }

    fn is_shown(&self) -> bool {
        self.asking.as_ref().is_some_and(|it| it.shown.is_none())
    }

    /// The question is visible: input from before is discarded.
    fn mark_shown(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.flush_input();
        }
        if let Some(asking) = &mut self.asking {
            asking.shown = None;
        }
        self.show_choices();
    }

    fn show_choices(&mut self) {
        let Some(asking) = &self.asking else {
            return;
        };
        let choices = prompt::choices_line(asking.question.run_scope);
        let asker = self.screen_for_questions();
        let choices = asker.render(&choices);
        asker.write(format!("{} ", choices.trim_end_matches('\n')));
    }

    /// The screen that shows questions.
    fn screen_for_questions(&mut self) -> &mut Screen {
        self.question_screen.as_mut().unwrap_or(&mut self.screen)
    }

    /// Handles a line of input, or the end of input. Returns the vote, if the line is one.
    fn handle_input(&mut self, line: Option<String>) -> Option<TypedVote> {
        let OpenQuestion { question, .. } = self.asking.take()?;
        let Some(line) = line else {
            self.skipped.insert(question.approval.clone());
            self.screen_for_questions().write("\n".to_owned());
            self.has_printed_hint = false;
            self.print_elsewhere_hint();
            self.screen.release();
            return None;
        };
        match prompt::parse_input(&line, question.run_scope) {
            PromptInput::Vote(says, reason) => {
                self.skipped.insert(question.approval.clone());
                self.is_voting = true;
                self.screen.release();
                self.show_status();
                return Some(TypedVote { question, vote: says, reason });
            }
            PromptInput::Show => self.ask(question),
            PromptInput::Empty | PromptInput::Unclear => {
                let mark = None;
                self.asking = Some(OpenQuestion { question, shown: mark });
                self.show_choices();
            }
        }
        None
    }

    /// Prints the effect of a vote.
    fn handle_vote_effect(&mut self, decided: &Result<VoteEffect, String>) {
        self.is_voting = false;
        let line = match decided {
            Ok(VoteEffect::Decided) => None,
            Ok(VoteEffect::MoreNeeded(more)) => Some(more_votes_text(*more)),
            Ok(VoteEffect::Recorded) => Some("noted; whether that is enough is decided by the run's plan".to_owned()),
            Err(why) => Some(format!("that does not count: {why}")),
        };
        if let Some(line) = line {
            self.screen_for_questions().print_now(&[Line::wrapped(2).add(Style::Attention, &line)]);
            self.show_status();
        }
    }

    /// The question was answered elsewhere, or withdrawn.
    fn close_question(&mut self, approval: &str) {
        if self.asking.as_ref().is_some_and(|it| it.question.approval == approval) {
            self.close_open_question("no answer is needed here any more");
        }
    }

    fn close_open_question(&mut self, why: &str) {
        if let Some(asking) = self.asking.take() {
            self.skipped.insert(asking.question.approval);
            // Below what the user may have typed.
            let line = Line::wrapped(2).add(Style::Attention, why);
            let asker = self.screen_for_questions();
            asker.write("\n".to_owned());
            asker.print_now(&[line]);
            self.screen.release();
        }
    }

    fn print_elsewhere_hint(&mut self) {
        if std::mem::replace(&mut self.has_printed_hint, true) {
            return;
        }
        let place = self.options.target.as_str();
        let text = format!(
            "questions wait for an answer from elsewhere: `sympozium approvals{place}` lists them, \
             `sympozium approve{place}` and `sympozium deny{place}` answer"
        );
        self.screen.print_now(&[Line::wrapped(2).add(Style::Attention, "hint: ").plain(&text)]);
    }

    /// Stops following: writes what is queued, and prints no answer.
    async fn detach(mut self) {
        self.screen.finish().await;
        if let Some(aside) = self.question_screen.take() {
            aside.finish().await;
        }
        if let Some(lines) = self.stdout.jsonl_task.take() {
            lines.abort();
        }
        self.stdout.writer.flush().await;
    }

    async fn finish(mut self, outcome: &RunEnd) -> anyhow::Result<()> {
        // First what is above the answer, if both go to the same terminal.
        self.screen.finish().await;
        if let Some(aside) = self.question_screen.take() {
            aside.finish().await;
        }
        match (self.options.output, outcome) {
            (RunFormat::Text, RunEnd::Succeeded { answer }) => {
                let text = answer::printable_answer(answer, self.stdout.is_terminal);
                self.stdout.writer.write(text).await;
            }
            (RunFormat::Text, _) | (RunFormat::Jsonl, _) => {}
            (RunFormat::Json, _) => self.stdout.writer.write(self.summary.into_json()?).await,
        }
        self.stdout.finish().await
    }
}

fn more_votes_text(more: u32) -> String {
    match more {
        1 => "counted; one more person must say yes".to_owned(),
        _ => format!("counted; {more} more people must say yes"),
    }
}
