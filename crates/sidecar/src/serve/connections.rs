//! The connections of one address: their limit, which one is closed at the limit, and how each is served and closed.

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

use sympozium_ipc::strict_head::{MAX_HEAD_BYTES, MAX_HEADERS};

use super::strict_io::StrictIo;

/// The parser's buffer. A head must fit in it, with the `Connection: close` that [`StrictIo`] adds.
const MAX_BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES;
/// How long, and for how many bytes, a connection that is closed early is still read: otherwise a peer that is sending
/// would lose the response to a reset.
const LINGER: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 4 * 1024 * 1024;
/// How long to wait after `accept` has failed, such as for lack of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// The response to a connection when all others are busy.
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
Retry-After: 1\r\nConnection: close\r\nContent-Length: 33\r\n\r\n{\"error\":\"too many connections\"}\n";

pub trait Handler: Clone + Send + Sync + 'static {
    /// The future is dropped when the caller disconnects.
    fn handle(&self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send;
    /// Called when the number of connections changes.
    fn record_connections(&self, count: usize);
}

/// The state of a connection that its registry and its socket share.
#[derive(Debug, Default)]
pub struct Connection {
    busy: AtomicBool,
    /// When it last became idle, in microseconds of its registry.
    idle_since: AtomicU64,
    evicted: Notify,
}

impl Connection {
    /// Whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Until the guard is dropped, the connection is neither evicted nor subject to deadlines of its socket.
    pub fn mark_busy(&self) -> BusyGuard<'_> {
        self.busy.store(true, Ordering::Relaxed);
        BusyGuard(self)
    }
}

/// See [`Connection::mark_busy`].
pub struct BusyGuard<'a>(&'a Connection);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

/// The open connections of an address.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    epoch: Instant,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next_id: u64,
    by_id: HashMap<u64, Arc<Connection>>,
}

impl Connections {
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), epoch: Instant::now(), open: Mutex::default() }
    }

    pub fn count(&self) -> usize {
        self.open.lock().by_id.len()
    }

    /// Adds a connection. At the limit it evicts the one that has been idle longest; when none is idle, it returns `None`.
    fn register(&self) -> Option<(u64, Arc<Connection>)> {
        let mut open = self.open.lock();
        if open.by_id.len() >= self.limit {
            let idle = open.by_id.iter().filter(|(_, connection)| !connection.is_busy());
            let oldest = idle
                .min_by_key(|(id, connection)| (connection.idle_since.load(Ordering::Relaxed), **id))
                .map(|(id, _)| *id)?;
            if let Some(connection) = open.by_id.remove(&oldest) {
                connection.evicted.notify_one();
            }
        }
        let id = open.next_id;
        open.next_id += 1;
        let connection = Arc::<Connection>::default();
        connection.idle_since.store(self.now(), Ordering::Relaxed);
        open.by_id.insert(id, Arc::clone(&connection));
        Some((id, connection))
    }

    fn remove(&self, id: u64) {
        self.open.lock().by_id.remove(&id);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Accepts connections until `stop` is true, then waits until the last one is closed.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    connections: Arc<Connections>,
    handler: H,
    mut stop: watch::Receiver<bool>,
) {
    let stopped = stop.clone();
    // Each connection holds a sender; the receiver returns when the last one is dropped.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => spawn_connection(stream, &connections, &handler, &stopped, &open),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
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

fn spawn_connection<H: Handler>(
    stream: TcpStream,
    connections: &Arc<Connections>,
    handler: &H,
    stop: &watch::Receiver<bool>,
    open: &mpsc::Sender<()>,
) {
    let Some((id, connection)) = connections.register() else {
        tracing::warn!("connection refused: all others are busy");
        // Fits the buffer of a new socket; otherwise the connection is only closed.
        let _ = stream.try_write(TOO_MANY_CONNECTIONS);
        return;
    };
    handler.record_connections(connections.count());
    // Responses are written as a whole; Nagle's algorithm would only delay them.
    let _ = stream.set_nodelay(true);
    let connections = Arc::clone(connections);
    let (handler, stop, open) = (handler.clone(), stop.clone(), open.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = connection.evicted.notified() => {}
            () = serve_connection(stream, &connections, &connection, &handler, stop) => {}
        }
        connections.remove(id);
        handler.record_connections(connections.count());
        drop(open);
    });
}

async fn serve_connection<H: Handler>(
    stream: TcpStream,
    connections: &Connections,
    connection: &Arc<Connection>,
    handler: &H,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(|request| {
        Box::pin(async move {
            let busy = connection.mark_busy();
            let response = handler.handle(request).await;
            (connection.idle_since).store(connections.now(), Ordering::Relaxed);
            drop(busy);
            Ok::<_, Infallible>(response)
        })
    });
    let io = TokioIo::new(StrictIo::new(stream, Arc::clone(connection)));
    let mut http = http1::Builder::new()
        // StrictIo has the deadlines for heads.
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
        tracing::debug!(%error, "connection ended early");
    }
    let io = http.into_parts().io.into_inner();
    let may_be_sending = io.has_unread_input();
    let mut stream = io.into_inner();
    if stream.shutdown().await.is_ok() && may_be_sending {
        let _ = tokio::time::timeout(LINGER, drain(&mut stream)).await;
    }
}

async fn drain(stream: &mut TcpStream) {
    // Not an array, which would be part of every connection's future.
    let mut bytes = vec![0; 4096];
    let mut remaining = MAX_LINGER_BYTES;
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        remaining = remaining.saturating_sub(count);
        if remaining == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_is_evicted_and_busy_ones_stay() {
        let connections = Connections::new(2);
        let (first, one) = connections.register().unwrap();
        let (second, two) = connections.register().unwrap();
        let busy = one.mark_busy();
        let (third, _) = connections.register().unwrap();
        let open = |connections: &Connections| {
            let mut ids: Vec<_> = connections.open.lock().by_id.keys().copied().collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(open(&connections), [first, third]);
        let _all_busy = two.mark_busy();
        let third_busy = Arc::clone(&connections.open.lock().by_id[&third]);
        let third_busy = third_busy.mark_busy();
        assert!(connections.register().is_none());
        drop((busy, third_busy));
        connections.remove(first);
        assert_eq!(open(&connections), [third]);
        assert_ne!(second, third);
    }

    #[test]
    fn the_response_at_the_limit_is_well_formed() {
        let text = std::str::from_utf8(TOO_MANY_CONNECTIONS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{text}");
        assert!(!head.contains('\n') || head.lines().count() == 5, "{text}");
    }
}
