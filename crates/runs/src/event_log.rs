//! The events of one run, for any number of readers: each gets all of them, from the first on.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::event::{Event, TimedEvent};
use crate::time::now_ms;

/// Events that are buffered for late and slow readers. A reader that missed older ones gets their number.
pub const MAX_EVENTS: usize = 16_384;

/// The events of a run. Clones share the same log.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    buffer: Arc<Mutex<Buffer>>,
    /// How many were emitted in total.
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Buffer {
    events: std::collections::VecDeque<Arc<TimedEvent>>,
    /// How many were dropped from the front.
    dropped: u64,
}

#[derive(Debug)]
pub struct EventReader {
    log: EventLog,
    next: u64,
    count: watch::Receiver<u64>,
}

impl EventLog {
    /// Appends an event, with the current time.
    pub fn emit(&self, event: Event) {
        let timed = Arc::new(TimedEvent { at_ms: now_ms(), event });
        let mut buffer = self.buffer.lock();
        if buffer.events.len() == MAX_EVENTS {
            buffer.events.pop_front();
            buffer.dropped += 1;
        }
        buffer.events.push_back(timed);
        drop(buffer);
        self.count.send_modify(|count| *count += 1);
    }

    /// A reader that starts at the first event.
    pub fn reader(&self) -> EventReader {
        EventReader { log: self.clone(), next: 0, count: self.count.subscribe() }
    }
}

impl EventReader {
    /// Waits for the next event. A reader that was too slow gets a warning with the number of missed events.
    pub async fn next(&mut self) -> Arc<TimedEvent> {
        loop {
            {
                let buffer = self.log.buffer.lock();
                if self.next < buffer.dropped {
                    let missed = buffer.dropped - self.next;
                    self.next = buffer.dropped;
                    let text = format!("{missed} events were missed: more were emitted than could be read");
                    return Arc::new(TimedEvent { at_ms: now_ms(), event: Event::Warning { text } });
                }
                let index = usize::try_from(self.next - buffer.dropped).unwrap_or(usize::MAX);
                if let Some(event) = buffer.events.get(index) {
                    self.next += 1;
                    return Arc::clone(event);
                }
            }
            // Cannot fail: this reader holds the log, and thereby the sender.
            let _ = self.count.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(number: usize) -> Event {
        Event::Warning { text: number.to_string() }
    }

    #[tokio::test]
    async fn every_reader_gets_all_events_from_the_first_on() {
        let log = EventLog::default();
        let mut early = log.reader();
        log.emit(warning(0));
        log.emit(warning(1));
        let mut late = log.reader();
        for reader in [&mut early, &mut late] {
            assert_eq!(reader.next().await.event, warning(0));
            assert_eq!(reader.next().await.event, warning(1));
        }
        let next = tokio::spawn(async move { late.next().await.event.clone() });
        tokio::task::yield_now().await;
        log.emit(warning(2));
        assert_eq!(next.await.unwrap(), warning(2));
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_number_of_missed_events() {
        let log = EventLog::default();
        let mut reader = log.reader();
        for number in 0..MAX_EVENTS + 3 {
            log.emit(warning(number));
        }
        let Event::Warning { text } = reader.next().await.event.clone() else {
            panic!("no warning");
        };
        assert!(text.starts_with("3 events were missed"), "{text}");
        assert_eq!(reader.next().await.event, warning(3));
    }
}
