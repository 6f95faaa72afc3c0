//! Connections without room: a few get a reason, all are counted, and the log has a line from time to time.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::peers::{Peers, Seat};
use crate::events::Reason;
use crate::metrics::Metrics;

/// Maximum number of connections that wait for room or are being refused. Further ones are closed at once.
pub const MAX_TURNED_AWAY: usize = 128;
/// The same from one address.
const MAX_TURNED_AWAY_OF_PEER: usize = 16;
/// Interval of log lines.
const LOG_EVERY: Duration = Duration::from_secs(10);

pub struct TurnedAway {
    metrics: Arc<Metrics>,
    room: Arc<Semaphore>,
    peers: Arc<Peers>,
    log: Mutex<LogLimit>,
}

/// One of them, counted until it is dropped.
pub struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_peer: Option<Seat>,
}

impl TurnedAway {
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            room: Arc::new(Semaphore::new(MAX_TURNED_AWAY)),
            peers: Peers::new(MAX_TURNED_AWAY_OF_PEER),
            log: Mutex::default(),
        })
    }

    /// `None` if there are too many.
    pub fn place(&self, peer: Option<IpAddr>) -> Option<Place> {
        let of_peer = match peer {
            Some(peer) => Some(self.peers.enter(peer)?),
            None => None,
        };
        let of_all = Arc::clone(&self.room).try_acquire_owned().ok()?;
        Some(Place { _of_all: of_all, _of_peer: of_peer })
    }

    /// Counts a refused connection.
    pub fn note(&self, peer: Option<IpAddr>, reason: Reason) {
        self.metrics.turned_away(reason);
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(unlogged) = log.pass(Instant::now()) else {
            return;
        };
        drop(log);
        let peer = peer.map(|it| it.to_string());
        let reason = reason.as_str();
        tracing::warn!(peer, reason, unlogged, "a connection was refused; /metrics counts all of them");
    }
}

/// Limits the rate of log lines.
#[derive(Debug, Default)]
struct LogLimit {
    last: Option<Instant>,
    unlogged: u64,
}

impl LogLimit {
    /// Returns the number of suppressed lines if a line is due, otherwise `None`.
    fn pass(&mut self, now: Instant) -> Option<u64> {
        let is_due = |last| now.saturating_duration_since(last) >= LOG_EVERY;
        if self.last.is_none_or(is_due) {
            self.last = Some(now);
            return Some(std::mem::take(&mut self.unlogged));
        }
        self.unlogged += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_a_line_now_and_then_and_says_how_many_it_left_out() {
        let mut log = LogLimit::default();
        let start = Instant::now();
        assert_eq!(log.pass(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.pass(start + LOG_EVERY / 2), None);
        }
        assert_eq!(log.pass(start + LOG_EVERY), Some(1000));
        assert_eq!(log.pass(start + LOG_EVERY), None);
        assert_eq!(log.pass(start + 2 * LOG_EVERY), Some(1));
    }

    #[test]
    fn one_address_does_not_take_all_places() {
        let turned_away = TurnedAway::new(Metrics::new());
        let address = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let all = |peer| -> Vec<_> { std::iter::from_fn(|| turned_away.place(peer)).take(1000).collect() };
        let first = all(address(1));
        assert_eq!(first.len(), MAX_TURNED_AWAY_OF_PEER);
        assert!(turned_away.place(address(2)).is_some());
        drop(first);
        assert_eq!(all(None).len(), MAX_TURNED_AWAY);
    }
}
