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
use sympozium_gateway::run_api::local::{Counted, Says, Undecidable};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::answer::{self, Summary};
use super::arguments::RunFormat;
use super::display::line::{Line, Look};
use super::display::{Detail, Display};
use super::prompt::{self, Terminal, Typed};
use super::screen::{Environment, Screen};
use super::signals::{Asks, Signals};
use super::writer::Writer;
use crate::local::event::{Event, Question, Timed};
use crate::local::events::{EventLog, Reader};
use crate::local::prepared::Approve;
use crate::local::realise::{Handle, Stop};
use crate::local::record::Outcome;
use crate::local::time::now_ms;
use crate::place::Place;

/// Interval of updates of the status line.
const FRAME: Duration = Duration::from_millis(120);
/// While a question is pending: interval of checks whether the process is in the foreground again.
const BACKGROUND: Duration = Duration::from_millis(500);

/// What the user may do with a run.
pub trait Steering {
    /// Why a vote does not count.
    type Undecided: fmt::Display;

    /// Votes on one exact action.
    async fn decide(
        &self,
        approval: &str,
        action: &Digest,
        says: Says,
        reason: Option<&str>,
    ) -> Result<Heard, Self::Undecided>;

    /// Asks the run to end. Returns what to tell the user.
    fn stop(&self, how: Stop) -> Stopping;
}

/// The effect of a vote that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The question is decided.
    Decided,
    /// This many more approvals are needed.
    More(u32),
    /// The vote is stored; how many are needed is not known here.
    Noted,
}

impl From<Counted> for Heard {
    fn from(counted: Counted) -> Self {
        match counted {
            Counted::Decided => Self::Decided,
            Counted::More(more) => Self::More(more),
        }
    }
}

/// What to tell the user after a request to end the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    pub text: &'static str,
    /// Whether to stop following without waiting for the run's end.
    pub leaves: bool,
}

impl Steering for Handle {
    type Undecided = Undecidable;

    async fn decide(
        &self,
        approval: &str,
        action: &Digest,
        says: Says,
        reason: Option<&str>,
    ) -> Result<Heard, Undecidable> {
        Self::decide(self, approval, action, says, reason).map(Heard::from)
    }

    fn stop(&self, how: Stop) -> Stopping {
        Self::stop(self, how);
        let text = match how {
            Stop::Gently | Stop::No => "ending the run; press Ctrl-C again to kill it",
            Stop::Now => "killing the run",
        };
        Stopping { text, leaves: false }
    }
}

