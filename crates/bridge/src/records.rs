//! What leaves the run: receipts in their chain, the transcript, progress, how it ended. Kept here until a report has taken
//! it out.
//!
//! Nothing happens without a receipt, and a receipt that cannot leave is kept; so where nobody takes reports, calls wait
//! for [room](Records::room).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Chain, Event};
use sympozium_ipc::run_api::{
    Ending, MAX_RECEIPTS, MAX_REQUEST, MAX_TRANSCRIPT, MAX_TRANSCRIPT_LINE, Phase, Report, Usage,
};
use tokio::sync::Notify;

/// Receipts that may wait to leave before calls do. Those of calls that are under way come on top.
pub const MAX_WAITING_RECEIPTS: usize = 512;
/// Bytes of the transcript that may wait to leave. More is dropped, and said so: it is the agent's own word, no receipt.
pub const MAX_WAITING_TRANSCRIPT: usize = 2 * MAX_TRANSCRIPT;
/// What keeping a line costs besides its bytes: many short ones are no way to more memory.
const LINE_COST: usize = 64;
/// Bytes of a report as it is sent, without what is neither receipt nor transcript nor how the run ended.
const MAX_WRITTEN: usize = MAX_REQUEST - (16 << 10);

/// What has happened, and has not left yet.
#[derive(Debug)]
pub struct Records {
    state: Mutex<State>,
    /// There is something to report.
    news: Notify,
    /// Something has left.
    left: Notify,
}

#[derive(Debug)]
struct State {
    chain: Chain,
    receipts: VecDeque<String>,
    /// How many receipts have left.
    taken: u64,
    transcript: VecDeque<String>,
    transcript_waiting: usize,
    transcript_left: u64,
    progress: Option<String>,
    phase: Phase,
    ending: Option<Ending>,
    /// The report that has been sent and not been answered yet.
    sent: Option<Report>,
    next_report: u64,
    changed: bool,
    closed: bool,
}

/// How much it presses to report something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressing {
    /// The run is over, or a report was not answered.
    Now,
    /// There are receipts.
    Soon,
    /// There is nothing but what the agent says.
    Later,
}

/// What became of a piece of the transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// All of it is kept.
    All,
    /// There is no room for it until some of what was said before has left.
    Later,
    /// There is no room for it.
    Nothing,
}

impl Records {
    /// Of a run with this plan, of whose transcript so many bytes are kept.
    pub fn new(plan: Digest, transcript_bytes: u64) -> Self {
        Self {
            state: Mutex::new(State {
                chain: Chain::new(plan),
                receipts: VecDeque::new(),
                taken: 0,
                transcript: VecDeque::new(),
                transcript_waiting: 0,
                transcript_left: transcript_bytes,
                progress: None,
                phase: Phase::Starting,
                ending: None,
                sent: None,
                next_report: 0,
                changed: false,
                closed: false,
            }),
            news: Notify::new(),
            left: Notify::new(),
        }
    }

