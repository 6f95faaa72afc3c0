//! The display of a run: turns events into lines, and one status line.
//!
//! Pure: no clock, no terminal. [`RunDisplay::handle_event`] and [`RunDisplay::tick`] return the lines to print,
//! [`RunDisplay::status_line`] the status line below them. [`screen`](super::screen) writes them.

mod calls;
pub mod humanize;
mod isolation;
pub mod line;
#[cfg(test)]
mod tests;
mod transcript_entry;

use std::collections::BTreeMap;
use std::path::PathBuf;

use sympozium_api::origin::{self, ObjectOrigin};
use sympozium_api::text::truncate;
use sympozium_exec::IsolationReport;
use sympozium_ipc::receipt;
use sympozium_ipc::run_api::{BridgePhase, Decision, Usage};

use calls::Calls;
use line::{Fit, Line, Style};
use sympozium_runs::RunEnd;
use sympozium_runs::TargetFlags;
use sympozium_runs::{Event, Question, TimedEvent};
use transcript_entry::{TranscriptEntry, parse_entry};

/// Rows of one text of the model between its calls. The transcript has the rest.
const MAX_TEXT_ROWS: usize = 12;
/// Characters of it that are examined.
const MAX_TEXT_CHARS: usize = 4_000;
/// Lines of the reason for a run end. The record has the rest.
const MAX_REASON_LINES: usize = 24;

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
pub struct RunDisplay {
    detail: Detail,
    target: TargetFlags,
    run: String,
    workspace: Option<PathBuf>,
    started_ms: Option<u64>,
    phase: Option<BridgePhase>,
    parts: BTreeMap<String, IsolationReport>,
    has_shown_parts: bool,
    calls: Calls,
    /// The last text of the model without a call: it may be the answer of the run.
    last_text: Option<String>,
    progress: String,
    /// The last error of the model.
    model_error: String,
    usage: Usage,
    questions: Vec<Question>,
    is_ending: bool,
    has_ended: bool,
}

impl RunDisplay {
    pub fn new(detail: Detail, target: TargetFlags) -> Self {
        Self {
            detail,
            target,
            run: String::new(),
            workspace: None,
            started_ms: None,
            phase: None,
            parts: BTreeMap::new(),
            has_shown_parts: false,
            calls: Calls::default(),
            last_text: None,
            progress: String::new(),
            model_error: String::new(),
            usage: Usage::default(),
            questions: Vec::new(),
            is_ending: false,
            has_ended: false,
        }
    }

    /// Handles an event, and returns the lines to print.
    pub fn handle_event(&mut self, timed: &TimedEvent) -> Vec<Line> {
        let TimedEvent { at_ms, event } = timed;
        let mut lines = Vec::new();
        let mut needed = Vec::new();
        match event {
            Event::Planned { run, agent, model, skills, origins, workspace, .. } => {
                self.run.clone_from(run);
                self.workspace.clone_from(workspace);
                self.started_ms = Some(*at_ms);
                lines.extend(planned_lines(run, agent, model, skills, origins));
            }
            Event::Starting { text } => {
                self.progress.clone_from(text);
                lines.push(waiting_line(text));
            }
            Event::Isolated { part, report } => {
                self.parts.insert(part.clone(), (**report).clone());
                if self.has_shown_parts {
                    // A sandbox that was built late or again: printed by itself.
                    let alone = BTreeMap::from([(part.clone(), (**report).clone())]);
                    lines.extend(isolation::isolation_lines(&alone));
                }
            }
            Event::Phase { phase } => lines.extend(self.handle_phase(*at_ms, *phase)),
            Event::Progress { text } => self.progress.clone_from(text),
            Event::Receipt { receipt } => {
                lines.extend(self.isolation_lines_once());
                self.calls.add_receipt(*at_ms, &receipt.event);
                lines.extend(self.calls.take_lines(*at_ms));
                lines.extend(self.model_error_line(&receipt.event));
            }
            Event::Transcript { line } => {
                lines.extend(self.isolation_lines_once());
                lines.extend(self.handle_transcript(*at_ms, line));
            }
            Event::Usage { usage } => self.usage = *usage,
            Event::Asked { question } => {
                // The approver must see the isolation before voting.
                lines.extend(self.isolation_lines_once());
                lines.extend(self.calls.take_lines(*at_ms));
                needed.push(question_line(question));
                self.questions.push(question.clone());
            }
            Event::Answered { approval, decision, by } => {
                self.questions.retain(|it| it.approval != *approval);
                needed.push(answer_line(approval, *decision, by.as_deref()));
            }
            Event::Warning { text } => needed.push(warning_line(text)),
            Event::Ended { outcome, usage, leftovers } => {
                self.usage = *usage;
                self.has_ended = true;
                lines.extend(self.end_lines(*at_ms, outcome));
                needed.extend(
                    leftovers.iter().map(|left| warning_line(&format!("not removed at the end of the run: {left}"))),
                );
            }
        }
        match self.detail {
            Detail::All => lines.extend(needed),
            Detail::Needed => lines = needed,
        }
        lines
    }

