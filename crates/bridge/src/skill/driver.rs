//! Drives one volume: writes requests, collects results, hands the executor its request key, and detects files that
//! neither the bridge nor an honest executor wrote.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use sympozium_exec::features::is_gvisor;
use sympozium_ipc::names::{self, Entry};
use sympozium_ipc::receipt::ForeignKind;
use sympozium_ipc::requester::{Arrived, SubmitError, Withdrawn, Written};
use sympozium_ipc::volume::{Announced, Done};
use sympozium_ipc::{DoneWatch, ExecRequest, RequestId, RequestKey, Requester, Signer, StartNonce, Volume, WatchMode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::events::Events;
use super::findings::Findings;
use super::{Answer, Order};
use crate::floor::IsolationFloor;

/// How long after a request the directory is read although no event has arrived. The interval doubles each time.
const FIRST_LOOK: Duration = Duration::from_millis(200);
/// The longest interval between two reads while a call waits for a result.
const MAX_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of events taken in one batch: a skill can produce them faster than they are read.
const NEWS_AT_ONCE: usize = 64;
/// Maximum number of abandoned commands whose late results are deleted. The oldest are dropped first: their results
/// stay on the skill's own volume.
const MAX_LATE: usize = 256;

/// How often the files beside `tools` are checked: where inotify events arrive; where they may not, while an executor
/// may wait for its key; and where they may not, afterwards.
const BESIDE_INTERVAL: Duration = Duration::from_secs(60);
const KEY_INTERVAL: Duration = Duration::from_millis(200);
const BESIDE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why there may have been requests that were not seen.
const TOOLS_GONE: &str = "`tools` was moved, removed, replaced or closed to the bridge";
const EVENTS_LOST: &str = "more happened in `tools` than the bridge could follow";
const LIST_CUT: &str = "`tools` holds more than the bridge lists, or is closed to it";

/// Owns the requester of one volume. Asleep unless somebody waits for a result, or something is written to the volume.
pub(super) struct Driver {
    volume: Volume,
    /// Whether the bridge itself wrote `done`.
    leaving: Arc<AtomicBool>,
    events: Option<Events>,
    requester: Requester,
    /// The files beside `tools`, and when they are checked next without an event.
    beside: DoneWatch,
    beside_events: Option<Events>,
    beside_at: Instant,
    handover: Option<Handover>,
    /// What a start must report before its executor gets the key.
    floor: IsolationFloor,
    findings: Findings,
    waiting: HashMap<RequestId, Waiting>,
    /// Every request of the run so far: what is about one of these is not foreign. The plan bounds how many there are.
    issued: HashMap<RequestId, Issued>,
    /// Given up, and perhaps answered some time.
    late: VecDeque<RequestId>,
    /// Whether the last batch left events behind.
    more: bool,
    /// The time until the next read without an event.
    pause: Duration,
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

/// A request that somebody waits for.
struct Waiting {
    answer: oneshot::Sender<Answer>,
    /// The request file as it was written.
    written: Written,
}

/// The request key of an executor that verifies requests, and the start that it was handed to.
struct Handover {
    signer: Signer,
    handed: Option<StartNonce>,
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
            leaving,
            events: Events::of(requester.descriptor()),
            requester,
            beside_events: Events::of(beside.descriptor()),
            beside,
            // At once: the executor may have started before.
            beside_at: Instant::now(),
            handover: key.map(|key| Handover { signer: Signer::new(key), handed: None, refused: false }),
            floor,
            findings,
            waiting: HashMap::new(),
            issued: HashMap::new(),
            late: VecDeque::new(),
            more: false,
            pause: FIRST_LOOK,
        }
    }

    pub(super) async fn drive(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            let idle = self.waiting.is_empty();
            let look_at = Instant::from_std(self.requester.wake_at());
            let look_at = look_at.min(Instant::now() + self.pause);
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
                () = Events::readable(&self.beside_events) => self.look_beside(),
                () = sleep_until(self.beside_at) => self.look_beside(),
                () = tokio::task::yield_now(), if self.more => self.look(),
                () = Events::readable(&self.events) => self.look(),
                () = sleep_until(look_at), if !idle => self.look_unasked(),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Submit { request, expires, answer } => self.submit(*request, expires, answer),
            Order::Withdraw { id, found } => {
                let _ = found.send(self.withdraw(&id));
            }
            Order::GiveUp { id, found } => {
                let withdrawn = self.withdraw(&id);
                self.waiting.remove(&id);
                if withdrawn == Withdrawn::Started {
                    if self.late.len() == MAX_LATE {
                        self.late.pop_front();
                    }
                    self.late.push_back(id);
                }
                let _ = found.send(withdrawn);
            }
        }
    }

    fn withdraw(&mut self, id: &RequestId) -> Withdrawn {
        if let Some(issued) = self.issued.get_mut(id) {
            issued.is_removed = true;
        }
        self.requester.withdraw(id)
    }

    fn submit(&mut self, mut request: ExecRequest, expires: SystemTime, answer: oneshot::Sender<Answer>) {
        // A skill that was told to leave never answers.
        if matches!(self.volume.done(), Ok(Done::Yes)) {
            self.look_for_the_end();
            let _ = answer.send(Answer::Left);
            return;
        }
        let signed = match &mut self.handover {
            Some(handover) => handover.signer.sign(&mut request, expires),
            None => Ok(()),
        };
        let written = signed.map_err(SubmitError::from).and_then(|()| self.requester.submit(&request));
        match written {
            Ok(written) => {
                self.issued.insert(request.id.clone(), Issued::default());
                self.waiting.insert(request.id.clone(), Waiting { answer, written });
                self.pause = FIRST_LOOK;
                // The kernel merges the event of a file that took its name at once with that of its own coming.
                self.check_unchanged(&request.id);
            }
            Err(error) => {
                let _ = answer.send(Answer::NotAsked(error));
            }
        }
    }

    /// Reads the directory without an event, because not every kernel reports all changes of a directory.
    fn look_unasked(&mut self) {
        self.pause = (2 * self.pause).min(MAX_LOOK_INTERVAL);
        let waiting = self.waiting.len();
        self.look();
        self.take_all();
        let found = self.waiting.len() < waiting && self.requester.polling().is_none();
        // The event may have arrived just now.
        if found && !self.is_announced() {
            self.requester.found_unannounced();
        }
    }

    /// Whether an event announces a result.
    fn is_announced(&mut self) -> bool {
        // The descriptor does not tell of the rest again.
        self.more = true;
        for _ in 0..NEWS_AT_ONCE {
            match self.requester.arrived() {
                Arrived::Result(_) | Arrived::Busy => return true,
                Arrived::LookAtAll | Arrived::Nothing => return false,
                other => self.heed(other),
            }
        }
        true
    }

    fn take_all(&mut self) {
        let all: Vec<RequestId> = self.waiting.keys().chain(&self.late).cloned().collect();
        all.iter().for_each(|id| self.take(id));
        let mut entries = Vec::new();
        let is_all = self.requester.list(|entry| entries.push(entry));
        entries.iter().for_each(|entry| self.notice(entry));
        if !is_all {
            self.findings.tell_unseen(LIST_CUT);
        }
        self.check_tools();
        self.look_for_the_end();
    }

    /// Handles the events that have arrived. Events about requests that no call waits for change nothing: every process
    /// in the skill can cause them.
    fn look(&mut self) {
        self.more = false;
        for _ in 0..NEWS_AT_ONCE {
            match self.requester.arrived() {
                Arrived::Result(id) => {
                    self.take(&id);
                    self.notice(&Entry::Result(id));
                }
                Arrived::LookAtAll => {
                    self.take_all();
                    return;
                }
                Arrived::Nothing => return,
                Arrived::Busy => break,
                other => self.heed(other),
            }
        }
        self.more = true;
    }

    /// Takes news of what may be foreign.
    fn heed(&mut self, news: Arrived) {
        match news {
            Arrived::Request(id) => self.notice_request(&id, true),
            Arrived::Entry(entry) => self.notice(&entry),
            Arrived::Moved => self.findings.tell_unseen(TOOLS_GONE),
            Arrived::Lost => {
                self.findings.tell_unseen(EVENTS_LOST);
                self.take_all();
            }
            _ => {}
        }
    }

    fn take(&mut self, id: &RequestId) {
        if let Some(index) = self.late.iter().position(|late| late == id) {
            // Whatever it contains, no call waits for it.
            if !matches!(self.requester.take(id), Ok(None)) {
                self.mark_answered(id);
                self.late.remove(index);
            }
            return;
        }
        let Some(waits) = self.waiting.get(id) else {
            return;
        };
        if waits.answer.is_closed() {
            self.waiting.remove(id);
            return;
        }
        self.check_unchanged(id);
        let result = match self.requester.take(id) {
            Ok(None) => return,
            Ok(Some(result)) => Ok(result),
            Err(problem) => Err(problem),
        };
        self.mark_answered(id);
        if let Some(waits) = self.waiting.remove(id) {
            let _ = waits.answer.send(Answer::Result(result));
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
    fn notice(&mut self, entry: &Entry) {
        match entry {
            Entry::Request(id) => self.notice_request(id, false),
            Entry::BadRequestName(_) => {
                let name = "exec-request-*.json (with an unusable id)";
                self.findings.tell(ForeignKind::Request, name);
            }
            Entry::Claim(id) if !self.issued.contains_key(id) => {
                self.findings.tell(ForeignKind::Claim, &names::claim(id));
            }
            Entry::Result(id) => {
                let name = names::result(id);
                // An event may be older than the taking.
                let is_ours = |issued: &Issued| !issued.is_answered || !self.requester.has(&name);
                if !self.issued.get(id).is_some_and(is_ours) {
                    self.findings.tell(ForeignKind::Result, &name);
                }
            }
            _ => {}
        }
    }

    /// Tells of a request that is not ours, or no longer. `has_come`: an event tells that it got its name or was written to.
    fn notice_request(&mut self, id: &RequestId, has_come: bool) {
        let name = names::request(id);
        let Some(issued) = self.issued.get_mut(id) else {
            self.findings.tell(ForeignKind::Request, &name);
            // An executor that verifies does not serve it; another one may not have seen it yet.
            self.requester.discard(id);
            return;
        };
        let has_come_again = has_come && std::mem::replace(&mut issued.has_come, true);
        match issued.is_removed {
            // What the bridge has signed is authentic until it expires: one that a command kept and put back may be executed
            // although the bridge has answered or cancelled the call.
            true if has_come_again || self.requester.has(&name) => {
                self.findings.tell_put_back(&name);
                self.requester.discard(id);
            }
            // An event may be older than the removal.
            true => {}
            false if has_come_again => self.findings.tell(ForeignKind::Request, &name),
            false => self.check_unchanged(id),
        }
    }

    /// That a request which waits for its result is the one that was written. On gVisor by its content alone: it keeps times of
    /// files by itself, and one that is told differently later must not end a run.
    fn check_unchanged(&mut self, id: &RequestId) {
        let Some(waits) = self.waiting.get(id) else {
            return;
        };
        let is_unchanged = match is_gvisor() {
            true => self.requester.has_same_content(id, &waits.written),
            false => self.requester.is_as_written(id, &waits.written),
        };
        if !is_unchanged {
            self.findings.tell(ForeignKind::Request, &names::request(id));
        }
    }

    /// That the executor looks for requests where the bridge does.
    fn check_tools(&mut self) {
        if self.volume.check_tools().is_err() {
            self.findings.tell_unseen(TOOLS_GONE);
        }
    }

    /// Looks at the files beside `tools`.
    fn look_beside(&mut self) {
        // Consumes the events. The state itself is read where it matters.
        let _ = self.beside.check();
        self.check_tools();
        self.look_for_the_end();
        self.look_for_start();
        if is_gvisor() || self.requester.polling().is_some() {
            // No event reports files that are added while no call waits.
            self.take_all();
        }
        let is_waited_for = matches!(&self.handover, Some(it) if it.handed.is_none());
        let interval = match is_gvisor() || self.beside.polling().is_some() {
            false => BESIDE_INTERVAL,
            true if is_waited_for => KEY_INTERVAL,
            true => BESIDE_POLL_INTERVAL,
        };
        self.beside_at = Instant::now() + interval;
    }

    /// Hands the key to the first start of the executor, unless that is below the isolation floor. A later start never
    /// gets it: a command of the first executor could announce that start, and the first executor's work may be half
    /// done.
    fn look_for_start(&mut self) {
        let Some(handover) = self.handover.as_mut().filter(|it| !it.refused) else {
            return;
        };
        let handed = handover.handed.clone();
        match (self.volume.announced_start(), handed) {
            (Ok(Announced::Nothing), _) => {}
            (Ok(Announced::Start(start)), None) => {
                let missing = (self.floor).missing(self.findings.pack(), Some(&start.isolation));
                if let Some(why) = missing {
                    handover.refused = true;
                    self.findings.tell_below_floor(why);
                    return;
                }
                match self.volume.hand_key(&start.nonce, handover.signer.key()) {
                    Ok(()) => handover.handed = Some(start.nonce),
                    Err(error) => {
                        tracing::warn!(%error, "the executor cannot be handed its key");
                    }
                }
            }
            (Ok(Announced::Start(start)), Some(handed)) if start.nonce == handed => {}
            (Ok(_), _) if self.leaving.load(Ordering::Relaxed) => {}
            (Ok(_), _) => {
                self.findings.tell(ForeignKind::Start, names::START);
                for (_, waits) in self.waiting.drain() {
                    let _ = waits.answer.send(Answer::Restarted);
                }
            }
            (Err(error), _) => tracing::warn!(%error, "the skill's volume cannot be looked at"),
        }
    }

    /// A command of the skill can tell its executor to leave. Then no request is answered any more.
    fn look_for_the_end(&mut self) {
        let by_us = self.leaving.load(Ordering::Relaxed);
        if !by_us && matches!(self.volume.done(), Ok(Done::Yes)) {
            self.findings.tell(ForeignKind::Done, names::DONE);
            for (_, waits) in self.waiting.drain() {
                let _ = waits.answer.send(Answer::Left);
            }
        }
    }
}

#[cfg(test)]
mod tests;