    /// Adds a receipt.
    pub fn add(&self, event: Event) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_ms = now.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        let mut state = self.state();
        if state.ending.is_some() {
            tracing::warn!("something ended after the run did, and is in no receipt");
            return;
        }
        match state.chain.add(at_ms, event) {
            Ok(line) => {
                state.receipts.push_back(line.text);
                self.tell(state);
            }
            // A chain takes every event, so that this cannot be. If it is, nothing more is recorded, and so nothing more
            // happens.
            Err(error) => {
                tracing::error!(%error, "a receipt could not be written");
                state.closed = true;
                drop(state);
                self.left.notify_waiters();
            }
        }
    }

    /// Waits until another call may be recorded. `false` when none will be any more.
    pub async fn room(&self) -> bool {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            {
                let state = self.state();
                if state.closed || state.ending.is_some() {
                    return false;
                }
                if state.receipts.len() < MAX_WAITING_RECEIPTS {
                    return true;
                }
            }
            left.await;
        }
    }

    /// Keeps lines of the transcript, all of them or none.
    pub fn transcript<'l>(&self, lines: impl Iterator<Item = &'l str>) -> Kept {
        let lines: Vec<&str> = lines.collect();
        let bytes: usize = lines.iter().map(|line| line.len()).sum();
        let cost = bytes + lines.len() * LINE_COST;
        let mut state = self.state();
        let fits = lines.iter().all(|line| line.len() <= MAX_TRANSCRIPT_LINE)
            && cost <= MAX_WAITING_TRANSCRIPT
            && bytes as u64 <= state.transcript_left;
        if !fits {
            return Kept::Nothing;
        }
        if state.transcript_waiting + cost > MAX_WAITING_TRANSCRIPT {
            return Kept::Later;
        }
        state.transcript_waiting += cost;
        state.transcript_left -= bytes as u64;
        state.transcript.extend(lines.into_iter().map(str::to_owned));
        self.tell(state);
        Kept::All
    }

    /// Says what the agent is doing.
    pub fn progress(&self, text: String) {
        let mut state = self.state();
        state.progress = Some(text);
        self.tell(state);
    }

    /// Says what the run is doing. What has ended stays so.
    pub fn phase(&self, phase: Phase) {
        let mut state = self.state();
        if state.ending.is_none() {
            state.phase = phase;
            self.tell(state);
        }
    }

    /// The run is over. Nothing is recorded after it.
    pub fn end(&self, event: Event, ending: Ending) {
        self.add(event);
        let mut state = self.state();
        state.phase = Phase::Ended;
        state.ending = Some(ending);
        self.tell(state);
        self.left.notify_waiters();
    }

    /// The next report: the one that was sent and not answered, or what has happened since. `None` when there is nothing to say.
    /// `usage` is what has been used so far.
    pub fn next_report(&self, usage: impl FnOnce() -> Usage) -> Option<Report> {
        let mut state = self.state();
        if let Some(sent) = &state.sent {
            return Some(sent.clone());
        }
        if !state.changed {
            return None;
        }
        // A report that is too large is refused, and with it all that comes after: the agent's words are measured as they
        // are written.
        let mut left = MAX_WRITTEN;
        let mut receipts = Vec::new();
        for line in state.receipts.iter().take(MAX_RECEIPTS) {
            match left.checked_sub(written(line)) {
                Some(rest) => left = rest,
                None => break,
            }
            receipts.push(line.clone());
        }
        let all_receipts = receipts.len() == state.receipts.len();
        let mut transcript = Vec::new();
        let mut bytes = 0;
        while let Some(line) = state.transcript.front()
            && bytes + line.len() <= MAX_TRANSCRIPT
            && let Some(rest) = left.checked_sub(written(line))
        {
            left = rest;
            bytes += line.len();
            state.transcript_waiting -= line.len() + LINE_COST;
            transcript.extend(state.transcript.pop_front());
        }
        let ending_fits = state.ending.as_ref().is_none_or(|it| ending_written(it) <= left);
        // Alone it always goes: an answer has bounds of its own.
        let is_alone = receipts.is_empty() && transcript.is_empty();
        let all = all_receipts && state.transcript.is_empty() && (ending_fits || is_alone);
        // Only what covers everything is the end; only the last receipt's hash is known here, the others are in the lines.
        let head = match receipts.last() {
            Some(last) if !all_receipts => Chain::hash_of(last),
            _ => state.chain.head().clone(),
        };
        let ending = if all { state.ending.clone() } else { None };
        let phase = match (state.phase, &ending) {
            (Phase::Ended, None) => Phase::Working,
            (phase, _) => phase,
        };
        let report = Report {
            number: state.next_report,
            phase,
            first_receipt: state.taken,
            receipts,
            head,
            progress: state.progress.take(),
            transcript,
            usage: usage(),
            ending,
        };
        state.changed = !all;
        state.next_report += 1;
        state.sent = Some(report.clone());
        Some(report)
    }

    /// How much it presses to report what there is. `None` when there is nothing.
    pub fn pressing(&self) -> Option<Pressing> {
        let state = self.state();
        if state.sent.is_some() || state.ending.is_some() {
            return Some(Pressing::Now).filter(|_| state.sent.is_some() || state.changed);
        }
        match (state.changed, state.receipts.is_empty()) {
            (false, _) => None,
            (true, false) => Some(Pressing::Soon),
            (true, true) => Some(Pressing::Later),
        }
    }

    /// The report that was sent has been taken. Says whether it was the last.
    pub fn taken(&self) -> bool {
        let mut state = self.state();
        let Some(sent) = state.sent.take() else {
            return false;
        };
        let count = sent.receipts.len();
        state.receipts.drain(..count);
        state.taken += count as u64;
        self.left.notify_waiters();
        sent.ending.is_some()
    }

    /// Waits until there may be something to report.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// The hash that covers everything so far.
    pub fn head(&self) -> Digest {
        self.state().chain.head().clone()
    }

    fn tell(&self, mut state: MutexGuard<'_, State>) {
        state.changed = true;
        drop(state);
        self.news.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a text in JSON, with its quotes and what separates it from the next.
fn written(text: &str) -> usize {
    let of = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(of).sum::<usize>() + 3
}

fn ending_written(ending: &Ending) -> usize {
    match ending {
        Ending::Answered { text } => written(text),
        Ending::Failed { error } => written(error),
        Ending::Crashed { known } => written(known),
        Ending::NeverCame | Ending::TimedOut | Ending::Stopped => 0,
    }
}

#[cfg(test)]
mod tests;
