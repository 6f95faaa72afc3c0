//! The events of one run, for any number of readers: each gets all of them, from the first on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::event::{Event, Timed};
use super::time::now_ms;

/// Events that are kept for readers who come later or read slowly. Of what is older they are told how much they missed.
pub const MAX_EVENTS: usize = 16_384;

/// The events of a run. Clones are the same log.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    kept: Arc<Mutex<Kept>>,
    /// How many there were.
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    events: std::collections::VecDeque<Arc<Timed>>,
    /// How many were let go.
    gone: u64,
}

/// One reader.
#[derive(Debug)]
pub struct Reader {
    log: EventLog,
    next: u64,
    count: watch::Receiver<u64>,
}

impl EventLog {
    /// Adds an event, at this moment.
    pub fn tell(&self, event: Event) {
        let timed = Arc::new(Timed { at_ms: now_ms(), event });
        let mut kept = self.lock();
        if kept.events.len() == MAX_EVENTS {
            kept.events.pop_front();
            kept.gone += 1;
        }
        kept.events.push_back(timed);
        drop(kept);
        self.count.send_modify(|count| *count += 1);
    }

    /// A reader from the first event on.
    pub fn reader(&self) -> Reader {
        Reader { log: self.clone(), next: 0, count: self.count.subscribe() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic elsewhere leaves the queue whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// The next event; waits for it. A reader that was too slow gets a warning that says how many it missed.
    pub async fn next(&mut self) -> Arc<Timed> {
        loop {
            {
                let kept = self.log.lock();
                if self.next < kept.gone {
                    let missed = kept.gone - self.next;
                    self.next = kept.gone;
                    let text = format!("{missed} events were missed: they came too fast to follow");
                    return Arc::new(Timed { at_ms: now_ms(), event: Event::Warning { text } });
                }
                let place = usize::try_from(self.next - kept.gone).unwrap_or(usize::MAX);
                if let Some(event) = kept.events.get(place) {
                    self.next += 1;
                    return Arc::clone(event);
                }
            }
            // The log that would close the channel is held by this reader.
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
        log.tell(warning(0));
        log.tell(warning(1));
        let mut late = log.reader();
        for reader in [&mut early, &mut late] {
            assert_eq!(reader.next().await.event, warning(0));
            assert_eq!(reader.next().await.event, warning(1));
        }
        let next = tokio::spawn(async move { late.next().await.event.clone() });
        tokio::task::yield_now().await;
        log.tell(warning(2));
        assert_eq!(next.await.unwrap(), warning(2));
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_much_it_missed() {
        let log = EventLog::default();
        let mut reader = log.reader();
        for number in 0..MAX_EVENTS + 3 {
            log.tell(warning(number));
        }
        let Event::Warning { text } = reader.next().await.event.clone() else {
            panic!("no warning");
        };
        assert!(text.starts_with("3 events were missed"), "{text}");
        assert_eq!(reader.next().await.event, warning(3));
    }
}
