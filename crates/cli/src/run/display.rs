//! The display of a run: turns events into lines, and keeps one status line.
//!
//! Pure: no clock, no terminal. [`Display::event`] and [`Display::tick`] return the lines to print, [`Display::status`]
//! the status line below them. [`screen`](super::screen) writes them.

mod calls;
mod isolation;
pub mod line;
#[cfg(test)]
mod tests;
mod wire;
pub mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;

use sympozium_exec::IsolationReport;
use sympozium_ipc::receipt;
use sympozium_ipc::run_api::{Decision, Phase, Usage};

use crate::local::event::{Event, Question, Timed};
use crate::local::record::Outcome;
use crate::origin::{self, ResolvedFrom};
use crate::place::Place;
use calls::Calls;
use line::{Fit, Line, Look};
use wire::{Told, told};

/// Rows of one text of the model between its calls. The transcript has the rest.
const SPEECH_ROWS: usize = 12;
/// Characters of it that are examined.
const SPEECH_CHARACTERS: usize = 4_000;
/// Lines of the reason for a run end. The record has the rest.
const REASON_LINES: usize = 24;

/// How much is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    All,
    /// Only what the user must know or answer: programs read the rest elsewhere.
    Needed,
}

/// What is known of the run so far, as far as the display needs it.
#[derive(Debug)]
pub struct Display {
    detail: Detail,
    place: Place,
    run: String,
    workspace: Option<PathBuf>,
    started_ms: Option<u64>,
    phase: Option<Phase>,
    parts: BTreeMap<String, IsolationReport>,
    has_shown_parts: bool,
    calls: Calls,
    /// What the model said last, without a call: it may be the answer of the run.
    last_words: Option<String>,
    progress: String,
    /// The last error of the model.
    trouble: String,
    usage: Usage,
    questions: Vec<Question>,
    is_ending: bool,
    is_over: bool,
}

impl Display {
    pub fn new(detail: Detail, place: Place) -> Self {
        Self {
            detail,
            place,
            run: String::new(),
            workspace: None,
            started_ms: None,
            phase: None,
            parts: BTreeMap::new(),
            has_shown_parts: false,
            calls: Calls::default(),
            last_words: None,
            progress: String::new(),
            trouble: String::new(),
            usage: Usage::default(),
            questions: Vec::new(),
            is_ending: false,
            is_over: false,
        }
    }

    /// Handles an event, and returns the lines to print.
    pub fn event(&mut self, timed: &Timed) -> Vec<Line> {
        let Timed { at_ms, event } = timed;
        let mut lines = Vec::new();
        let mut needed = Vec::new();
        match event {
            Event::Planned { run, agent, model, skills, origins, workspace, .. } => {
                self.run.clone_from(run);
                self.workspace.clone_from(workspace);
                self.started_ms = Some(*at_ms);
                lines.extend(planned(run, agent, model, skills, origins));
            }
            Event::Starting { text } => {
                self.progress.clone_from(text);
                lines.push(waiting(text));
            }
            Event::Isolated { part, report } => {
                self.parts.insert(part.clone(), (**report).clone());
                if self.has_shown_parts {
                    // A sandbox that was built late or again: printed by itself.
                    let alone = BTreeMap::from([(part.clone(), (**report).clone())]);
                    lines.extend(isolation::lines(&alone));
                }
            }
            Event::Phase { phase } => lines.extend(self.phase(*at_ms, *phase)),
            Event::Progress { text } => self.progress.clone_from(text),
            Event::Receipt { receipt } => {
                lines.extend(self.show_parts());
                self.calls.receipt(*at_ms, &receipt.event);
                lines.extend(self.calls.lines(*at_ms));
                lines.extend(self.model_trouble(&receipt.event));
            }
            Event::Transcript { line } => {
                lines.extend(self.show_parts());
                lines.extend(self.transcript(*at_ms, line));
            }
            Event::Usage { usage } => self.usage = *usage,
            Event::Asked { question } => {
                // The approver must see the isolation before voting.
                lines.extend(self.show_parts());
                lines.extend(self.calls.lines(*at_ms));
                needed.push(asked(question));
                self.questions.push(question.clone());
            }
            Event::Answered { approval, decision, by } => {
                self.questions.retain(|it| it.approval != *approval);
                needed.push(answered(approval, *decision, by.as_deref()));
            }
            Event::Warning { text } => needed.push(warning(text)),
            Event::Ended { outcome, usage, leftovers } => {
                self.usage = *usage;
                self.is_over = true;
                lines.extend(self.ended(*at_ms, outcome));
                needed.extend(
                    leftovers
                        .iter()
                        .map(|left| warning(&format!("this is still there although the run is over: {left}"))),
                );
            }
        }
        match self.detail {
            Detail::All => lines.extend(needed),
            Detail::Needed => lines = needed,
        }
        lines
    }

