//! The records of the run: receipts in their chain, the transcript, progress, the run end. They are stored here until a
//! report has delivered them.
//!
//! Nothing happens without a receipt, and a receipt that cannot be delivered is stored; so if the gateway takes no
//! reports, calls wait for room.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Chain, Event};
use sympozium_ipc::run_api::{
    AgentEnd, BridgePhase, MAX_RECEIPTS, MAX_REQUEST, MAX_TRANSCRIPT, MAX_TRANSCRIPT_LINE, Report, Usage,
};
use tokio::sync::Notify;

/// Maximum number of undelivered receipts before calls wait. Receipts of running calls may exceed it.
pub const MAX_PENDING_RECEIPTS: usize = 512;
/// Maximum number of undelivered bytes of the transcript. More is refused: the transcript is the agent's own statement,
/// not a receipt.
pub const MAX_PENDING_TRANSCRIPT: usize = 2 * MAX_TRANSCRIPT;
/// Memory per line besides its bytes: many short lines must not use more memory.
const LINE_OVERHEAD: usize = 64;
/// Maximum number of bytes of receipts, transcript and run end in a report; the rest is for its other fields.
const MAX_CONTENT_BYTES: usize = MAX_REQUEST - (16 << 10);

/// Records that have not been delivered yet.
#[derive(Debug)]
pub struct Records {
    state: Mutex<State>,
    /// Signals that there is something to report.
    added: Notify,
    /// Signals that a report was delivered.
    delivered: Notify,
}

#[derive(Debug)]
struct State {
    chain: Chain,
    receipts: VecDeque<String>,
    /// Number of delivered receipts.
    delivered_receipts: u64,
    transcript: VecDeque<String>,
    transcript_pending: usize,
    transcript_budget: u64,
    progress: Option<String>,
    phase: BridgePhase,
    agent_end: Option<AgentEnd>,
    /// The report that was sent and not answered yet.
    sent: Option<Report>,
    next_report: u64,
    changed: bool,
    closed: bool,
}

/// How urgent a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// The run has ended, or a report was not answered.
    Now,
    /// There are receipts.
    Soon,
    /// There are only transcript and progress.
    Later,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranscriptOutcome {
    Stored,
    /// There is no room until earlier lines have been delivered.
    Full,
    /// There will never be room.
    TooLarge,
}

impl Records {
    /// `transcript_bytes` limits the whole transcript of the run.
    pub fn new(plan: Digest, transcript_bytes: u64) -> Self {
        Self {
            state: Mutex::new(State {
                chain: Chain::new(plan),
                receipts: VecDeque::new(),
                delivered_receipts: 0,
                transcript: VecDeque::new(),
                transcript_pending: 0,
                transcript_budget: transcript_bytes,
                progress: None,
                phase: BridgePhase::Starting,
                agent_end: None,
                sent: None,
                next_report: 0,
                changed: false,
                closed: false,
            }),
            added: Notify::new(),
            delivered: Notify::new(),
        }
    }

