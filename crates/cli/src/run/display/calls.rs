//! Tool calls: what the bridge recorded, with the arguments from the transcript.
//!
//! Receipts contain hashes instead of arguments, and the transcript, which the agent writes, may come earlier or later.
//! They are matched by the hash. An ended call whose arguments are missing waits a moment, then it is printed without.

use std::collections::{BTreeMap, VecDeque};

use sympozium_api::names::Digest;
use sympozium_api::text::truncate;
use sympozium_ipc::receipt::{CallDecision, Event, Outcome};

use super::humanize::format_duration;
use super::line::{Fit, Line, Style};
use super::transcript_entry;

/// How long an ended call waits for its arguments. The bridge forwards the transcript after a second.
pub const ARGUMENTS_TIMEOUT_MS: u64 = 1_500;
/// Calls that are remembered, of each kind. Beyond that the oldest are printed as they are.
const MAX_CALLS: usize = 1_024;
/// Rows of the reason why a call was not done.
const MAX_REASON_ROWS: usize = 3;
/// The column of the tool's name.
const TOOL_COLUMN: usize = 22;

#[derive(Debug, Default)]
pub struct Calls {
    announced: VecDeque<AnnouncedCall>,
    open: BTreeMap<u64, OpenCall>,
    ended: Vec<EndedCall>,
}

/// A call of the transcript without a matching receipt.
#[derive(Debug)]
struct AnnouncedCall {
    call: transcript_entry::Call,
    /// Whether a receipt says that it was refused. The agent may retry it.
    was_refused: bool,
    /// When the agent reported its end, and the error if it failed.
    ended: Option<(u64, Option<String>)>,
}

#[derive(Debug, Clone)]
struct OpenCall {
    tool: String,
    pack: Option<String>,
    arguments: Digest,
    arguments_text: Option<String>,
    since_ms: u64,
}

#[derive(Debug)]
struct EndedCall {
    call: OpenCall,
    at_ms: u64,
    status: CallStatus,
    duration_ms: Option<u64>,
}

#[derive(Debug)]
struct CallStatus {
    label: String,
    style: Style,
    reason: Option<String>,
}

impl Calls {
    /// Adds a call that the model makes.
    pub fn announce(&mut self, call: transcript_entry::Call) {
        let known = |it: &OpenCall| {
            it.arguments_text.is_none() && it.tool == call.tool && Some(&it.arguments) == call.arguments.as_ref()
        };
        let mut all = self.ended.iter_mut().map(|it| &mut it.call).chain(self.open.values_mut());
        if let Some(found) = all.find(|it| known(it)) {
            found.arguments_text = Some(call.arguments_text);
            return;
        }
        if self.announced.len() == MAX_CALLS {
            self.announced.pop_front();
        }
        self.announced.push_back(AnnouncedCall { call, was_refused: false, ended: None });
    }

    /// Adds the result that the agent reports. Used only for calls that the bridge has no receipt of.
    pub fn add_result(&mut self, at_ms: u64, id: &str, failed: bool, text: String) {
        let mut announced = self.announced.iter_mut();
        if let Some(announced) = announced.find(|it| it.call.id == id && it.ended.is_none()) {
            // A refusal has been printed from the receipt already.
            let why = Some(text).filter(|_| failed && !announced.was_refused);
            announced.ended = Some((at_ms, why));
        }
    }

    /// Adds a receipt of a decision or an action.
    pub fn add_receipt(&mut self, at_ms: u64, event: &Event) {
        match event {
            Event::Called { call, tool, pack, arguments, decided, reason, .. } => {
                let open = OpenCall {
                    tool: tool.clone(),
                    pack: pack.clone(),
                    arguments: arguments.clone(),
                    arguments_text: self.take_arguments(tool, arguments, *decided),
                    since_ms: at_ms,
                };
                match decided {
                    CallDecision::Allowed | CallDecision::Waiting => drop(self.open.insert(*call, open)),
                    no => {
                        let status = CallStatus::from_decision(*no, reason.clone());
                        self.end_call(open, at_ms, status, None);
                    }
                }
            }
            Event::Answered { call, decided, by, .. } if *decided != CallDecision::Allowed => {
                if let Some(open) = self.open.remove(call) {
                    let by = by.as_ref().map(|by| format!("by {by}"));
                    self.end_call(open, at_ms, CallStatus::from_decision(*decided, by), None);
                }
            }
            Event::Acted { call, outcome, duration_ms, .. } => {
                if let Some(open) = self.open.remove(call) {
                    self.end_call(open, at_ms, CallStatus::from_outcome(outcome), Some(*duration_ms));
                }
            }
            _ => {}
        }
        while self.open.len() > MAX_CALLS {
            self.open.pop_first();
        }
    }

