//! A run is followed to its end: events to the screen and to stdout, questions to the person, their word back.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use clap::ColorChoice;
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

/// Between two looks of the line that changes.
const FRAME: Duration = Duration::from_millis(120);
/// Between two looks whether a process that was in the background is still there, when there is a question.
const BACKGROUND: Duration = Duration::from_millis(500);

/// What a person may do with a run.
pub trait Steering {
    /// Their word about one exact action.
    fn decide(
        &self,
        approval: &str,
        action: &Digest,
        says: Says,
        reason: Option<&str>,
    ) -> Result<Counted, Undecidable>;

    /// Ends it.
    fn stop(&self, how: Stop);
}

impl Steering for Handle {
    fn decide(
        &self,
        approval: &str,
        action: &Digest,
        says: Says,
        reason: Option<&str>,
    ) -> Result<Counted, Undecidable> {
        Self::decide(self, approval, action, says, reason)
    }

    fn stop(&self, how: Stop) {
        Self::stop(self, how);
    }
}

/// How a run is followed.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    pub output: RunFormat,
    pub approve: Approve,
    pub color: ColorChoice,
    pub environment: Environment,
}

/// Where it is shown, and where answers come from.
#[derive(Debug)]
pub struct Streams {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// The person's terminal, where there is one.
    pub terminal: Option<Terminal>,
}

/// Follows a run, and gives what came of it.
///
/// # Errors
///
/// When a stream cannot be used at all, or what happened has no JSON. The run is not ended by that.
pub async fn follow<S: Steering>(
    events: &EventLog,
    mut reader: Reader,
    steering: &S,
    manner: Manner,
    streams: Streams,
    signals: &mut Signals,
) -> anyhow::Result<Outcome> {
    let mut follower = Follower::new(steering, manner, streams, events)?;
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let outcome = loop {
        follower.open_question();
        let wait = follower.due();
        tokio::select! {
            timed = reader.next() => {
                if let Some(outcome) = follower.event(&timed) {
                    break outcome;
                }
            }
            () = shown(&mut follower.asking) => follower.shown(),
            line = typed(&mut follower.terminal), if follower.is_shown() => follower.typed(line),
            asks = signals.next() => follower.signal(asks),
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
                // A reader that sleeps keeps nobody here.
                asks = signals.next() => if asks != Asks::Resized { break },
            }
        }
    }
    Ok(outcome)
}

async fn shown(asking: &mut Option<Asking>) {
    match asking.as_mut().and_then(|it| it.mark.as_mut()) {
        // A writer that is gone has shown what it could.
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
    /// Where questions are shown when the screen is no terminal.
    aside: Option<Screen>,
    terminal: Option<Terminal>,
    stdout: Stdout,
    /// The question that is being asked.
    asking: Option<Asking>,
    /// Questions that are not asked here: they wait for an answer from elsewhere.
    left: BTreeSet<String>,
    has_said_elsewhere: bool,
}

/// A question that is put to the person.
#[derive(Debug)]
struct Asking {
    question: Question,
    /// Comes when they can read it. What they type before does not count.
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
        Ok(Self {
            writer,
            is_terminal,
            lines,
        })
    }

    async fn finish(self) -> anyhow::Result<()> {
        if let Some(lines) = self.lines {
            lines.await??;
        }
        self.writer.written().await;
        Ok(())
    }
}

