//! Connections without room: a few get a reason, all are counted, and the log has a line from time to time.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sympozium_program::peer_limiter::{PeerLimiter, PeerSlot};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::events::Reason;
use crate::metrics::Metrics;

/// Maximum number of connections that wait for room or are being refused. Further ones are closed at once.
pub const MAX_REFUSED: usize = 128;
/// The same from one address.
const MAX_REFUSED_OF_PEER: usize = 16;
/// Interval of log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

pub struct RefusedConnections {
    metrics: Arc<Metrics>,
    room: Arc<Semaphore>,
    peers: Arc<PeerLimiter>,
    log: Mutex<LogRateLimit>,
}

/// One of them, counted until it is dropped.
pub struct RefusalSlot {
    _of_all: OwnedSemaphorePermit,
    _of_peer: Option<PeerSlot>,
}

impl RefusedConnections {
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            room: Arc::new(Semaphore::new(MAX_REFUSED)),
            peers: PeerLimiter::new(MAX_REFUSED_OF_PEER),
            log: Mutex::default(),
        })
    }

    /// `None` if there are too many.
    pub fn acquire(&self, peer: Option<IpAddr>) -> Option<RefusalSlot> {
        let of_peer = match peer {
            Some(peer) => Some(self.peers.acquire(peer)?),
            None => None,
        };
        let of_all = Arc::clone(&self.room).try_acquire_owned().ok()?;
        Some(RefusalSlot { _of_all: of_all, _of_peer: of_peer })
    }

    /// Counts a refused connection.
    pub fn record(&self, peer: Option<IpAddr>, reason: Reason) {
        self.metrics.count_refused_connection(reason);
        let mut log = self.log.lock();
        let Some(unlogged) = log.next_line(Instant::now()) else {
            return;
        };
        drop(log);
        let peer = peer.map(|peer| peer.to_string());
        let reason = reason.as_str();
        tracing::warn!(peer, reason, unlogged, "a connection was refused; /metrics counts all of them");
    }
}

/// Limits the rate of log lines.
#[derive(Debug, Default)]
struct LogRateLimit {
    last: Option<Instant>,
    unlogged: u64,
}

impl LogRateLimit {
    /// Returns the number of suppressed lines if a line is due, otherwise `None`.
    fn next_line(&mut self, now: Instant) -> Option<u64> {
        let is_due = |last| now.saturating_duration_since(last) >= LOG_INTERVAL;
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
        let mut log = LogRateLimit::default();
        let start = Instant::now();
        assert_eq!(log.next_line(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.next_line(start + LOG_INTERVAL / 2), None);
        }
        assert_eq!(log.next_line(start + LOG_INTERVAL), Some(1000));
        assert_eq!(log.next_line(start + LOG_INTERVAL), None);
        assert_eq!(log.next_line(start + 2 * LOG_INTERVAL), Some(1));
    }

    #[test]
    fn one_address_does_not_take_all_places() {
        let turned_away = RefusedConnections::new(Metrics::new());
        let address = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let all = |peer| -> Vec<_> { std::iter::from_fn(|| turned_away.acquire(peer)).take(1000).collect() };
        let first = all(address(1));
        assert_eq!(first.len(), MAX_REFUSED_OF_PEER);
        assert!(turned_away.acquire(address(2)).is_some());
        drop(first);
        assert_eq!(all(None).len(), MAX_REFUSED);
    }
}