#[derive(Debug, Clone)]
pub struct Manner {
    pub place: Place,
    pub output: RunFormat,
    pub approve: Approve,
    pub color: ColorChoice,
    pub environment: Environment,
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
pub enum Ending {
    /// The run has ended.
    Outcome(Outcome),
    /// The user has detached; the run may go on.
    Left,
    /// No more events will come, although the run goes on.
    Lost,
}

/// Follows a run until its end, until the user detaches, or until `lost` completes, which means that no more events
/// will come. An error, such as an unusable stream, does not end the run.
pub async fn follow<S: Steering>(
    events: &EventLog,
    mut reader: Reader,
    steering: &S,
    manner: Manner,
    streams: Streams,
    signals: &mut Signals,
    lost: impl Future<Output = ()>,
) -> anyhow::Result<Ending> {
    tokio::pin!(lost);
    // Votes in flight. In a cluster they take time; everything else continues meanwhile.
    let mut deciding = FuturesUnordered::new();
    let mut follower = Follower::new(steering, manner, streams, events)?;
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let outcome = loop {
        follower.open_question();
        let wait = follower.due();
        tokio::select! {
            // Signals first; then events before anything that adds more, because the log drops old ones.
            biased;
            asks = signals.next() => if follower.signal(asks) == Next::Leave {
                follower.leave().await;
                return Ok(Ending::Left);
            },
            timed = reader.next() => {
                if let Some(outcome) = follower.event(&timed) {
                    break outcome;
                }
            }
            () = shown(&mut follower.asking) => follower.shown(),
            line = typed(&mut follower.terminal), if follower.is_shown() => {
                if let Some(word) = follower.typed(line) {
                    deciding.push(decided(steering, word));
                }
            }
            Some(decided) = deciding.next() => follower.decided(&decided),
            () = &mut lost => {
                // Print the events from before.
                let told = std::iter::from_fn(|| reader.next().now_or_never());
                if let Some(outcome) = told.filter_map(|timed| follower.event(&timed)).next() {
                    break outcome;
                }
                follower.close_any_question("the run is not followed any more");
                follower.leave().await;
                return Ok(Ending::Lost);
            }
            _ = frames.tick(), if follower.screen.is_live() => follower.tick(),
            () = due(wait) => follower.tick(),
        }
    };
    {
        let finishing = follower.finish(&outcome);
        tokio::pin!(finishing);
        loop {
            tokio::select! {
                finished = &mut finishing => break finished?,
                // A blocked reader must not keep the process from exiting.
                asks = signals.next() => if asks != Asks::Resized { break },
            }
        }
    }
    Ok(Ending::Outcome(outcome))
}

/// A vote that was typed.
struct Word {
    question: Question,
    says: Says,
    reason: Option<String>,
}

/// Sends a vote to the run.
async fn decided<S: Steering>(steering: &S, word: Word) -> Result<Heard, String> {
    let Question { approval, action, .. } = &word.question;
    let decided = steering.decide(approval, action, word.says, word.reason.as_deref());
    decided.await.map_err(|why| why.to_string())
}

async fn shown(asking: &mut Option<Asking>) {
    match asking.as_mut().and_then(|it| it.mark.as_mut()) {
        // If the writer is gone, it has shown what it could.
        Some(mark) => drop(mark.await),
        None => std::future::pending().await,
    }
}

async fn typed(terminal: &mut Option<Terminal>) -> Option<String> {
    match terminal {
        Some(terminal) => terminal.line().await,
        None => None,
    }
}

async fn due(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}

#[derive(Debug)]
struct Follower<'f, S> {
    steering: &'f S,
    manner: Manner,
    display: Display,
    summary: Summary,
    screen: Screen,
    /// Where questions are shown if the screen is not a terminal.
    aside: Option<Screen>,
    terminal: Option<Terminal>,
    stdout: Stdout,
    /// The question that is being asked.
    asking: Option<Asking>,
    /// Whether a vote is in flight.
    is_deciding: bool,
    /// Questions that are not asked here: already answered, or left to another terminal.
    left: BTreeSet<String>,
    has_said_elsewhere: bool,
}

/// What to do after a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Follow,
    Leave,
}

#[derive(Debug)]
struct Asking {
    question: Question,
    /// Completes when the question is visible; input from before does not count. `None` after that.
    mark: Option<oneshot::Receiver<()>>,
}

#[derive(Debug)]
struct Stdout {
    writer: Arc<Writer>,
    is_terminal: bool,
    lines: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Stdout {
    fn new(stream: OwnedFd, output: RunFormat, events: &EventLog) -> anyhow::Result<Self> {
        let is_terminal = isatty(&stream);
        let writer = Arc::new(Writer::start(stream)?);
        let lines = (output == RunFormat::Jsonl).then(|| {
            let (writer, events) = (Arc::clone(&writer), events.clone());
            tokio::spawn(async move { write_lines(&writer, &events).await })
        });
        Ok(Self { writer, is_terminal, lines })
    }

    async fn finish(self) -> anyhow::Result<()> {
        if let Some(lines) = self.lines {
            lines.await??;
        }
        self.writer.written().await;
        Ok(())
    }
}

/// Writes every event as a line, at the pace of the reader.
async fn write_lines(writer: &Writer, events: &EventLog) -> anyhow::Result<()> {
    let mut reader = events.reader();
    loop {
        let timed = reader.next().await;
        writer.write(answer::line(&timed)?).await;
        if matches!(timed.event, Event::Ended { .. }) {
            return Ok(());
        }
    }
}

impl<'f, S: Steering> Follower<'f, S> {
    fn new(steering: &'f S, manner: Manner, streams: Streams, events: &EventLog) -> anyhow::Result<Self> {
        let Streams { stdout, stderr, terminal } = streams;
        let screen = Screen::new(stderr, manner.color, manner.environment)?;
        let aside = match &terminal {
            Some(terminal) if !screen.is_terminal() => {
                let stream = terminal.to_write()?;
                Some(Screen::new(stream, manner.color, manner.environment)?)
            }
            _ => None,
        };
        let detail = match manner.output {
            RunFormat::Text => Detail::All,
            RunFormat::Json | RunFormat::Jsonl => Detail::Needed,
        };
        Ok(Self {
            steering,
            display: Display::new(detail, manner.place.clone()),
            summary: Summary::default(),
            screen,
            aside,
            terminal,
            stdout: Stdout::new(stdout, manner.output, events)?,
            manner,
            asking: None,
            is_deciding: false,
            left: BTreeSet::new(),
            has_said_elsewhere: false,
        })
    }