    /// Returns the lines that are due because time has passed.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Line> {
        let lines = self.calls.lines(now_ms);
        match self.detail {
            Detail::All => lines,
            Detail::Needed => Vec::new(),
        }
    }

    /// When [`Self::tick`] will have lines to print, if no event comes before.
    pub fn due_ms(&self) -> Option<u64> {
        self.calls.due_ms()
    }

    /// The pending questions, oldest first.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// The user has asked the run to end.
    pub fn ending(&mut self) {
        self.is_ending = true;
    }

    /// The status line. `None` once the run has ended.
    pub fn status(&self, now_ms: u64) -> Option<Line> {
        let started_ms = self.started_ms?;
        if self.is_over {
            return None;
        }
        let (what, since_ms) = self.going_on(started_ms);
        let elapsed = words::elapsed(now_ms.saturating_sub(since_ms));
        let mut line = Line::cut().add(Look::Faint, &format!("{elapsed}  ")).plain(&what);
        let tokens = self.usage.input_tokens + self.usage.output_tokens;
        if tokens > 0 {
            let tokens = words::count(tokens, "token", "tokens");
            line = line.add(Look::Faint, &format!("  ({tokens})"));
        }
        Some(line)
    }

    fn going_on(&self, started_ms: u64) -> (String, u64) {
        if self.is_ending {
            return ("ending".to_owned(), started_ms);
        }
        if let Some(question) = self.questions.first() {
            return (format!("waiting for an answer to {}", question.approval), started_ms);
        }
        if let Some(call) = self.calls.going_on() {
            return call;
        }
        let what = match self.phase {
            None | Some(Phase::Starting) if self.progress.is_empty() => "starting",
            None | Some(Phase::Starting) => &self.progress,
            Some(Phase::Working | Phase::Waiting) if self.progress.is_empty() => "working",
            Some(Phase::Working | Phase::Waiting) => &self.progress,
            Some(Phase::Ended) => "ending",
        };
        (what.to_owned(), started_ms)
    }

    fn phase(&mut self, at_ms: u64, phase: Phase) -> Vec<Line> {
        if self.phase == Some(phase) {
            return Vec::new();
        }
        let is_first_work = phase == Phase::Working && self.phase != Some(Phase::Waiting);
        if self.phase.is_none_or(|it| it == Phase::Starting) {
            // The start no longer waits for anything.
            self.progress.clear();
        }
        self.phase = Some(phase);
        if !is_first_work {
            return Vec::new();
        }
        let mut lines = self.show_parts();
        if let Some(started_ms) = self.started_ms {
            let took = words::duration(at_ms.saturating_sub(started_ms));
            lines.push(Line::cut().add(Look::Faint, &format!("  started in {took}")));
        }
        lines
    }

    fn show_parts(&mut self) -> Vec<Line> {
        if self.has_shown_parts || self.parts.is_empty() {
            return Vec::new();
        }
        self.has_shown_parts = true;
        isolation::lines(&self.parts)
    }

    fn transcript(&mut self, at_ms: u64, line: &serde_json::Value) -> Vec<Line> {
        let mut lines = Vec::new();
        match told(line) {
            Told::Answer { text, calls } => {
                lines.extend(self.last_words.take().iter().flat_map(|it| speech(it)));
                match calls.is_empty() {
                    true => self.last_words = text,
                    false => lines.extend(text.iter().flat_map(|it| speech(it))),
                }
                calls.into_iter().for_each(|call| self.calls.said(call));
            }
            Told::Result { id, failed, text } => self.calls.result(at_ms, &id, failed, text),
            Told::Note(text) => lines.push(Line::whole(4).add(Look::Faint, "  note: ").plain(&wire::shortened(&text))),
            Told::Nothing => {}
        }
        // Arguments may have arrived for calls that have ended.
        lines.extend(self.calls.lines(at_ms));
        lines
    }

    /// The error of a model request. The agent retries: the same error is printed once.
    fn model_trouble(&mut self, event: &receipt::Event) -> Option<Line> {
        let receipt::Event::Model { status, error, duration_ms, .. } = event else {
            return None;
        };
        let text = match (status, error) {
            (Some(status), Some(error)) => format!("the model answered {status}: {error}"),
            (None, Some(error)) => format!("the model did not answer: {error}"),
            (Some(status), None) if *status >= 400 => format!("the model answered {status}"),
            _ => String::new(),
        };
        let is_new = self.trouble != text;
        self.trouble = text;
        let took = words::duration(*duration_ms);
        let line = Line::whole(4).plain("  ").add(Look::Bad, "model");
        let line = line.plain(&format!("  after {took}: {}", self.trouble));
        (is_new && !self.trouble.is_empty()).then_some(line)
    }

    fn ended(&mut self, at_ms: u64, outcome: &Outcome) -> Vec<Line> {
        let mut lines = self.show_parts();
        lines.extend(self.calls.rest(at_ms));
        let has_answer = matches!(outcome, Outcome::Succeeded { .. });
        if let Some(words) = self.last_words.take().filter(|_| !has_answer) {
            lines.extend(speech(&words));
        }
        let took = at_ms.saturating_sub(self.started_ms.unwrap_or(at_ms));
        lines.extend(over(outcome, took, &self.usage));
        let mut field = |name: &str, value: &str| {
            let line = Line::whole(13).add(Look::Faint, &format!("  {name:<11}"));
            lines.push(line.plain(value));
        };
        if let Some(workspace) = &self.workspace {
            field("workspace", &workspace.to_string_lossy());
        }
        if !self.run.is_empty() {
            let (run, place) = (&self.run, self.place.flags());
            field("look at it", &format!("sympozium show {run}{place}"));
            field("verify it", &format!("sympozium audit verify {run}{place}"));
        }
        lines
    }
}