    /// Takes the lines that are to be printed now.
    pub fn take_lines(&mut self, now_ms: u64) -> Vec<Line> {
        let mut lines = Vec::new();
        let too_many = self.ended.len().saturating_sub(MAX_CALLS);
        let mut number = 0;
        self.ended.retain(|it| {
            number += 1;
            let is_ready = it.call.arguments_text.is_some()
                || now_ms >= it.at_ms.saturating_add(ARGUMENTS_TIMEOUT_MS)
                || number <= too_many;
            if is_ready {
                lines.extend(it.to_lines());
            }
            !is_ready
        });
        self.announced.retain(|it| {
            let Some((at_ms, why)) = &it.ended else {
                return true;
            };
            let is_ready = now_ms >= at_ms.saturating_add(ARGUMENTS_TIMEOUT_MS);
            if let Some(why) = why.as_ref().filter(|_| is_ready) {
                lines.extend(it.to_lines(why));
            }
            !is_ready
        });
        lines
    }

    /// Takes all lines at the end of the run.
    pub fn take_rest(&mut self, now_ms: u64) -> Vec<Line> {
        for (_, open) in std::mem::take(&mut self.open) {
            let status = CallStatus::from_outcome(&Outcome::Cancelled);
            self.end_call(open, now_ms, status, None);
        }
        self.take_lines(u64::MAX)
    }

    /// When [`Self::take_lines`] will have lines, if nothing happens before.
    pub fn next_lines_ms(&self) -> Option<u64> {
        let ended = self.ended.iter().map(|it| it.at_ms);
        let announced = self.announced.iter().filter_map(|it| Some(it.ended.as_ref()?.0));
        let first = ended.chain(announced).min()?;
        Some(first.saturating_add(ARGUMENTS_TIMEOUT_MS))
    }

    /// The oldest open call as text, and its start in milliseconds since 1970.
    pub fn oldest_open(&self) -> Option<(String, u64)> {
        let open = self.open.values().next()?;
        let shown = open.arguments_text.as_deref().unwrap_or_default();
        let text = format!("{} {shown}", open.name());
        Some((text.trim_end().to_owned(), open.since_ms))
    }

    /// Finds the arguments of a call in the transcript, by their hash.
    fn take_arguments(&mut self, tool: &str, arguments: &Digest, decided: CallDecision) -> Option<String> {
        let known = |it: &AnnouncedCall| it.call.tool == tool && it.call.arguments.as_ref() == Some(arguments);
        let index = self.announced.iter().position(known)?;
        if decided == CallDecision::Refused {
            let announced = &mut self.announced[index];
            announced.was_refused = true;
            return Some(announced.call.arguments_text.clone());
        }
        Some(self.announced.remove(index)?.call.arguments_text)
    }

    fn end_call(&mut self, call: OpenCall, at_ms: u64, status: CallStatus, duration_ms: Option<u64>) {
        self.ended.push(EndedCall { call, at_ms, status, duration_ms });
    }
}

impl OpenCall {
    fn name(&self) -> String {
        match &self.pack {
            Some(pack) => format!("{} in {pack}", self.tool),
            None => self.tool.clone(),
        }
    }
}

impl CallStatus {
    fn from_decision(decided: CallDecision, why: Option<String>) -> Self {
        let word = match decided {
            CallDecision::Denied => "denied",
            CallDecision::Refused => "refused",
            CallDecision::Expired => "expired",
            CallDecision::Allowed | CallDecision::Waiting => "cut off",
        };
        Self::failure(word.to_owned(), why)
    }

    fn from_outcome(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done | Outcome::Exited { code: 0 } => {
                Self { label: "ok".to_owned(), style: Style::Good, reason: None }
            }
            Outcome::Exited { code } => Self::failure(format!("exit {code}"), None),
            Outcome::TimedOut => Self::failure("timed out".to_owned(), None),
            Outcome::Cancelled => Self::failure("cancelled".to_owned(), None),
            Outcome::Failed { why } => Self::failure("failed".to_owned(), Some(why.clone())),
        }
    }

    const fn failure(word: String, why: Option<String>) -> Self {
        Self { label: word, style: Style::Bad, reason: why }
    }
}

impl EndedCall {
    fn to_lines(&self) -> Vec<Line> {
        let took = self.duration_ms.map(format_duration).unwrap_or_default();
        let shown = self.call.arguments_text.as_deref().unwrap_or_default();
        format_call(&self.status, &took, &self.call.name(), shown)
    }
}

impl AnnouncedCall {
    fn to_lines(&self, text: &str) -> Vec<Line> {
        let first = text.lines().find(|it| !it.trim().is_empty());
        let status = CallStatus::failure(
            "refused".to_owned(),
            first.map(|text| truncate(text, transcript_entry::MAX_LINE).into_owned()),
        );
        format_call(&status, "", &self.call.tool, &self.call.arguments_text)
    }
}

/// Our own words come first: no text of a model can displace or imitate them.
fn format_call(status: &CallStatus, took: &str, name: &str, shown: &str) -> Vec<Line> {
    let line = Line::truncated()
        .plain("  ")
        .add(status.style, &format!("{:<9}", status.label))
        .add(Style::Faint, &format!(" {took:>8}  "))
        .add(Style::Strong, name)
        .plain(&format!("  {shown}"));
    let reason = Fit::Wrap { column: TOOL_COLUMN, lines: MAX_REASON_ROWS };
    let why = status.reason.as_ref().map(|why| {
        let indent = " ".repeat(TOOL_COLUMN);
        Line::new(reason).plain(&indent).plain(why)
    });
    std::iter::once(line).chain(why).collect()
}