    /// Returns the lines that are to be printed because time has passed.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Line> {
        let lines = self.calls.take_lines(now_ms);
        match self.detail {
            Detail::All => lines,
            Detail::Needed => Vec::new(),
        }
    }

    /// When [`Self::tick`] will have lines to print, if no event comes before.
    pub fn next_tick_ms(&self) -> Option<u64> {
        self.calls.next_lines_ms()
    }

    /// The pending questions, oldest first.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// The user has asked the run to end.
    pub fn set_ending(&mut self) {
        self.is_ending = true;
    }

    /// The status line. `None` once the run has ended.
    pub fn status_line(&self, now_ms: u64) -> Option<Line> {
        let started_ms = self.started_ms?;
        if self.has_ended {
            return None;
        }
        let (what, since_ms) = self.current_activity(started_ms);
        let elapsed = humanize::format_elapsed(now_ms.saturating_sub(since_ms));
        let mut line = Line::truncated().add(Style::Faint, &format!("{elapsed}  ")).plain(&what);
        let tokens = self.usage.input_tokens + self.usage.output_tokens;
        if tokens > 0 {
            let tokens = humanize::format_count(tokens, "token", "tokens");
            line = line.add(Style::Faint, &format!("  ({tokens})"));
        }
        Some(line)
    }

    fn current_activity(&self, started_ms: u64) -> (String, u64) {
        if self.is_ending {
            return ("ending".to_owned(), started_ms);
        }
        if let Some(question) = self.questions.first() {
            return (format!("waiting for an answer to {}", question.approval), started_ms);
        }
        if let Some(call) = self.calls.oldest_open() {
            return call;
        }
        let what = match self.phase {
            None | Some(BridgePhase::Starting) if self.progress.is_empty() => "starting",
            None | Some(BridgePhase::Starting) => &self.progress,
            Some(BridgePhase::Working | BridgePhase::Waiting) if self.progress.is_empty() => "working",
            Some(BridgePhase::Working | BridgePhase::Waiting) => &self.progress,
            Some(BridgePhase::Ended) => "ending",
        };
        (what.to_owned(), started_ms)
    }

    fn handle_phase(&mut self, at_ms: u64, phase: BridgePhase) -> Vec<Line> {
        if self.phase == Some(phase) {
            return Vec::new();
        }
        let is_first_work = phase == BridgePhase::Working && self.phase != Some(BridgePhase::Waiting);
        if self.phase.is_none_or(|it| it == BridgePhase::Starting) {
            // The start no longer waits for anything.
            self.progress.clear();
        }
        self.phase = Some(phase);
        if !is_first_work {
            return Vec::new();
        }
        let mut lines = self.isolation_lines_once();
        if let Some(started_ms) = self.started_ms {
            let took = humanize::format_duration(at_ms.saturating_sub(started_ms));
            lines.push(Line::truncated().add(Style::Faint, &format!("  started in {took}")));
        }
        lines
    }

    fn isolation_lines_once(&mut self) -> Vec<Line> {
        if self.has_shown_parts || self.parts.is_empty() {
            return Vec::new();
        }
        self.has_shown_parts = true;
        isolation::isolation_lines(&self.parts)
    }

    fn handle_transcript(&mut self, at_ms: u64, line: &serde_json::Value) -> Vec<Line> {
        let mut lines = Vec::new();
        match parse_entry(line) {
            TranscriptEntry::Answer { text, calls } => {
                lines.extend(self.last_text.take().iter().flat_map(|it| model_text_lines(it)));
                match calls.is_empty() {
                    true => self.last_text = text,
                    false => lines.extend(text.iter().flat_map(|it| model_text_lines(it))),
                }
                calls.into_iter().for_each(|call| self.calls.announce(call));
            }
            TranscriptEntry::Result { id, failed, text } => self.calls.add_result(at_ms, &id, failed, text),
            TranscriptEntry::Note(text) => lines.push(
                Line::wrapped(4).add(Style::Faint, "  note: ").plain(&truncate(&text, transcript_entry::MAX_LINE)),
            ),
            TranscriptEntry::Other => {}
        }
        // Arguments may have arrived for calls that have ended.
        lines.extend(self.calls.take_lines(at_ms));
        lines
    }

    /// The error of a model request. The agent retries: the same error is printed once.
    fn model_error_line(&mut self, event: &receipt::Event) -> Option<Line> {
        let receipt::Event::Model { status, error, duration_ms, .. } = event else {
            return None;
        };
        let text = match (status, error) {
            (Some(status), Some(error)) => format!("the model answered {status}: {error}"),
            (None, Some(error)) => format!("the model did not answer: {error}"),
            (Some(status), None) if *status >= 400 => format!("the model answered {status}"),
            _ => String::new(),
        };
        let is_new = self.model_error != text;
        self.model_error = text;
        let took = humanize::format_duration(*duration_ms);
        let line = Line::wrapped(4).plain("  ").add(Style::Bad, "model");
        let line = line.plain(&format!("  after {took}: {}", self.model_error));
        (is_new && !self.model_error.is_empty()).then_some(line)
    }

    fn end_lines(&mut self, at_ms: u64, outcome: &RunEnd) -> Vec<Line> {
        let mut lines = self.isolation_lines_once();
        lines.extend(self.calls.take_rest(at_ms));
        let has_answer = matches!(outcome, RunEnd::Succeeded { .. });
        if let Some(text) = self.last_text.take().filter(|_| !has_answer) {
            lines.extend(model_text_lines(&text));
        }
        let took = at_ms.saturating_sub(self.started_ms.unwrap_or(at_ms));
        lines.extend(run_end_lines(outcome, took, &self.usage));
        let mut field = |name: &str, value: &str| {
            let line = Line::wrapped(13).add(Style::Faint, &format!("  {name:<11}"));
            lines.push(line.plain(value));
        };
        if let Some(workspace) = &self.workspace {
            field("workspace", &workspace.to_string_lossy());
        }
        if !self.run.is_empty() {
            let (run, target) = (&self.run, self.target.as_str());
            field("look at it", &format!("sympozium show {run}{target}"));
            field("verify it", &format!("sympozium audit verify {run}{target}"));
        }
        lines
    }
}

