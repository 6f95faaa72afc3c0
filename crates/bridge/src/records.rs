//! The records of the run: receipts in their chain, the transcript, progress, the run end. They are stored here until a
//! report has delivered them.
//!
//! Nothing happens without a receipt, and a receipt that cannot be delivered is stored; so if the gateway takes no
//! reports, calls wait for room.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Chain, Event};
use sympozium_ipc::run_api::{
    Ending, MAX_RECEIPTS, MAX_REQUEST, MAX_TRANSCRIPT, MAX_TRANSCRIPT_LINE, Phase, Report, Usage,
};
use tokio::sync::Notify;

/// Maximum number of undelivered receipts before calls wait. Receipts of running calls may exceed it.
pub const MAX_WAITING_RECEIPTS: usize = 512;
/// Maximum number of undelivered bytes of the transcript. More is refused: the transcript is the agent's own statement,
/// not a receipt.
pub const MAX_WAITING_TRANSCRIPT: usize = 2 * MAX_TRANSCRIPT;
/// Memory per line besides its bytes: many short lines must not use more memory.
const LINE_COST: usize = 64;
/// Maximum number of bytes of receipts, transcript and run end in a report; the rest is for its other fields.
const MAX_WRITTEN: usize = MAX_REQUEST - (16 << 10);

/// Records that have not been delivered yet.
#[derive(Debug)]
pub struct Records {
    state: Mutex<State>,
    /// Signals that there is something to report.
    news: Notify,
    /// Signals that a report was delivered.
    left: Notify,
}

#[derive(Debug)]
struct State {
    chain: Chain,
    receipts: VecDeque<String>,
    /// Number of delivered receipts.
    taken: u64,
    transcript: VecDeque<String>,
    transcript_waiting: usize,
    transcript_left: u64,
    progress: Option<String>,
    phase: Phase,
    ending: Option<Ending>,
    /// The report that was sent and not answered yet.
    sent: Option<Report>,
    next_report: u64,
    changed: bool,
    closed: bool,
}

/// How urgent a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressing {
    /// The run has ended, or a report was not answered.
    Now,
    /// There are receipts.
    Soon,
    /// There are only transcript and progress.
    Later,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    All,
    /// There is no room until earlier lines have been delivered.
    Later,
    /// There will never be room.
    Nothing,
}

impl Records {
    /// `transcript_bytes` limits the whole transcript of the run.
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
            // A chain accepts every event, so this cannot happen. If it does, nothing more is recorded, and so nothing
            // more happens.
            Err(error) => {
                tracing::error!(%error, "a receipt could not be written");
                state.closed = true;
                drop(state);
                self.left.notify_waiters();
            }
        }
    }

    /// Waits until there is room for the receipts of another call. `false` if there will never be.
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

    /// Stores lines of the transcript, all of them or none.
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

    /// Sets the agent's progress message.
    pub fn progress(&self, text: String) {
        let mut state = self.state();
        state.progress = Some(text);
        self.tell(state);
    }

    /// Sets the phase of the run. After the run end it does not change.
    pub fn phase(&self, phase: Phase) {
        let mut state = self.state();
        if state.ending.is_none() {
            state.phase = phase;
            self.tell(state);
        }
    }

    /// Records the run end. Nothing is recorded after it.
    pub fn end(&self, event: Event, ending: Ending) {
        self.add(event);
        let mut state = self.state();
        state.phase = Phase::Ended;
        state.ending = Some(ending);
        self.tell(state);
        self.left.notify_waiters();
    }

    /// The next report: the one that was sent and not answered, or what has happened since. `None` if there is nothing
    /// to report. `usage` returns the usage so far.
    pub fn next_report(&self, usage: impl FnOnce() -> Usage) -> Option<Report> {
        let mut state = self.state();
        if let Some(sent) = &state.sent {
            return Some(sent.clone());
        }
        if !state.changed {
            return None;
        }
        // A report that is too large is refused, and all that follow: so the size of foreign text is measured as
        // escaped JSON.
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
        // Alone it always fits: an answer has a limit of its own.
        let is_alone = receipts.is_empty() && transcript.is_empty();
        let all = all_receipts && state.transcript.is_empty() && (ending_fits || is_alone);
        // Only a report that covers everything has the run end. The chain only knows the hash of the last receipt, the
        // others are in the lines.
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

    /// How urgent a report is. `None` if there is nothing to report.
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

    /// Removes what the last report delivered. Returns whether that was the end of the run.
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

/// Bytes of a text in JSON, including its quotes and a comma.
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