/// Every event as a line, at the pace of whoever reads them.
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
    fn new(
        steering: &'f S,
        manner: Manner,
        streams: Streams,
        events: &EventLog,
    ) -> anyhow::Result<Self> {
        let Streams {
            stdout,
            stderr,
            terminal,
        } = streams;
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
            manner,
            display: Display::new(detail),
            summary: Summary::default(),
            screen,
            aside,
            terminal,
            stdout: Stdout::new(stdout, manner.output, events)?,
            asking: None,
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

    /// How long nothing need be done, if nothing happens.
    fn due(&self) -> Option<Duration> {
        let display = self.display.due_ms();
        let display = display.map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        // A person may bring us back to the front.
        let waits = self.asking.is_none() && self.next_question().is_some();
        display.into_iter().chain(waits.then_some(BACKGROUND)).min()
    }

    fn signal(&mut self, asks: Asks) {
        let text = match asks {
            Asks::Resized => {
                self.screen.measure();
                if let Some(aside) = &mut self.aside {
                    aside.measure();
                }
                return;
            }
            Asks::End(how) => {
                self.steering.stop(how);
                self.display.ending();
                match how {
                    Stop::Gently | Stop::No => "ending the run; press Ctrl-C again to kill it",
                    Stop::Now => "killing the run",
                }
            }
            Asks::Leave => "the run is being killed; please wait",
        };
        self.close_any_question("the run is ending");
        self.screen.print(&[Line::whole(2).add(Look::Asking, text)]);
    }

    /// Where nobody is asked: the run answers by itself, and this says so.
    fn say_decided(&mut self, question: &Question) {
        let text = match self.manner.approve {
            Approve::Ask => return,
            Approve::All => "--approve all says yes",
            Approve::None => "--approve none says no",
        };
        let line = Line::whole(4).plain(&format!("  {}: ", question.approval));
        self.screen.print(&[line.add(Look::Asking, text)]);
    }

    fn decide(
        &self,
        question: &Question,
        says: Says,
        reason: Option<&str>,
    ) -> Result<Counted, Undecidable> {
        let Question {
            approval, action, ..
        } = question;
        self.steering.decide(approval, action, says, reason)
    }

    /// The oldest question that is asked here and was not put yet.
    fn next_question(&self) -> Option<&Question> {
        if self.manner.approve != Approve::Ask {
            return None;
        }
        let mut questions = self.display.questions().iter();
        questions.find(|it| !self.left.contains(&it.approval))
    }

    /// Puts the next question to the person, if there is one and nobody is being asked.
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
            // In the background: asked when it comes back.
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
            // Nobody would read it.
            None => {
                self.left.insert(question.approval);
                self.screen.release();
            }
        }
    }

    fn is_shown(&self) -> bool {
        self.asking.as_ref().is_some_and(|it| it.mark.is_none())
    }

    /// The question can be read: whatever was typed before does not count.
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

    /// Where questions are shown.
    fn asker(&mut self) -> &mut Screen {
        self.aside.as_mut().unwrap_or(&mut self.screen)
    }

    fn typed(&mut self, line: Option<String>) {
        let Some(Asking { question, .. }) = self.asking.take() else {
            return;
        };
        let Some(line) = line else {
            self.left.insert(question.approval.clone());
            self.asker().write("\n".to_owned());
            self.has_said_elsewhere = false;
            self.say_elsewhere();
            self.screen.release();
            return;
        };
        match prompt::typed(&line, question.run_scope) {
            Typed::Says(says, reason) => {
                let decided = self.decide(&question, says, reason.as_deref());
                let line = match decided {
                    Ok(Counted::Decided) => None,
                    Ok(Counted::More(more)) => Some(more_wanted(more)),
                    Err(why) => Some(format!("that does not count: {why}")),
                };
                self.left.insert(question.approval);
                if let Some(line) = line {
                    self.asker()
                        .print_now(&[Line::whole(2).add(Look::Asking, &line)]);
                }
                self.screen.release();
                self.show_status();
            }
            Typed::Show => self.ask(question),
            Typed::Nothing | Typed::Unclear => {
                let mark = None;
                self.asking = Some(Asking { question, mark });
                self.show_choices();
            }
        }
    }

    /// Somebody else answered, or nobody waits any more.
    fn close_question(&mut self, approval: &str) {
        if self
            .asking
            .as_ref()
            .is_some_and(|it| it.question.approval == approval)
        {
            self.close_any_question("no answer is needed here any more");
        }
    }

    fn close_any_question(&mut self, why: &str) {
        if let Some(asking) = self.asking.take() {
            self.left.insert(asking.question.approval);
            // Below what the person may have typed.
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
        let text = "questions wait for an answer from elsewhere: `sympozium approvals` lists them, \
                    `sympozium approve` and `sympozium deny` answer";
        self.screen
            .print_now(&[Line::whole(2).add(Look::Asking, "hint: ").plain(text)]);
    }

    async fn finish(mut self, outcome: &Outcome) -> anyhow::Result<()> {
        // What stands above the answer comes first, where both are one terminal.
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