/// Policies and packs are printed with their origins: a name alone does not tell which object it is.
fn planned_lines(run: &str, agent: &str, model: &str, skills: &[String], origins: &[ObjectOrigin]) -> Vec<Line> {
    let first = Line::truncated().add(Style::Strong, run).plain(&format!("  agent {agent}, model {model}"));
    let packs = origin::format_origins(origins, origin::PACK_KIND);
    let skills = match skills {
        [] => "no skills: tools of the agent itself only".to_owned(),
        all if packs.is_empty() => format!("skills: {}", all.join(", ")),
        _ => format!("skills: {packs}"),
    };
    let mut lines = vec![first, Line::wrapped(4).plain("  ").plain(&skills)];
    let policies = origin::format_origins(origins, origin::POLICY_KIND);
    if !policies.is_empty() {
        lines.push(Line::wrapped(4).plain("  policy: ").plain(&policies));
    }
    lines
}

/// The text of the model, truncated. Each line has a prefix, so that it cannot pass for one of ours.
fn model_text_lines(text: &str) -> Vec<Line> {
    let end = text.char_indices().nth(MAX_TEXT_CHARS).map_or(text.len(), |(at, _)| at);
    let paragraphs = text[..end].trim().lines().filter(|it| !it.trim().is_empty());
    let mut lines: Vec<Line> = Vec::new();
    let mut is_cut = end < text.len();
    for paragraph in paragraphs {
        if lines.len() == MAX_TEXT_ROWS {
            is_cut = true;
            break;
        }
        let fit = Fit::Wrap { column: 4, lines: MAX_TEXT_ROWS };
        let paragraph = paragraph.trim_end().replace('\t', "    ");
        lines.push(Line::new(fit).add(Style::Faint, "  > ").plain(&paragraph));
    }
    if is_cut {
        lines.push(Line::truncated().add(Style::Faint, "  > …"));
    }
    lines
}

