//! `/healthz`, `/readyz` and `/metrics`, for the kubelet and for Prometheus.
//!
//! Connections are few and short, and each has a timeout: a client that reaches the port can do no more than send a
//! GET.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::caches::Caches;
use crate::metrics::Metrics;

/// Concurrent connections. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 32;
/// Concurrent connections per address, so that one client cannot take all of them from the kubelet. Further ones are
/// closed.
const MAX_PER_ADDRESS: usize = 8;
/// Bounds one connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for a request's head, in bytes.
const MAX_HEAD: usize = 8 * 1024;
/// Wait after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The state of the process that the probes show. Clones share it.
#[derive(Clone)]
pub struct ProcessState {
    metrics: Arc<Metrics>,
    phase: Arc<Mutex<ProcessPhase>>,
}

#[derive(Clone, Default)]
enum ProcessPhase {
    /// The API server was not reached yet.
    #[default]
    Starting,
    /// Another process holds the Lease.
    StandingBy,
    /// This process holds the Lease, and its caches are not complete.
    Watching,
    /// This process reconciles.
    Leading(Caches),
    /// This process is shutting down.
    Ending,
}

impl ProcessState {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, phase: Arc::default() }
    }

    /// To be called when the API server answers and the process waits for the Lease.
    pub fn set_standby(&self) {
        self.set(ProcessPhase::StandingBy);
    }

    /// To be called when the process holds the Lease.
    pub fn set_watching(&self) {
        self.set(ProcessPhase::Watching);
    }

    /// To be called when the caches are complete.
    pub fn set_leading(&self, world: Caches) {
        self.set(ProcessPhase::Leading(world));
    }

    /// To be called when the process is shutting down.
    pub fn set_ending(&self) {
        self.set(ProcessPhase::Ending);
    }

    fn set(&self, now: ProcessPhase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn phase(&self) -> ProcessPhase {
        let now = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }

    fn respond(&self, path: &str) -> Response {
        match path {
            "/healthz" => Response::plain("200 OK", "ok\n"),
            "/readyz" => match self.phase() {
                ProcessPhase::Leading(_) => Response::plain("200 OK", "ok: leader\n"),
                ProcessPhase::StandingBy => Response::plain("200 OK", "ok: standby\n"),
                ProcessPhase::Starting => Response::plain(UNAVAILABLE, "not ready: starting\n"),
                ProcessPhase::Watching => {
                    Response::plain(UNAVAILABLE, "not ready: leader, and the watches are not complete\n")
                }
                ProcessPhase::Ending => Response::plain(UNAVAILABLE, "not ready: ending\n"),
            },
            "/metrics" => {
                let world = match self.phase() {
                    ProcessPhase::Leading(world) => Some(world),
                    _ => None,
                };
                Response {
                    status: "200 OK",
                    content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    body: self.metrics.to_text(world.as_ref()),
                }
            }
            _ => Response::plain("404 Not Found", "error: ask for /healthz, /readyz or /metrics\n"),
        }
    }
}

const UNAVAILABLE: &str = "503 Service Unavailable";

struct Response {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Response {
    fn plain(status: &'static str, body: &str) -> Self {
        Self { status, content_type: "text/plain", body: body.to_owned() }
    }
}

/// Starts to serve in the background. Returns the address, which has a port when the requested one was 0.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn serve(address: SocketAddr, state: ProcessState) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address} for probes"))?;
    let address = (listener.local_addr()).context("the socket for probes has no address")?;
    tracing::info!(%address, "listening for probes");
    tokio::spawn(accept(listener, state));
    Ok(address)
}

async fn accept(listener: TcpListener, state: ProcessState) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let guests = ConnectionCounts::default();
    // The semaphore is never closed.
    while let Ok(seat) = Arc::clone(&room).acquire_owned().await {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(guest) = guests.try_acquire(from.ip()) else {
            continue;
        };
        let state = state.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, handle(stream, &state)).await;
            drop((seat, guest));
        });
    }
}

/// Open connections by address.
#[derive(Clone, Default)]
struct ConnectionCounts(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One counted connection; the count is decremented on drop.
struct ConnectionGuard {
    counts: ConnectionCounts,
    address: IpAddr,
}

impl ConnectionCounts {
    fn try_acquire(&self, from: IpAddr) -> Option<ConnectionGuard> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(from).or_default();
        if *count >= MAX_PER_ADDRESS {
            return None;
        }
        *count += 1;
        let of = self.clone();
        Some(ConnectionGuard { counts: of, address: from })
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

async fn handle(mut stream: TcpStream, state: &ProcessState) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(512);
    // A probe has no body; a connection with a head that does not fit is closed.
    while !head.ends_with(b"\r\n\r\n") {
        let room = MAX_HEAD - head.len();
        if room == 0 || (&mut stream).take(room as u64).read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let answer = match request_path(&head) {
        Some(path) => state.respond(path),
        None => Response::plain("405 Method Not Allowed", "error: only GET\n"),
    };
    let Response { status, content_type: kind, body } = answer;
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The path of a GET, without its query.
fn request_path(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let (target, version) = line.strip_prefix("GET ")?.split_once(' ')?;
    version.starts_with("HTTP/1.").then_some(())?;
    target.split('?').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readiness(state: &ProcessState) -> (&'static str, String) {
        let answer = state.respond("/readyz");
        (answer.status, answer.body)
    }

    #[test]
    fn readiness_says_what_it_is() {
        let state = ProcessState::new(Arc::new(Metrics::new()));
        let not_yet = |text: &str| (UNAVAILABLE, format!("not ready: {text}\n"));
        assert_eq!(readiness(&state), not_yet("starting"));
        state.set_standby();
        assert_eq!(readiness(&state), ("200 OK", "ok: standby\n".to_owned()));
        state.set_watching();
        assert_eq!(readiness(&state), not_yet("leader, and the watches are not complete"));
        state.set_ending();
        assert_eq!(readiness(&state), not_yet("ending"));
        assert_eq!(state.respond("/healthz").body, "ok\n");
        assert!(state.respond("/metrics").body.ends_with("# EOF\n"));
        assert_eq!(state.respond("/").status, "404 Not Found");
    }

    #[test]
    fn only_get_is_understood() {
        for (head, expected) in [
            ("GET /readyz HTTP/1.1\r\n\r\n", Some("/readyz")),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", Some("/metrics")),
            ("POST /readyz HTTP/1.1\r\n\r\n", None),
            ("GET /readyz\r\n\r\n", None),
            ("GET /readyz HTTP/2\r\n\r\n", None),
            ("", None),
        ] {
            assert_eq!(request_path(head.as_bytes()), expected, "{head}");
        }
    }

    #[test]
    fn one_address_does_not_get_every_place() {
        let guests = ConnectionCounts::default();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let mut held: Vec<_> = (0..MAX_PER_ADDRESS).map(|_| guests.try_acquire(one)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(guests.try_acquire(one).is_none());
        assert!(guests.try_acquire(other).is_some());
        held.pop();
        assert!(guests.try_acquire(one).is_some());
        drop(held);
        assert_eq!(guests.0.lock().unwrap().len(), 0);
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_cut() {
        let state = ProcessState::new(Arc::new(Metrics::new()));
        let address = serve(([127, 0, 0, 1], 0).into(), state).await.unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A head that does not fit and never ends.
        let _ = stream.write_all(&[b'x'; MAX_HEAD]).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(answer, b"");
    }
}
