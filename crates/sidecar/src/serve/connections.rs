//! The connections of one address: how many there may be, which one has to go, and how each is served and closed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};

use super::strict_io::StrictIo;
use sympozium_ipc::strict_head::{MAX_HEAD_BYTES, MAX_HEADERS};

/// What the parser keeps of a request that it has not handed on. A head has to fit, with a close that we add.
const MAX_BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES;
/// How long, and for how much, a connection that is closed early still listens: a peer that is sending would else
/// lose the answer to a reset.
const LINGER: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 4 * 1024 * 1024;
/// How long to wait when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The answer to a connection for which there is no room at all.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
Retry-After: 1\r\nConnection: close\r\nContent-Length: 33\r\n\r\n{\"error\":\"too many connections\"}\n";

/// What answers the requests of a connection.
pub trait Answer: Clone + Send + Sync + 'static {
    /// Answers one request. Dropped when the caller hangs up.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
    /// Told how many connections there are, whenever that changes.
    fn connections(&self, count: usize);
}

/// One connection, as far as others need to know it.
#[derive(Debug, Default)]
pub struct Connection {
    busy: AtomicBool,
    /// When it last became idle, in microseconds of its registry.
    idle_since: AtomicU64,
    leave: Notify,
}

impl Connection {
    /// Whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// A request is being answered until this is dropped.
    pub fn busy(&self) -> Busy<'_> {
        self.busy.store(true, Ordering::Relaxed);
        Busy(self)
    }
}

/// See [`Connection::busy`].
pub struct Busy<'a>(&'a Connection);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

/// The connections of an address.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    epoch: Instant,
    open: Mutex<(u64, HashMap<u64, Arc<Connection>>)>,
}

impl Connections {
    /// At most `limit` at once.
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), epoch: Instant::now(), open: Mutex::default() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.open.lock().1.len()
    }

    /// Room for one more. When there is none, the connection that has been idle longest is told to leave; when none
    /// is idle, there is no room.
    fn enter(&self) -> Option<(u64, Arc<Connection>)> {
        let mut open = self.open.lock();
        if open.1.len() >= self.limit {
            let idle = open.1.iter().filter(|(_, connection)| !connection.is_busy());
            let oldest = idle
                .min_by_key(|(id, connection)| (connection.idle_since.load(Ordering::Relaxed), **id))
                .map(|(id, _)| *id)?;
            if let Some(connection) = open.1.remove(&oldest) {
                connection.leave.notify_one();
            }
        }
        let id = open.0;
        open.0 += 1;
        let connection = Arc::<Connection>::default();
        connection.idle_since.store(self.now(), Ordering::Relaxed);
        open.1.insert(id, Arc::clone(&connection));
        Some((id, connection))
    }

    fn leave(&self, id: u64) {
        self.open.lock().1.remove(&id);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Accepts connections until `stop` says true, then waits until the last one has been closed.
pub async fn serve<A: Answer>(
    listener: TcpListener,
    connections: Arc<Connections>,
    answer: A,
    mut stop: watch::Receiver<bool>,
) {
    let stopped = stop.clone();
    // Each connection holds a sender; when the last is dropped, the receiver knows.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => start(stream, &connections, &answer, &stopped, &open),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    drop((listener, open));
    let _ = all_closed.recv().await;
}

fn start<A: Answer>(
    stream: TcpStream,
    connections: &Arc<Connections>,
    answer: &A,
    stop: &watch::Receiver<bool>,
    open: &mpsc::Sender<()>,
) {
    let Some((id, connection)) = connections.enter() else {
        tracing::warn!("a connection was turned away: all others are busy");
        // A fresh socket has room for so little; if not, closing it says enough.
        let _ = stream.try_write(NO_ROOM);
        return;
    };
    answer.connections(connections.count());
    // Answers are written whole; waiting for more to send would only delay them.
    let _ = stream.set_nodelay(true);
    let connections = Arc::clone(connections);
    let (answer, stop, open) = (answer.clone(), stop.clone(), open.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = connection.leave.notified() => {}
            () = serve_one(stream, &connections, &connection, &answer, stop) => {}
        }
        connections.leave(id);
        answer.connections(connections.count());
        drop(open);
    });
}

async fn serve_one<A: Answer>(
    stream: TcpStream,
    connections: &Connections,
    connection: &Arc<Connection>,
    answer: &A,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(|request| {
        Box::pin(async move {
            let busy = connection.busy();
            let response = answer.answer(request).await;
            (connection.idle_since).store(connections.now(), Ordering::Relaxed);
            drop(busy);
            Ok::<_, Infallible>(response)
        })
    });
    let io = TokioIo::new(StrictIo::new(stream, Arc::clone(connection)));
    let mut http = http1::Builder::new()
        // Deadlines for heads are those of the socket.
        .header_read_timeout(None)
        .max_buf_size(MAX_BUFFER_BYTES)
        .max_headers(MAX_HEADERS + 1)
        .serve_connection(io, service);
    let ended = {
        let mut running = poll_fn(|context| http.poll_without_shutdown(context));
        tokio::select! {
            ended = &mut running => Some(ended),
            _ = stop.wait_for(|stop| *stop) => None,
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            Pin::new(&mut http).graceful_shutdown();
            poll_fn(|context| http.poll_without_shutdown(context)).await
        }
    };
    if let Err(error) = &ended {
        tracing::debug!(%error, "a connection ended early");
    }
    let io = http.into_parts().io.into_inner();
    let may_be_sending = io.is_in_the_middle();
    let mut stream = io.into_inner();
    if stream.shutdown().await.is_ok() && may_be_sending {
        let _ = tokio::time::timeout(LINGER, drain(&mut stream)).await;
    }
}

async fn drain(stream: &mut TcpStream) {
    // Not an array: every connection would have room for it all its life.
    let mut bytes = vec![0; 4096];
    let mut left = MAX_LINGER_BYTES;
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        left = left.saturating_sub(count);
        if left == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_has_to_go_and_the_busy_stay() {
        let connections = Connections::new(2);
        let (first, one) = connections.enter().unwrap();
        let (second, two) = connections.enter().unwrap();
        let busy = one.busy();
        let (third, _) = connections.enter().unwrap();
        let open = |connections: &Connections| {
            let mut ids: Vec<_> = connections.open.lock().1.keys().copied().collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(open(&connections), [first, third]);
        let _all_busy = two.busy();
        let third_busy = Arc::clone(&connections.open.lock().1[&third]);
        let third_busy = third_busy.busy();
        assert!(connections.enter().is_none());
        drop((busy, third_busy));
        connections.leave(first);
        assert_eq!(open(&connections), [third]);
        assert_ne!(second, third);
    }

    #[test]
    fn the_answer_without_room_is_well_formed() {
        let text = std::str::from_utf8(NO_ROOM).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{text}");
        assert!(!head.contains('\n') || head.lines().count() == 5, "{text}");
    }
}