fn question_line(question: &Question) -> Line {
    let tool = match &question.pack {
        Some(pack) => format!("{} in {pack}", question.tool),
        None => question.tool.clone(),
    };
    Line::wrapped(4)
        .plain("  ")
        .add(Style::Attention, "asks")
        .plain(&format!("  {}: may {tool} do this?", question.approval))
}

fn answer_line(approval: &str, decision: Option<Decision>, by: Option<&str>) -> Line {
    let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
    let (style, text) = match decision {
        Some(Decision::Approved) => (Style::Good, format!("approved{by}")),
        Some(Decision::Denied) => (Style::Bad, format!("denied{by}")),
        Some(Decision::Expired) => (Style::Bad, "expired: not answered in time, which counts as denied".to_owned()),
        None => (Style::Plain, "withdrawn: no answer is needed any more".to_owned()),
    };
    let line = Line::wrapped(4).plain("  ").plain(approval).plain(" ");
    line.add(style, &text)
}

fn waiting_line(text: &str) -> Line {
    let line = Line::wrapped(4).plain("  ").add(Style::Faint, "waits");
    line.plain("  ").plain(text)
}

fn warning_line(text: &str) -> Line {
    Line::wrapped(2).add(Style::Attention, "warning: ").plain(text)
}

/// How the run ended. The first line of the reason is on the line of the outcome; a hint or the end of a log may
/// follow.
fn run_end_lines(outcome: &RunEnd, took_ms: u64, usage: &Usage) -> Vec<Line> {
    let took = humanize::format_duration(took_ms);
    let (style, why) = match outcome {
        RunEnd::Succeeded { .. } => (Style::Good, ""),
        RunEnd::Failed { why } | RunEnd::Refused { why } | RunEnd::Denied { why } => (Style::Bad, why.as_str()),
        RunEnd::TimedOut => (Style::Bad, "its deadline has passed"),
        RunEnd::Cancelled => (Style::Bad, "a user ended it"),
        RunEnd::Interrupted => (Style::Bad, "the process that realised it has ended"),
    };
    let mut why = why.lines().take(MAX_REASON_LINES);
    let mut first = Line::wrapped(2).add(style, outcome.as_str()).plain(&format!(" after {took}"));
    if let Some(why) = why.next() {
        first = first.plain(": ").plain(why);
    }
    let mut lines = vec![first];
    lines.extend(why.map(|line| Line::wrapped(4).plain("  ").plain(line)));
    let used = Line::wrapped(13).add(Style::Faint, "  used       ");
    lines.push(used.plain(&humanize::format_usage(usage)));
    lines
}
