//! Drives one volume: writes requests, collects results, hands the executor its request key, and detects files that
//! neither the bridge nor an honest executor wrote.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use sympozium_exec::features::is_gvisor;
use sympozium_ipc::names::{self, Entry};
use sympozium_ipc::receipt::ForeignKind;
use sympozium_ipc::requester::{SubmitError, VolumeChange, Withdrawal, WrittenRequest};
use sympozium_ipc::volume::{Announcement, DoneState};
use sympozium_ipc::{DoneWatch, ExecRequest, RequestId, RequestKey, Requester, Signer, StartNonce, Volume, WatchMode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::events::Events;
use super::findings::Findings;
use super::{Order, OrderReply};
use crate::floor::IsolationFloor;

/// How long after a request the directory is read although no event has arrived. The interval doubles each time.
const FIRST_POLL: Duration = Duration::from_millis(200);
/// The longest interval between two reads while a call waits for a result.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of events taken in one batch: a skill can produce them faster than they are read.
const MAX_EVENT_BATCH: usize = 64;
/// Maximum number of abandoned commands whose late results are deleted. The oldest are dropped first: their results
/// stay on the skill's own volume.
const MAX_ABANDONED: usize = 256;

/// How often the files beside `tools` are checked: where inotify events arrive; where they may not, while an executor
/// may wait for its key; and where they may not, afterwards.
const CONTROL_INTERVAL: Duration = Duration::from_secs(60);
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(200);
const CONTROL_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why there may have been requests that were not seen.
const TOOLS_GONE: &str = "`tools` was moved, removed, replaced or closed to the bridge";
const EVENTS_LOST: &str = "more happened in `tools` than the bridge could follow";
const LIST_CUT: &str = "`tools` holds more than the bridge lists, or is closed to it";

/// Owns the requester of one volume. Asleep unless a call waits for a result, or something is written to the volume.
pub(super) struct Driver {
    volume: Volume,
    /// Whether the bridge itself wrote `done`.
    done_written: Arc<AtomicBool>,
    events: Option<Events>,
    requester: Requester,
    /// The files beside `tools`, and when they are checked next without an event.
    control_files: DoneWatch,
    control_events: Option<Events>,
    control_check_at: Instant,
    key_handover: Option<KeyHandover>,
    /// What a start must report before its executor gets the key.
    floor: IsolationFloor,
    findings: Findings,
    pending: HashMap<RequestId, PendingRequest>,
    /// Every request of the run so far: what is about one of these is not foreign. The plan bounds how many there are.
    issued: HashMap<RequestId, Issued>,
    /// Given up, and perhaps answered some time.
    abandoned: VecDeque<RequestId>,
    /// Whether the last batch left events behind.
    has_more_events: bool,
    /// The time until the next read without an event.
    poll_interval: Duration,
}

/// What has become of a request that the bridge has written.
#[derive(Default)]
struct Issued {
    /// The event of its coming was seen. There is one for each.
    has_come: bool,
    /// The bridge has removed its file: one that is there again is not the bridge's.
    is_removed: bool,
    /// Its result was taken: there is one for each.
    is_answered: bool,
}

/// A request whose caller waits for the result.
struct PendingRequest {
    answer: oneshot::Sender<OrderReply>,
    /// The request file as it was written.
    written: WrittenRequest,
}

/// The request key of an executor that verifies requests, and the start that it was handed to.
struct KeyHandover {
    signer: Signer,
    handed_to: Option<StartNonce>,
    /// The first start was below the isolation floor: the run ends, and no later start gets the key.
    refused: bool,
}

impl Driver {
    pub(super) fn new(
        volume: &Volume,
        leaving: Arc<AtomicBool>,
        key: Option<RequestKey>,
        floor: IsolationFloor,
        findings: Findings,
        watch: WatchMode,
    ) -> Self {
        let requester = Requester::open(volume, watch);
        let beside = DoneWatch::new(volume, watch);
        Self {
            volume: volume.clone(),
            done_written: leaving,
            events: Events::new(requester.descriptor()),
            requester,
            control_events: Events::new(beside.descriptor()),
            control_files: beside,
            // At once: the executor may have started before.
            control_check_at: Instant::now(),
            key_handover: key.map(|key| KeyHandover { signer: Signer::new(key), handed_to: None, refused: false }),
            floor,
            findings,
            pending: HashMap::new(),
            issued: HashMap::new(),
            abandoned: VecDeque::new(),
            has_more_events: false,
            poll_interval: FIRST_POLL,
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            let idle = self.pending.is_empty();
            let look_at = Instant::from_std(self.requester.wake_at());
            let look_at = look_at.min(Instant::now() + self.poll_interval);
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => self.handle_order(order),
                    None => return,
                },
                () = Events::readable(&self.control_events) => self.check_control_files(),
                () = sleep_until(self.control_check_at) => self.check_control_files(),
                () = tokio::task::yield_now(), if self.has_more_events => self.handle_events(),
                () = Events::readable(&self.events) => self.handle_events(),
                () = sleep_until(look_at), if !idle => self.poll(),
            }
        }
    }

    fn handle_order(&mut self, order: Order) {
        match order {
            Order::Submit { request, expires, answer } => self.submit(*request, expires, answer),
            Order::Withdraw { id, found } => {
                let _ = found.send(self.withdraw(&id));
            }
            Order::Abandon { id, found } => {
                let withdrawn = self.withdraw(&id);
                self.pending.remove(&id);
                if withdrawn == Withdrawal::Started {
                    if self.abandoned.len() == MAX_ABANDONED {
                        self.abandoned.pop_front();
                    }
                    self.abandoned.push_back(id);
                }
                let _ = found.send(withdrawn);
            }
        }
    }

    fn withdraw(&mut self, id: &RequestId) -> Withdrawal {
        if let Some(issued) = self.issued.get_mut(id) {
            issued.is_removed = true;
        }
        self.requester.withdraw(id)
    }

    fn submit(&mut self, mut request: ExecRequest, expires: SystemTime, answer: oneshot::Sender<OrderReply>) {
        // A skill that was asked to exit never answers.
        if matches!(self.volume.done_state(), Ok(DoneState::Present)) {
            self.check_done();
            let _ = answer.send(OrderReply::StoppedByOther);
            return;
        }
        let signed = match &mut self.key_handover {
            Some(handover) => handover.signer.sign(&mut request, expires),
            None => Ok(()),
        };
        let written = signed.map_err(SubmitError::from).and_then(|()| self.requester.submit(&request));
        match written {
            Ok(written) => {
                self.issued.insert(request.id.clone(), Issued::default());
                self.pending.insert(request.id.clone(), PendingRequest { answer, written });
                self.poll_interval = FIRST_POLL;
                // The kernel merges the event of a file that took its name at once with that of its own coming.
                self.check_unchanged(&request.id);
            }
            Err(error) => {
                let _ = answer.send(OrderReply::NotSubmitted(error));
            }
        }
    }

    /// Reads the directory without an event, because not every kernel reports all changes of a directory.
    fn poll(&mut self) {
        self.poll_interval = (2 * self.poll_interval).min(MAX_POLL_INTERVAL);
        let waiting = self.pending.len();
        self.handle_events();
        self.scan_all();
        let found = self.pending.len() < waiting && self.requester.poll_reason().is_none();
        // The event may have arrived just now.
        if found && !self.result_announced() {
            self.requester.fall_back_to_polling();
        }
    }

    /// Whether an event announces a result.
    fn result_announced(&mut self) -> bool {
        // The descriptor does not report the rest again.
        self.has_more_events = true;
        for _ in 0..MAX_EVENT_BATCH {
            match self.requester.next_change() {
                VolumeChange::Result(_) | VolumeChange::Busy => return true,
                VolumeChange::CheckAll | VolumeChange::None => return false,
                other => self.heed(other),
            }
        }
        true
    }

    fn scan_all(&mut self) {
        let all: Vec<RequestId> = self.pending.keys().chain(&self.abandoned).cloned().collect();
        all.iter().for_each(|id| self.take_result(id));
        let mut entries = Vec::new();
        let is_all = self.requester.list(|entry| entries.push(entry));
        entries.iter().for_each(|entry| self.check_entry(entry));
        if !is_all {
            self.findings.report_unseen(LIST_CUT);
        }
        self.check_tools();
        self.check_done();
    }

    /// Handles the events that have arrived. Events about requests that no call waits for change nothing: every process
    /// in the skill can cause them.
    fn handle_events(&mut self) {
        self.has_more_events = false;
        for _ in 0..MAX_EVENT_BATCH {
            match self.requester.next_change() {
                VolumeChange::Result(id) => {
                    self.take_result(&id);
                    self.check_entry(&Entry::Result(id));
                }
                VolumeChange::CheckAll => {
                    self.scan_all();
                    return;
                }
                VolumeChange::None => return,
                VolumeChange::Busy => break,
                other => self.heed(other),
            }
        }
        self.has_more_events = true;
    }

    /// Takes news of what may be foreign.
    fn heed(&mut self, news: VolumeChange) {
        match news {
            VolumeChange::Request(id) => self.notice_request(&id, true),
            VolumeChange::Entry(entry) => self.check_entry(&entry),
            VolumeChange::Moved => self.findings.report_unseen(TOOLS_GONE),
            VolumeChange::Lost => {
                self.findings.report_unseen(EVENTS_LOST);
                self.scan_all();
            }
            _ => {}
        }
    }

    fn take_result(&mut self, id: &RequestId) {
        if let Some(index) = self.abandoned.iter().position(|late| late == id) {
            // Whatever it contains, no call waits for it.
            if !matches!(self.requester.take(id), Ok(None)) {
                self.mark_answered(id);
                self.abandoned.remove(index);
            }
            return;
        }
        let Some(waits) = self.pending.get(id) else {
            return;
        };
        if waits.answer.is_closed() {
            self.pending.remove(id);
            return;
        }
        self.check_unchanged(id);
        let result = match self.requester.take(id) {
            Ok(None) => return,
            Ok(Some(result)) => Ok(result),
            Err(problem) => Err(problem),
        };
        self.mark_answered(id);
        if let Some(waits) = self.pending.remove(id) {
            let _ = waits.answer.send(OrderReply::Result(result));
        }
    }

    fn mark_answered(&mut self, id: &RequestId) {
        if let Some(issued) = self.issued.get_mut(id) {
            issued.is_removed = true;
            issued.is_answered = true;
        }
    }

    /// Tells of what is in `tools` and about no request of ours. A late result of a request of ours is not foreign, a second one
    /// is.
    fn check_entry(&mut self, entry: &Entry) {
        match entry {
            Entry::Request(id) => self.notice_request(id, false),
            Entry::BadRequestName(_) => {
                let name = "exec-request-*.json (with an unusable id)";
                self.findings.report(ForeignKind::Request, name);
            }
            Entry::Claim(id) if !self.issued.contains_key(id) => {
                self.findings.report(ForeignKind::Claim, &names::claim(id));
            }
            Entry::Result(id) => {
                let name = names::result(id);
                // An event may be older than the taking.
                let is_ours = |issued: &Issued| !issued.is_answered || !self.requester.has(&name);
                if !self.issued.get(id).is_some_and(is_ours) {
                    self.findings.report(ForeignKind::Result, &name);
                }
            }
            _ => {}
        }
    }

    /// Reports a request that is not ours, or no longer is. `has_come`: an event says that it got its name or was written to.
    fn notice_request(&mut self, id: &RequestId, has_come: bool) {
        let name = names::request(id);
        let Some(issued) = self.issued.get_mut(id) else {
            self.findings.report(ForeignKind::Request, &name);
            // An executor that verifies does not serve it; another one may not have seen it yet.
            self.requester.discard(id);
            return;
        };
        let has_come_again = has_come && std::mem::replace(&mut issued.has_come, true);
        if issued.is_removed {
            // Else the event is older than the removal.
            if has_come_again || self.requester.has(&name) {
                // What the bridge has signed is authentic until it expires. A request that a command stored and put back may
                // be executed, although the bridge has answered or cancelled the call.
                self.findings.report_restored(&name);
                self.requester.discard(id);
            }
        } else if has_come_again {
            self.findings.report(ForeignKind::Request, &name);
        } else {
            self.check_unchanged(id);
        }
    }

    /// Checks that a request that waits for its result is the one that was written. On gVisor by its content alone: it tracks
    /// times of files by itself, and one that differs later must not end a run.
    fn check_unchanged(&mut self, id: &RequestId) {
        let Some(waits) = self.pending.get(id) else {
            return;
        };
        let is_unchanged = if is_gvisor() {
            self.requester.has_same_content(id, &waits.written)
        } else {
            self.requester.is_unchanged(id, &waits.written)
        };
        if !is_unchanged {
            self.findings.report(ForeignKind::Request, &names::request(id));
        }
    }

    /// Checks that the executor looks for requests where the bridge does.
    fn check_tools(&mut self) {
        if self.volume.check_tools().is_err() {
            self.findings.report_unseen(TOOLS_GONE);
        }
    }

    /// Looks at the files beside `tools`.
    fn check_control_files(&mut self) {
        // Consumes the events. The state itself is read where it matters.
        let _ = self.control_files.check();
        self.check_tools();
        self.check_done();
        self.check_start();
        if is_gvisor() || self.requester.poll_reason().is_some() {
            // No event reports files that are added while no call waits.
            self.scan_all();
        }
        let is_waited_for = matches!(&self.key_handover, Some(handover) if handover.handed_to.is_none());
        let must_poll = is_gvisor() || self.control_files.poll_reason().is_some();
        let interval = match (must_poll, is_waited_for) {
            (false, _) => CONTROL_INTERVAL,
            (true, true) => KEY_POLL_INTERVAL,
            (true, false) => CONTROL_POLL_INTERVAL,
        };
        self.control_check_at = Instant::now() + interval;
    }

    /// Hands the key to the first start of the executor, unless that is below the isolation floor. A later start never
    /// gets it: a command of the first executor could announce that start, and the first executor's work may be half
    /// done.
    fn check_start(&mut self) {
        let Some(handover) = self.key_handover.as_mut().filter(|key_handover| !key_handover.refused) else {
            return;
        };
        let handed = handover.handed_to.clone();
        match (self.volume.read_start(), handed) {
            (Ok(Announcement::Absent), _) => {}
            (Ok(Announcement::Start(start)), None) => {
                let missing = (self.floor).describe_missing(self.findings.pack(), Some(&start.isolation));
                if let Some(why) = missing {
                    handover.refused = true;
                    self.findings.report_below_floor(why);
                    return;
                }
                match self.volume.hand_over_key(&start.nonce, handover.signer.key()) {
                    Ok(()) => handover.handed_to = Some(start.nonce),
                    Err(error) => {
                        tracing::warn!(%error, "the executor cannot be handed its key");
                    }
                }
            }
            (Ok(Announcement::Start(start)), Some(handed)) if start.nonce == handed => {}
            (Ok(_), _) if self.done_written.load(Ordering::Relaxed) => {}
            (Ok(_), _) => {
                self.findings.report(ForeignKind::Start, names::START);
                for (_, waits) in self.pending.drain() {
                    let _ = waits.answer.send(OrderReply::Restarted);
                }
            }
            (Err(error), _) => tracing::warn!(%error, "the skill's volume cannot be looked at"),
        }
    }

    /// A command of the skill can ask its executor to exit. Then no request is answered any more.
    fn check_done(&mut self) {
        let by_us = self.done_written.load(Ordering::Relaxed);
        if !by_us && matches!(self.volume.done_state(), Ok(DoneState::Present)) {
            self.findings.report(ForeignKind::Done, names::DONE);
            for (_, waits) in self.pending.drain() {
                let _ = waits.answer.send(OrderReply::StoppedByOther);
            }
        }
    }
}

#[cfg(test)]
mod tests;
