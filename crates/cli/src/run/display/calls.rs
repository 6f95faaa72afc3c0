//! Tool calls: what the bridge recorded, with the arguments from the transcript.
//!
//! Receipts contain hashes instead of arguments, and the transcript, which the agent writes, may come earlier or later.
//! They are matched by the hash. An ended call whose arguments are missing waits a moment, then it is printed without.

use std::collections::{BTreeMap, VecDeque};

use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Decided, Event, Outcome};

use super::line::{Fit, Line, Look};
use super::wire::{self, shortened};
use super::words::duration;

/// How long an ended call waits for its arguments. The bridge forwards the transcript after a second.
pub const PATIENCE_MS: u64 = 1_500;
/// Calls that are kept, of each kind. Beyond that the oldest are printed as they are.
const MAX_REMEMBERED: usize = 1_024;
/// Rows of the reason why a call was not done.
const REASON_ROWS: usize = 3;
/// The column of the tool's name.
const COLUMN: usize = 22;

#[derive(Debug, Default)]
pub struct Calls {
    said: VecDeque<Said>,
    open: BTreeMap<u64, Open>,
    ended: Vec<Ended>,
}

/// A call of the transcript without a matching receipt.
#[derive(Debug)]
struct Said {
    call: wire::Call,
    /// Whether a receipt says that it was refused. The agent may retry it.
    was_refused: bool,
    /// When the agent reported its end, and the error if it failed.
    ended: Option<(u64, Option<String>)>,
}

#[derive(Debug, Clone)]
struct Open {
    tool: String,
    pack: Option<String>,
    arguments: Digest,
    shown: Option<String>,
    since_ms: u64,
}

#[derive(Debug)]
struct Ended {
    call: Open,
    at_ms: u64,
    how: How,
    duration_ms: Option<u64>,
}

#[derive(Debug)]
struct How {
    word: String,
    look: Look,
    why: Option<String>,
}

impl Calls {
    /// Adds a call that the model makes.
    pub fn said(&mut self, call: wire::Call) {
        let known =
            |it: &Open| it.shown.is_none() && it.tool == call.tool && Some(&it.arguments) == call.arguments.as_ref();
        let mut all = self.ended.iter_mut().map(|it| &mut it.call).chain(self.open.values_mut());
        if let Some(found) = all.find(|it| known(it)) {
            found.shown = Some(call.shown);
            return;
        }
        if self.said.len() == MAX_REMEMBERED {
            self.said.pop_front();
        }
        self.said.push_back(Said { call, was_refused: false, ended: None });
    }

    /// Adds the result that the agent reports. Used only for calls that the bridge has no receipt of.
    pub fn result(&mut self, at_ms: u64, id: &str, failed: bool, text: String) {
        let mut said = self.said.iter_mut();
        if let Some(said) = said.find(|it| it.call.id == id && it.ended.is_none()) {
            // A refusal has been printed from the receipt already.
            let why = Some(text).filter(|_| failed && !said.was_refused);
            said.ended = Some((at_ms, why));
        }
    }

    /// Adds a receipt of a decision or an action.
    pub fn receipt(&mut self, at_ms: u64, event: &Event) {
        match event {
            Event::Called { call, tool, pack, arguments, decided, reason, .. } => {
                let open = Open {
                    tool: tool.clone(),
                    pack: pack.clone(),
                    arguments: arguments.clone(),
                    shown: self.arguments(tool, arguments, *decided),
                    since_ms: at_ms,
                };
                match decided {
                    Decided::Allowed | Decided::Waiting => drop(self.open.insert(*call, open)),
                    no => {
                        let how = How::decided(*no, reason.clone());
                        self.end(open, at_ms, how, None);
                    }
                }
            }
            Event::Answered { call, decided, by, .. } if *decided != Decided::Allowed => {
                if let Some(open) = self.open.remove(call) {
                    let by = by.as_ref().map(|by| format!("by {by}"));
                    self.end(open, at_ms, How::decided(*decided, by), None);
                }
            }
            Event::Acted { call, outcome, duration_ms, .. } => {
                if let Some(open) = self.open.remove(call) {
                    self.end(open, at_ms, How::outcome(outcome), Some(*duration_ms));
                }
            }
            _ => {}
        }
        while self.open.len() > MAX_REMEMBERED {
            self.open.pop_first();
        }
    }