    pub fn add(&self, event: Event) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_ms = now.map_or(0, |since_epoch| u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX));
        let mut state = self.state.lock();
        if state.agent_end.is_some() {
            tracing::warn!("something ended after the run did, and is in no receipt");
            return;
        }
        match state.chain.add(at_ms, event) {
            Ok(line) => {
                state.receipts.push_back(line.text);
                self.notify(state);
            }
            // A chain accepts every event, so this cannot happen. If it does, nothing more is recorded, and so nothing
            // more happens.
            Err(error) => {
                tracing::error!(%error, "a receipt could not be written");
                state.closed = true;
                drop(state);
                self.delivered.notify_waiters();
            }
        }
    }

    /// Waits until there is room for the receipts of another call. `false` if there will never be.
    pub async fn wait_for_room(&self) -> bool {
        loop {
            let left = self.delivered.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            {
                let state = self.state.lock();
                if state.closed || state.agent_end.is_some() {
                    return false;
                }
                if state.receipts.len() < MAX_PENDING_RECEIPTS {
                    return true;
                }
            }
            left.await;
        }
    }

    /// Stores lines of the transcript, all of them or none.
    pub fn add_transcript<'l>(&self, lines: impl Iterator<Item = &'l str>) -> TranscriptOutcome {
        let lines: Vec<&str> = lines.collect();
        let bytes: usize = lines.iter().map(|line| line.len()).sum();
        let cost = bytes + lines.len() * LINE_OVERHEAD;
        let mut state = self.state.lock();
        let fits = lines.iter().all(|line| line.len() <= MAX_TRANSCRIPT_LINE)
            && cost <= MAX_PENDING_TRANSCRIPT
            && bytes as u64 <= state.transcript_budget;
        if !fits {
            return TranscriptOutcome::TooLarge;
        }
        if state.transcript_pending + cost > MAX_PENDING_TRANSCRIPT {
            return TranscriptOutcome::Full;
        }
        state.transcript_pending += cost;
        state.transcript_budget -= bytes as u64;
        state.transcript.extend(lines.into_iter().map(str::to_owned));
        self.notify(state);
        TranscriptOutcome::Stored
    }

    /// Sets the agent's progress message.
    pub fn set_progress(&self, text: String) {
        let mut state = self.state.lock();
        state.progress = Some(text);
        self.notify(state);
    }

    /// Sets the phase of the run. After the run end it does not change.
    pub fn set_phase(&self, phase: BridgePhase) {
        let mut state = self.state.lock();
        if state.agent_end.is_none() {
            state.phase = phase;
            self.notify(state);
        }
    }

    /// Records the run end. Nothing is recorded after it.
    pub fn finish(&self, event: Event, ending: AgentEnd) {
        self.add(event);
        let mut state = self.state.lock();
        state.phase = BridgePhase::Ended;
        state.agent_end = Some(ending);
        self.notify(state);
        self.delivered.notify_waiters();
    }

    /// The next report: the one that was sent and not answered, or what has happened since. `None` if there is nothing
    /// to report. `usage` returns the usage so far.
    pub fn next_report(&self, usage: impl FnOnce() -> Usage) -> Option<Report> {
        let mut state = self.state.lock();
        if let Some(sent) = &state.sent {
            return Some(sent.clone());
        }
        if !state.changed {
            return None;
        }
        // A report that is too large is refused, and all that follow: so the size of foreign text is measured as
        // escaped JSON.
        let mut left = MAX_CONTENT_BYTES;
        let mut receipts = Vec::new();
        for line in state.receipts.iter().take(MAX_RECEIPTS) {
            match left.checked_sub(json_length(line)) {
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
            && let Some(rest) = left.checked_sub(json_length(line))
        {
            left = rest;
            bytes += line.len();
            state.transcript_pending -= line.len() + LINE_OVERHEAD;
            transcript.extend(state.transcript.pop_front());
        }
        let ending_fits = state.agent_end.as_ref().is_none_or(|agent_end| agent_end_length(agent_end) <= left);
        // Alone it always fits: an answer has a limit of its own.
        let is_alone = receipts.is_empty() && transcript.is_empty();
        let all = all_receipts && state.transcript.is_empty() && (ending_fits || is_alone);
        // Only a report that covers everything has the run end. The chain only knows the hash of the last receipt, the
        // others are in the lines.
        let head = match receipts.last() {
            Some(last) if !all_receipts => Chain::line_hash(last),
            _ => state.chain.head().clone(),
        };
        let ending = if all { state.agent_end.clone() } else { None };
        let phase = match (state.phase, &ending) {
            (BridgePhase::Ended, None) => BridgePhase::Working,
            (phase, _) => phase,
        };
        let report = Report {
            number: state.next_report,
            phase,
            first_receipt: state.delivered_receipts,
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
    pub fn urgency(&self) -> Option<Urgency> {
        let state = self.state.lock();
        if state.sent.is_some() || state.agent_end.is_some() {
            return Some(Urgency::Now).filter(|_| state.sent.is_some() || state.changed);
        }
        match (state.changed, state.receipts.is_empty()) {
            (false, _) => None,
            (true, false) => Some(Urgency::Soon),
            (true, true) => Some(Urgency::Later),
        }
    }

    /// Removes what the last report delivered. Returns whether that was the end of the run.
    pub fn confirm_report(&self) -> bool {
        let mut state = self.state.lock();
        let Some(sent) = state.sent.take() else {
            return false;
        };
        let count = sent.receipts.len();
        state.receipts.drain(..count);
        state.delivered_receipts += count as u64;
        self.delivered.notify_waiters();
        sent.ending.is_some()
    }

    /// Waits until there may be something to report.
    pub async fn wait_for_records(&self) {
        self.added.notified().await;
    }

    /// The hash that covers everything so far.
    pub fn chain_head(&self) -> Digest {
        self.state.lock().chain.head().clone()
    }

    fn notify(&self, mut state: MutexGuard<'_, State>) {
        state.changed = true;
        drop(state);
        self.added.notify_one();
    }
}

/// Bytes of a text in JSON, including its quotes and a comma.
fn json_length(text: &str) -> usize {
    let of = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(of).sum::<usize>() + 3
}

fn agent_end_length(ending: &AgentEnd) -> usize {
    match ending {
        AgentEnd::Answered { text } => json_length(text),
        AgentEnd::Failed { error } => json_length(error),
        AgentEnd::Crashed { known } => json_length(known),
        AgentEnd::NeverCame | AgentEnd::TimedOut | AgentEnd::Stopped => 0,
    }
}

#[cfg(test)]
mod tests;