    fn event(&mut self, timed: &Timed) -> Option<Outcome> {
        self.summary.event(timed);
        let lines = self.display.event(timed);
        match &timed.event {
            Event::Answered { approval, .. } => self.close_question(approval),
            Event::Ended { .. } => self.close_any_question("the run is over"),
            _ => {}
        }
        self.screen.print(&lines);
        if let Event::Asked { question } = &timed.event {
            self.say_decided(question);
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
        if self.screen.is_live() {
            self.screen.status(self.display.status(now_ms()));
        }
    }

    /// How long to sleep if nothing happens.
    fn due(&self) -> Option<Duration> {
        let display = self.display.due_ms();
        let display = display.map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        // The user may bring the process to the foreground.
        let waits = self.asking.is_none() && self.next_question().is_some();
        display.into_iter().chain(waits.then_some(BACKGROUND)).min()
    }

    fn signal(&mut self, asks: Asks) -> Next {
        let mut next = Next::Follow;
        let text = match asks {
            Asks::Resized => {
                self.screen.measure();
                if let Some(aside) = &mut self.aside {
                    aside.measure();
                }
                return Next::Follow;
            }
            Asks::End(how) => {
                let Stopping { text, leaves } = self.steering.stop(how);
                if leaves {
                    next = Next::Leave;
                }
                self.display.ending();
                text
            }
            Asks::Leave => "the run is being killed; please wait",
        };
        self.close_any_question("the run is ending");
        self.screen.print(&[Line::whole(2).add(Look::Asking, text)]);
        next
    }

    /// With `--approve all` or `none` the run answers by itself: prints that.
    fn say_decided(&mut self, question: &Question) {
        let text = match self.manner.approve {
            Approve::Ask => return,
            Approve::All => "--approve all says yes",
            Approve::None => "--approve none says no",
        };
        let line = Line::whole(4).plain(&format!("  {}: ", question.approval));
        self.screen.print(&[line.add(Look::Asking, text)]);
    }

    /// The oldest question that is to be asked here and has not been. One at a time: the effect of a vote is printed
    /// before the next question.
    fn next_question(&self) -> Option<&Question> {
        if self.manner.approve != Approve::Ask || self.is_deciding {
            return None;
        }
        let mut questions = self.display.questions().iter();
        questions.find(|it| !self.left.contains(&it.approval))
    }

    /// Asks the next question, if none is open.
    fn open_question(&mut self) {
        if self.asking.is_some() {
            return;
        }
        let Some(question) = self.next_question().cloned() else {
            return;
        };
        match &self.terminal {
            Some(terminal) if terminal.is_ours() => {
                self.screen.hold();
                self.ask(question);
            }
            // In the background: asked when the process is in the foreground again.
            Some(_) => self.say_elsewhere(),
            None => {
                self.left.insert(question.approval);
                self.say_elsewhere();
            }
        }
    }

    /// Shows a question.
    fn ask(&mut self, question: Question) {
        let lines = prompt::framed(&question, now_ms());
        self.asker().print_now(&lines);
        match self.asker().mark() {
            Some(mark) => {
                let mark = Some(mark);
                self.asking = Some(Asking { question, mark });
            }
            // The queue of the writer is full: the question would not be seen.
            None => {
                self.left.insert(question.approval);
                self.screen.release();
            }
        }
    }

    fn is_shown(&self) -> bool {
        self.asking.as_ref().is_some_and(|it| it.mark.is_none())
    }

    /// The question is visible: input from before is discarded.
    fn shown(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.forget();
        }
        if let Some(asking) = &mut self.asking {
            asking.mark = None;
        }
        self.show_choices();
    }