    /// Takes the lines that are due.
    pub fn lines(&mut self, now_ms: u64) -> Vec<Line> {
        let mut lines = Vec::new();
        let too_many = self.ended.len().saturating_sub(MAX_REMEMBERED);
        let mut number = 0;
        self.ended.retain(|it| {
            number += 1;
            let is_due =
                it.call.shown.is_some() || now_ms >= it.at_ms.saturating_add(PATIENCE_MS) || number <= too_many;
            if is_due {
                lines.extend(it.lines());
            }
            !is_due
        });
        self.said.retain(|it| {
            let Some((at_ms, why)) = &it.ended else {
                return true;
            };
            let is_due = now_ms >= at_ms.saturating_add(PATIENCE_MS);
            if let Some(why) = why.as_ref().filter(|_| is_due) {
                lines.extend(it.lines(why));
            }
            !is_due
        });
        lines
    }

    /// Takes all lines at the end of the run.
    pub fn rest(&mut self, now_ms: u64) -> Vec<Line> {
        for (_, open) in std::mem::take(&mut self.open) {
            let how = How::outcome(&Outcome::Cancelled);
            self.end(open, now_ms, how, None);
        }
        self.lines(u64::MAX)
    }

    /// When [`Self::lines`] will have lines, if nothing happens before.
    pub fn due_ms(&self) -> Option<u64> {
        let ended = self.ended.iter().map(|it| it.at_ms);
        let said = self.said.iter().filter_map(|it| Some(it.ended.as_ref()?.0));
        let first = ended.chain(said).min()?;
        Some(first.saturating_add(PATIENCE_MS))
    }

    /// The oldest open call as text, and its start in milliseconds since 1970.
    pub fn going_on(&self) -> Option<(String, u64)> {
        let open = self.open.values().next()?;
        let shown = open.shown.as_deref().unwrap_or_default();
        let text = format!("{} {shown}", open.name());
        Some((text.trim_end().to_owned(), open.since_ms))
    }

    /// Finds the arguments of a call in the transcript, by their hash.
    fn arguments(&mut self, tool: &str, arguments: &Digest, decided: Decided) -> Option<String> {
        let known = |it: &Said| it.call.tool == tool && it.call.arguments.as_ref() == Some(arguments);
        let place = self.said.iter().position(known)?;
        if decided == Decided::Refused {
            let said = &mut self.said[place];
            said.was_refused = true;
            return Some(said.call.shown.clone());
        }
        Some(self.said.remove(place)?.call.shown)
    }

    fn end(&mut self, call: Open, at_ms: u64, how: How, duration_ms: Option<u64>) {
        self.ended.push(Ended { call, at_ms, how, duration_ms });
    }
}

impl Open {
    fn name(&self) -> String {
        match &self.pack {
            Some(pack) => format!("{} in {pack}", self.tool),
            None => self.tool.clone(),
        }
    }
}

impl How {
    fn decided(decided: Decided, why: Option<String>) -> Self {
        let word = match decided {
            Decided::Denied => "denied",
            Decided::Refused => "refused",
            Decided::Expired => "expired",
            Decided::Allowed | Decided::Waiting => "cut off",
        };
        Self::bad(word.to_owned(), why)
    }

    fn outcome(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done | Outcome::Exited { code: 0 } => Self { word: "ok".to_owned(), look: Look::Good, why: None },
            Outcome::Exited { code } => Self::bad(format!("exit {code}"), None),
            Outcome::TimedOut => Self::bad("timed out".to_owned(), None),
            Outcome::Cancelled => Self::bad("cancelled".to_owned(), None),
            Outcome::Failed { why } => Self::bad("failed".to_owned(), Some(why.clone())),
        }
    }

    const fn bad(word: String, why: Option<String>) -> Self {
        Self { word, look: Look::Bad, why }
    }
}

impl Ended {
    fn lines(&self) -> Vec<Line> {
        let took = self.duration_ms.map(duration).unwrap_or_default();
        let shown = self.call.shown.as_deref().unwrap_or_default();
        lines(&self.how, &took, &self.call.name(), shown)
    }
}

impl Said {
    fn lines(&self, text: &str) -> Vec<Line> {
        let first = text.lines().find(|it| !it.trim().is_empty());
        let how = How::bad("refused".to_owned(), first.map(shortened));
        lines(&how, "", &self.call.tool, &self.call.shown)
    }
}

/// Our own words come first: no text of a model can push them away or take their place.
fn lines(how: &How, took: &str, name: &str, shown: &str) -> Vec<Line> {
    let line = Line::cut()
        .plain("  ")
        .add(how.look, &format!("{:<9}", how.word))
        .add(Look::Faint, &format!(" {took:>8}  "))
        .add(Look::Strong, name)
        .plain(&format!("  {shown}"));
    let reason = Fit::Wrap { column: COLUMN, lines: REASON_ROWS };
    let why = how.why.as_ref().map(|why| {
        let indent = " ".repeat(COLUMN);
        Line::new(reason).plain(&indent).plain(why)
    });
    std::iter::once(line).chain(why).collect()
}
