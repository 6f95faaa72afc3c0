//! What is known of a run that is followed, and where it is printed.

use std::collections::BTreeSet;
use std::time::Duration;

use sympozium_runs::time::now_ms;
use sympozium_runs::{ApprovalMode, Event, EventLog, Question, RunEnd, TimedEvent};

use super::questions::OpenQuestion;
use super::stdout::StdoutWriter;
use super::{FollowOptions, RunControl, StopNotice, Streams};
use crate::run::answer::{self, Summary};
use crate::run::arguments::RunFormat;
use crate::run::display::line::{Line, Style};
use crate::run::display::{Detail, RunDisplay};
use crate::run::prompt::Terminal;
use crate::run::screen::Screen;
use crate::run::signals::SignalRequest;

/// While a question is pending: interval of checks whether the process is in the foreground again.
const FOREGROUND_POLL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Follower<'f, C> {
    control: &'f C,
    pub(super) options: FollowOptions,
    pub(super) display: RunDisplay,
    summary: Summary,
    pub(super) screen: Screen,
    /// Where questions are shown if the screen is not a terminal.
    pub(super) question_screen: Option<Screen>,
    pub(super) terminal: Option<Terminal>,
    stdout: StdoutWriter,
    /// The question that is being asked.
    pub(super) asking: Option<OpenQuestion>,
    /// Whether a vote is in flight.
    pub(super) is_voting: bool,
    /// Questions that are not asked here: already answered, or left to another terminal.
    pub(super) skipped: BTreeSet<String>,
    pub(super) has_printed_hint: bool,
}

/// What to do after a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalAction {
    Continue,
    Detach,
}

impl<'f, C: RunControl> Follower<'f, C> {
    pub(super) fn new(
        control: &'f C,
        options: FollowOptions,
        streams: Streams,
        events: &EventLog,
    ) -> anyhow::Result<Self> {
        let Streams { stdout, stderr, terminal } = streams;
        let screen = Screen::new(stderr, options.color, options.environment)?;
        let question_screen = match &terminal {
            Some(terminal) if !screen.is_terminal() => {
                let stream = terminal.try_clone_fd()?;
                Some(Screen::new(stream, options.color, options.environment)?)
            }
            _ => None,
        };
        let detail = match options.output {
            RunFormat::Text => Detail::All,
            RunFormat::Json | RunFormat::Jsonl => Detail::Needed,
        };
        Ok(Self {
            control,
            display: RunDisplay::new(detail, options.target.clone()),
            summary: Summary::default(),
            screen,
            question_screen,
            terminal,
            stdout: StdoutWriter::new(stdout, options.output, events)?,
            options,
            asking: None,
            is_voting: false,
            skipped: BTreeSet::new(),
            has_printed_hint: false,
        })
    }

    pub(super) fn handle_event(&mut self, timed: &TimedEvent) -> Option<RunEnd> {
        self.summary.add_event(timed);
        let lines = self.display.handle_event(timed);
        match &timed.event {
            Event::Answered { approval, .. } => self.close_question(approval),
            Event::Ended { .. } => self.close_open_question("the run has ended"),
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

    pub(super) fn tick(&mut self) {
        let lines = self.display.tick(now_ms());
        self.screen.print(&lines);
        self.show_status();
    }

    pub(super) fn show_status(&mut self) {
        if self.screen.has_status_line() {
            self.screen.show_status(self.display.status_line(now_ms()));
        }
    }

    /// How long to sleep if nothing happens.
    pub(super) fn next_wakeup(&self) -> Option<Duration> {
        let display = self.display.next_tick_ms();
        let display = display.map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        // The user may bring the process to the foreground.
        let waits = self.asking.is_none() && self.next_question().is_some();
        display.into_iter().chain(waits.then_some(FOREGROUND_POLL)).min()
    }

    pub(super) fn handle_signal(&mut self, request: SignalRequest) -> SignalAction {
        let mut action = SignalAction::Continue;
        let text = match request {
            SignalRequest::Resized => {
                self.screen.measure();
                if let Some(screen) = &mut self.question_screen {
                    screen.measure();
                }
                return SignalAction::Continue;
            }
            SignalRequest::Stop(level) => {
                let StopNotice { text, detaches } = self.control.stop(level);
                if detaches {
                    action = SignalAction::Detach;
                }
                self.display.set_ending();
                text
            }
            SignalRequest::Exit => "the run is being killed; please wait",
        };
        self.close_open_question("the run is ending");
        self.screen.print(&[Line::wrapped(2).add(Style::Attention, text)]);
        action
    }

    /// With `--approve all` or `none` the run answers by itself: prints that.
    pub(super) fn print_automatic_vote(&mut self, question: &Question) {
        let text = match self.options.approve {
            ApprovalMode::Ask => return,
            ApprovalMode::All => "--approve all approves it",
            ApprovalMode::None => "--approve none denies it",
        };
        let line = Line::wrapped(4).plain(&format!("  {}: ", question.approval));
        self.screen.print(&[line.add(Style::Attention, text)]);
    }

    /// Stops following: writes what is queued, and prints no answer.
    pub(super) async fn detach(mut self) {
        self.screen.finish().await;
        if let Some(screen) = self.question_screen.take() {
            screen.finish().await;
        }
        if let Some(lines) = self.stdout.jsonl_task.take() {
            lines.abort();
        }
        self.stdout.writer.flush().await;
    }

    pub(super) async fn finish(mut self, outcome: &RunEnd) -> anyhow::Result<()> {
        // First what is above the answer, if both go to the same terminal.
        self.screen.finish().await;
        if let Some(screen) = self.question_screen.take() {
            screen.finish().await;
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