/// Policies and packs are printed with their origins: a name alone does not tell which object it is.
fn planned(run: &str, agent: &str, model: &str, skills: &[String], origins: &[ResolvedFrom]) -> Vec<Line> {
    let first = Line::cut().add(Look::Strong, run).plain(&format!("  agent {agent}, model {model}"));
    let packs = origin::told(origins, origin::PACK);
    let skills = match skills {
        [] => "no skills: tools of the agent itself only".to_owned(),
        all if packs.is_empty() => format!("skills: {}", all.join(", ")),
        _ => format!("skills: {packs}"),
    };
    let mut lines = vec![first, Line::whole(4).plain("  ").plain(&skills)];
    let policies = origin::told(origins, origin::POLICY);
    if !policies.is_empty() {
        lines.push(Line::whole(4).plain("  policy: ").plain(&policies));
    }
    lines
}

/// The text of the model, truncated. Each line has a prefix, so that it cannot pass for one of ours.
fn speech(text: &str) -> Vec<Line> {
    let end = text.char_indices().nth(SPEECH_CHARACTERS).map_or(text.len(), |(at, _)| at);
    let paragraphs = text[..end].trim().lines().filter(|it| !it.trim().is_empty());
    let mut lines: Vec<Line> = Vec::new();
    let mut is_cut = end < text.len();
    for paragraph in paragraphs {
        if lines.len() == SPEECH_ROWS {
            is_cut = true;
            break;
        }
        let fit = Fit::Wrap { column: 4, lines: SPEECH_ROWS };
        let paragraph = paragraph.trim_end().replace('\t', "    ");
        lines.push(Line::new(fit).add(Look::Faint, "  > ").plain(&paragraph));
    }
    if is_cut {
        lines.push(Line::cut().add(Look::Faint, "  > …"));
    }
    lines
}

fn asked(question: &Question) -> Line {
    let who = match &question.pack {
        Some(pack) => format!("{} in {pack}", question.tool),
        None => question.tool.clone(),
    };
    Line::whole(4).plain("  ").add(Look::Asking, "asks").plain(&format!("  {}: may {who} do this?", question.approval))
}

fn answered(approval: &str, decision: Option<Decision>, by: Option<&str>) -> Line {
    let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
    let (look, what) = match decision {
        Some(Decision::Approved) => (Look::Good, format!("approved{by}")),
        Some(Decision::Denied) => (Look::Bad, format!("denied{by}")),
        Some(Decision::Expired) => (Look::Bad, "expired: nobody answered in time, which means no".to_owned()),
        None => (Look::Plain, "withdrawn: nobody waits for an answer any more".to_owned()),
    };
    let line = Line::whole(4).plain("  ").plain(approval).plain(" ");
    line.add(look, &what)
}

fn waiting(text: &str) -> Line {
    let line = Line::whole(4).plain("  ").add(Look::Faint, "waits");
    line.plain("  ").plain(text)
}

fn warning(text: &str) -> Line {
    Line::whole(2).add(Look::Asking, "warning: ").plain(text)
}

/// How the run ended. The first line of the reason is on the line of the outcome; a hint or the end of a log may
/// follow.
fn over(outcome: &Outcome, took_ms: u64, usage: &Usage) -> Vec<Line> {
    let took = words::duration(took_ms);
    let (look, why) = match outcome {
        Outcome::Succeeded { .. } => (Look::Good, ""),
        Outcome::Failed { why } | Outcome::Refused { why } | Outcome::Denied { why } => (Look::Bad, why.as_str()),
        Outcome::TimedOut => (Look::Bad, "its time was up"),
        Outcome::Cancelled => (Look::Bad, "a person ended it"),
        Outcome::Interrupted => (Look::Bad, "whoever ran it is gone"),
    };
    let mut why = why.lines().take(REASON_LINES);
    let mut first = Line::whole(2).add(look, outcome.word()).plain(&format!(" after {took}"));
    if let Some(why) = why.next() {
        first = first.plain(": ").plain(why);
    }
    let mut lines = vec![first];
    lines.extend(why.map(|line| Line::whole(4).plain("  ").plain(line)));
    let used = Line::whole(13).add(Look::Faint, "  used       ");
    lines.push(used.plain(&words::usage(usage)));
    lines
}