    fn show_choices(&mut self) {
        let Some(asking) = &self.asking else {
            return;
        };
        let choices = prompt::choices(asking.question.run_scope);
        let asker = self.asker();
        let choices = asker.text(&choices);
        asker.write(format!("{} ", choices.trim_end_matches('\n')));
    }

    /// The screen that shows questions.
    fn asker(&mut self) -> &mut Screen {
        self.aside.as_mut().unwrap_or(&mut self.screen)
    }

    /// Handles a line of input, or the end of input. Returns the vote, if the line is one.
    fn typed(&mut self, line: Option<String>) -> Option<Word> {
        let Asking { question, .. } = self.asking.take()?;
        let Some(line) = line else {
            self.left.insert(question.approval.clone());
            self.asker().write("\n".to_owned());
            self.has_said_elsewhere = false;
            self.say_elsewhere();
            self.screen.release();
            return None;
        };
        match prompt::typed(&line, question.run_scope) {
            Typed::Says(says, reason) => {
                self.left.insert(question.approval.clone());
                self.is_deciding = true;
                self.screen.release();
                self.show_status();
                return Some(Word { question, says, reason });
            }
            Typed::Show => self.ask(question),
            Typed::Nothing | Typed::Unclear => {
                let mark = None;
                self.asking = Some(Asking { question, mark });
                self.show_choices();
            }
        }
        None
    }

    /// Prints the effect of a vote.
    fn decided(&mut self, decided: &Result<Heard, String>) {
        self.is_deciding = false;
        let line = match decided {
            Ok(Heard::Decided) => None,
            Ok(Heard::More(more)) => Some(more_wanted(*more)),
            Ok(Heard::Noted) => Some("noted; whether that is enough is decided by the run's plan".to_owned()),
            Err(why) => Some(format!("that does not count: {why}")),
        };
        if let Some(line) = line {
            self.asker().print_now(&[Line::whole(2).add(Look::Asking, &line)]);
            self.show_status();
        }
    }

    /// The question was answered elsewhere, or withdrawn.
    fn close_question(&mut self, approval: &str) {
        if self.asking.as_ref().is_some_and(|it| it.question.approval == approval) {
            self.close_any_question("no answer is needed here any more");
        }
    }

    fn close_any_question(&mut self, why: &str) {
        if let Some(asking) = self.asking.take() {
            self.left.insert(asking.question.approval);
            // Below what the user may have typed.
            let line = Line::whole(2).add(Look::Asking, why);
            let asker = self.asker();
            asker.write("\n".to_owned());
            asker.print_now(&[line]);
            self.screen.release();
        }
    }

    fn say_elsewhere(&mut self) {
        if std::mem::replace(&mut self.has_said_elsewhere, true) {
            return;
        }
        let place = self.manner.place.flags();
        let text = format!(
            "questions wait for an answer from elsewhere: `sympozium approvals{place}` lists them, \
             `sympozium approve{place}` and `sympozium deny{place}` answer"
        );
        self.screen.print_now(&[Line::whole(2).add(Look::Asking, "hint: ").plain(&text)]);
    }

    /// Stops following: writes what is queued, and prints no answer.
    async fn leave(mut self) {
        self.screen.finish().await;
        if let Some(aside) = self.aside.take() {
            aside.finish().await;
        }
        if let Some(lines) = self.stdout.lines.take() {
            lines.abort();
        }
        self.stdout.writer.written().await;
    }

    async fn finish(mut self, outcome: &Outcome) -> anyhow::Result<()> {
        // First what is above the answer, if both go to the same terminal.
        self.screen.finish().await;
        if let Some(aside) = self.aside.take() {
            aside.finish().await;
        }
        match (self.manner.output, outcome) {
            (RunFormat::Text, Outcome::Succeeded { answer }) => {
                let text = answer::text(answer, self.stdout.is_terminal);
                self.stdout.writer.write(text).await;
            }
            (RunFormat::Text, _) | (RunFormat::Jsonl, _) => {}
            (RunFormat::Json, _) => self.stdout.writer.write(self.summary.json()?).await,
        }
        self.stdout.finish().await
    }
}

fn more_wanted(more: u32) -> String {
    match more {
        1 => "counted; one more person must say yes".to_owned(),
        _ => format!("counted; {more} more people must say yes"),
    }
}
