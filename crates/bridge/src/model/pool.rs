//! Pool of connections to the provider: a handshake costs more than everything else the proxy does.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;

use super::account::MAX_CONCURRENT;
use super::request::{Pieces, total_length};

/// Maximum number of idle connections: as many as can be in use at a time.
const MAX_IDLE: usize = MAX_CONCURRENT as usize;
/// How long an idle connection is reused. Servers and middleboxes close idle connections, some of them silently.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may take to become ready after its last answer was read to the end.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// One HTTP/1.1 connection, for one request at a time.
pub type Connection = SendRequest<RequestBody>;

/// Idle connections. No task watches them; old ones are dropped by the next request.
#[derive(Debug, Default)]
pub struct Pool(Mutex<Vec<Idle>>);

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

impl Pool {
    /// A connection that still works, as far as that can be known without using it.
    pub async fn take(&self) -> Option<Connection> {
        // Each one is removed before it is awaited, so this ends.
        while let Some(mut connection) = self.pop_newest(Instant::now()) {
            let ready = tokio::time::timeout(READY_TIMEOUT, connection.ready()).await;
            if matches!(ready, Ok(Ok(()))) {
                return Some(connection);
            }
        }
        None
    }

    fn pop_newest(&self, now: Instant) -> Option<Connection> {
        let mut idle = self.0.lock();
        idle.retain(|idle| !idle.connection.is_closed() && now.saturating_duration_since(idle.since) < IDLE_TIMEOUT);
        idle.pop().map(|idle| idle.connection)
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.0.lock();
        if idle.len() < MAX_IDLE && !connection.is_closed() {
            let since = Instant::now();
            idle.push(Idle { connection, since });
        }
    }
}

/// A connection whose answer is being read.
pub struct PooledConnection {
    pub pool: Arc<Pool>,
    pub connection: Connection,
}

impl PooledConnection {
    /// Returns the connection to the pool. The answer must have been read to its end.
    pub fn release(self) {
        self.pool.put(self.connection);
    }
}

/// The body of a request: its pieces, without a copy.
#[derive(Debug)]
pub struct RequestBody {
    pieces: std::array::IntoIter<Bytes, 3>,
    remaining: u64,
}

impl RequestBody {
    pub fn new(pieces: Pieces) -> Self {
        Self { remaining: total_length(&pieces), pieces: pieces.into_iter() }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        let piece = body.pieces.find(|piece| !piece.is_empty());
        body.remaining -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}

#[cfg(test)]
mod tests {
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;

    use super::*;

    /// A connection and its server side.
    async fn connection() -> (Connection, DuplexStream) {
        let (near, far) = tokio::io::duplex(1024);
        let (connection, driver) = http1::handshake(TokioIo::new(near)).await.expect("no I/O");
        tokio::spawn(driver);
        (connection, far)
    }

    #[tokio::test]
    async fn the_newest_is_used_and_old_closed_and_surplus_ones_are_dropped() {
        let pool = Pool::default();
        let now = Instant::now();
        let mut ends = Vec::new();
        for _ in 0..=MAX_IDLE {
            let (connection, end) = connection().await;
            pool.put(connection);
            ends.push(end);
        }
        let idle = || pool.0.lock().len();
        assert_eq!(idle(), MAX_IDLE);
        assert!(pool.pop_newest(now).is_some());
        assert_eq!(idle(), MAX_IDLE - 1);

        // The first of the others is closed by its server.
        ends.remove(0);
        let is_closed = || pool.0.lock()[0].connection.is_closed();
        let closed = async {
            while !is_closed() {
                tokio::task::yield_now().await;
            }
        };
        let closed = tokio::time::timeout(Duration::from_secs(60), closed).await;
        closed.expect("it is noticed");
        let nearly = IDLE_TIMEOUT - Duration::from_secs(1);
        assert!(pool.pop_newest(now + nearly).is_some());
        assert_eq!(idle(), MAX_IDLE - 3);
        assert!(pool.take().await.is_some_and(|sender| sender.is_ready()));

        let (connection, _end) = connection().await;
        pool.put(connection);
        assert!(pool.pop_newest(Instant::now() + IDLE_TIMEOUT).is_none());
        assert_eq!(idle(), 0);
    }

    #[tokio::test]
    async fn a_body_is_its_pieces_and_says_how_long_it_is() {
        let pieces = [Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"c")];
        let body = RequestBody::new(pieces);
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
        let collected = http_body_util::BodyExt::collect(body).await;
        assert_eq!(collected.expect("it cannot fail").to_bytes(), "abc");
    }
}
