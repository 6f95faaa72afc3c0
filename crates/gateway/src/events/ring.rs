//! A ring of the last events, with watchers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{Event, EventKind, RequestTarget, Requester};

/// The events of a gateway. Emitting an event never waits for a watcher.
#[derive(Debug)]
pub struct EventLog {
    ring: Mutex<Ring>,
    /// The sequence number of the newest event.
    newest: watch::Sender<u64>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    newest: u64,
}

/// Reads events in order.
#[derive(Debug)]
pub struct Watcher {
    events: Arc<EventLog>,
    newest: watch::Receiver<u64>,
    next: u64,
    /// Restricts the watcher to the events of this run.
    run: Option<String>,
}

/// Some events were dropped before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} events were missed; the next is number {next}")]
pub struct MissedEvents {
    pub count: u64,
    /// The sequence number that is read next.
    pub next: u64,
}

impl EventLog {
    /// Keeps the last `capacity` events, at least one.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { ring: Mutex::default(), newest: watch::Sender::new(0), capacity: capacity.max(1) })
    }

    /// Adds an event and returns its sequence number.
    pub fn emit(
        &self,
        connection: u64,
        who: Option<Requester>,
        what: Option<RequestTarget>,
        outcome: EventKind,
    ) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_milliseconds = now.map_or(0, |since_epoch| u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX));
        let mut ring = self.ring.lock();
        ring.newest += 1;
        let sequence = ring.newest;
        let event = Arc::new(Event { sequence, at_milliseconds, connection, who, what, outcome });
        if ring.events.len() == self.capacity {
            ring.events.pop_front();
        }
        ring.events.push_back(Arc::clone(&event));
        // Under the lock, so that numbers only grow.
        self.newest.send_replace(sequence);
        drop(ring);
        event.log();
        sequence
    }

    /// Watches from this sequence number on: 1 for all events in the ring, or the next number for new events only.
    pub fn subscribe(self: &Arc<Self>, from: u64) -> Watcher {
        Watcher { events: Arc::clone(self), newest: self.newest.subscribe(), next: from.max(1), run: None }
    }

    /// The sequence number of the next event.
    pub fn next_sequence(&self) -> u64 {
        self.ring.lock().newest + 1
    }
}

impl Watcher {
    /// Restricts the watcher to this run. Missed events are counted for all runs.
    #[must_use]
    pub fn for_run(self, run: impl Into<String>) -> Self {
        Self { run: Some(run.into()), ..self }
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// Returns an error once for each gap of dropped events. The next call continues after it.
    pub async fn next(&mut self) -> Result<Arc<Event>, MissedEvents> {
        loop {
            if let Some(found) = self.try_next() {
                return found;
            }
            let next = self.next;
            // The sender lives as long as the events, which are held here.
            let _ = self.newest.wait_for(|newest| *newest >= next).await;
        }
    }

    /// The next event, if there is one.
    pub fn try_next(&mut self) -> Option<Result<Arc<Event>, MissedEvents>> {
        let ring = self.events.ring.lock();
        let oldest = ring.events.front()?.sequence;
        if self.next < oldest {
            let count = oldest - self.next;
            self.next = oldest;
            return Some(Err(MissedEvents { count, next: oldest }));
        }
        loop {
            let place = usize::try_from(self.next - oldest).ok()?;
            let event = ring.events.get(place)?;
            self.next += 1;
            if self.matches_run(event) {
                return Some(Ok(Arc::clone(event)));
            }
        }
    }

    fn matches_run(&self, event: &Event) -> bool {
        self.run.as_ref().is_none_or(|run| {
            let who = event.who.as_ref();
            who.is_some_and(|who| who.run == *run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reason;
    use super::*;

    fn emit_refused(events: &EventLog, connection: u64) {
        let outcome = EventKind::Refused { reason: Reason::NotInPlan, detail: None };
        events.emit(connection, None, None, outcome);
    }

    fn read(watcher: &mut Watcher) -> Vec<Result<u64, MissedEvents>> {
        let mut read = Vec::new();
        while let Some(next) = watcher.try_next() {
            read.push(next.map(|event| event.connection));
        }
        read
    }

    #[test]
    fn watchers_get_what_is_stored_and_learn_what_is_not() {
        let events = EventLog::new(3);
        let mut from_start = events.subscribe(1);
        for connection in 1..=2 {
            emit_refused(&events, connection);
        }
        assert_eq!(read(&mut from_start), [Ok(1), Ok(2)]);
        let mut new_only = events.subscribe(events.next_sequence());
        assert_eq!(read(&mut new_only), []);
        for connection in 3..=6 {
            emit_refused(&events, connection);
        }
        let gap = |count, next| Err(MissedEvents { count, next });
        assert_eq!(read(&mut from_start), [gap(1, 4), Ok(4), Ok(5), Ok(6)]);
        assert_eq!(read(&mut new_only), [gap(1, 4), Ok(4), Ok(5), Ok(6)]);
        assert_eq!(read(&mut events.subscribe(0)), [gap(3, 4), Ok(4), Ok(5), Ok(6)]);
        assert_eq!(read(&mut events.subscribe(5)), [Ok(5), Ok(6)]);
        assert_eq!(read(&mut events.subscribe(99)), []);
    }

    #[tokio::test]
    async fn a_watcher_of_one_run_sees_no_other() {
        let events = EventLog::new(9);
        let mut watcher = events.subscribe(1).for_run("b");
        for (connection, run) in [(1, Some("a")), (2, Some("b")), (3, None), (4, Some("b"))] {
            let who = run.map(|run| Requester { run: run.into(), credential: "run".into(), part: None });
            let phase = sympozium_ipc::run_api::BridgePhase::Working;
            events.emit(connection, who, None, EventKind::Phase { phase });
        }
        assert_eq!(read(&mut watcher), [Ok(2), Ok(4)]);
        assert_eq!(read(&mut events.subscribe(3).for_run("b")), [Ok(4)]);
        assert_eq!(read(&mut events.subscribe(1).for_run("c")), []);
    }

    #[tokio::test]
    async fn a_watcher_waits_for_the_next() {
        let events = EventLog::new(3);
        let mut watcher = events.subscribe(1);
        let emitting = tokio::spawn({
            let events = Arc::clone(&events);
            async move { emit_refused(&events, 7) }
        });
        let event = watcher.next().await.unwrap();
        emitting.await.unwrap();
        assert_eq!((event.sequence, event.connection), (1, 7));
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let events = EventLog::new(1);
        let who = Requester { run: "r".into(), credential: "web".into(), part: None };
        let what = RequestTarget { method: "CONNECT".into(), host: "a.example".into(), port: 443 };
        let outcome = EventKind::Ended { reason: Reason::Closed, bytes_sent: 1, bytes_received: 2, milliseconds: 3 };
        events.emit(4, Some(who), Some(what), outcome);
        let event = events.subscribe(1).try_next().unwrap().unwrap();
        let mut value = serde_json::to_value(&*event).unwrap();
        value["atMilliseconds"] = 0.into();
        let expected = serde_json::json!({
            "sequence": 1, "atMilliseconds": 0, "connection": 4,
            "who": {"run": "r", "credential": "web"},
            "what": {"method": "CONNECT", "host": "a.example", "port": 443},
            "outcome": "ended", "reason": "closed",
            "bytesSent": 1, "bytesReceived": 2, "milliseconds": 3,
        });
        assert_eq!(value, expected);
    }
}
