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

use crate::metrics::Metrics;
use crate::world::World;

/// Concurrent connections. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 32;
/// Concurrent connections per address, so that one client cannot take all of them from the kubelet. Further ones are
/// closed.
const MAX_OF_ADDRESS: usize = 8;
/// Bounds one connection.
const DEADLINE: Duration = Duration::from_secs(5);
/// Limit for a request's head, in bytes.
const MAX_HEAD: usize = 8 * 1024;
/// Wait after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The state of the process that the probes show. Clones share it.
#[derive(Clone)]
pub struct State {
    metrics: Arc<Metrics>,
    now: Arc<Mutex<Now>>,
}

#[derive(Clone, Default)]
enum Now {
    /// The API server was not reached yet.
    #[default]
    Starting,
    /// Another process holds the Lease.
    StandingBy,
    /// This process holds the Lease, and its caches are not complete.
    Watching,
    /// This process reconciles.
    Leading(World),
    /// This process is shutting down.
    Ending,
}

impl State {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, now: Arc::default() }
    }

    /// To be called when the API server answers and the process waits for the Lease.
    pub fn stands_by(&self) {
        self.set(Now::StandingBy);
    }

    /// To be called when the process holds the Lease.
    pub fn watches(&self) {
        self.set(Now::Watching);
    }

    /// To be called when the caches are complete.
    pub fn leads(&self, world: World) {
        self.set(Now::Leading(world));
    }

    /// To be called when the process is shutting down.
    pub fn ends(&self) {
        self.set(Now::Ending);
    }

    fn set(&self, now: Now) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn get(&self) -> Now {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }

    fn answer(&self, path: &str) -> Answer {
        match path {
            "/healthz" => Answer::plain("200 OK", "ok\n"),
            "/readyz" => match self.get() {
                Now::Leading(_) => Answer::plain("200 OK", "ok: leader\n"),
                Now::StandingBy => Answer::plain("200 OK", "ok: standby\n"),
                Now::Starting => Answer::plain(UNAVAILABLE, "not ready: starting\n"),
                Now::Watching => Answer::plain(UNAVAILABLE, "not ready: leader, and the watches are not complete\n"),
                Now::Ending => Answer::plain(UNAVAILABLE, "not ready: ending\n"),
            },
            "/metrics" => {
                let world = match self.get() {
                    Now::Leading(world) => Some(world),
                    _ => None,
                };
                Answer {
                    status: "200 OK",
                    kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    body: self.metrics.text(world.as_ref()),
                }
            }
            _ => Answer::plain("404 Not Found", "error: ask for /healthz, /readyz or /metrics\n"),
        }
    }
}

const UNAVAILABLE: &str = "503 Service Unavailable";

struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn plain(status: &'static str, body: &str) -> Self {
        Self { status, kind: "text/plain", body: body.to_owned() }
    }
}

/// Starts to serve in the background. Returns the address, which has a port when the requested one was 0.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn serve(address: SocketAddr, state: State) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address} for probes"))?;
    let address = (listener.local_addr()).context("the socket for probes has no address")?;
    tracing::info!(%address, "listening for probes");
    tokio::spawn(accept(listener, state));
    Ok(address)
}

async fn accept(listener: TcpListener, state: State) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let guests = Guests::default();
    // The semaphore is never closed.
    while let Ok(seat) = Arc::clone(&room).acquire_owned().await {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(guest) = guests.let_in(from.ip()) else {
            continue;
        };
        let state = state.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(DEADLINE, answer(stream, &state)).await;
            drop((seat, guest));
        });
    }
}

/// Open connections by address.
#[derive(Clone, Default)]
struct Guests(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One counted connection; the count is decremented on drop.
struct Guest {
    of: Guests,
    from: IpAddr,
}

impl Guests {
    fn let_in(&self, from: IpAddr) -> Option<Guest> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(from).or_default();
        if *count >= MAX_OF_ADDRESS {
            return None;
        }
        *count += 1;
        let of = self.clone();
        Some(Guest { of, from })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

async fn answer(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(512);
    // A probe has no body; a connection with a head that does not fit is closed.
    while !head.ends_with(b"\r\n\r\n") {
        let room = MAX_HEAD - head.len();
        if room == 0 || (&mut stream).take(room as u64).read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let answer = match path(&head) {
        Some(path) => state.answer(path),
        None => Answer::plain("405 Method Not Allowed", "error: only GET\n"),
    };
    let Answer { status, kind, body } = answer;
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The path of a GET, without its query.
fn path(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let (target, version) = line.strip_prefix("GET ")?.split_once(' ')?;
    version.starts_with("HTTP/1.").then_some(())?;
    target.split('?').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readiness(state: &State) -> (&'static str, String) {
        let answer = state.answer("/readyz");
        (answer.status, answer.body)
    }

    #[test]
    fn readiness_says_what_it_is() {
        let state = State::new(Arc::new(Metrics::new()));
        let not_yet = |text: &str| (UNAVAILABLE, format!("not ready: {text}\n"));
        assert_eq!(readiness(&state), not_yet("starting"));
        state.stands_by();
        assert_eq!(readiness(&state), ("200 OK", "ok: standby\n".to_owned()));
        state.watches();
        assert_eq!(readiness(&state), not_yet("leader, and the watches are not complete"));
        state.ends();
        assert_eq!(readiness(&state), not_yet("ending"));
        assert_eq!(state.answer("/healthz").body, "ok\n");
        assert!(state.answer("/metrics").body.ends_with("# EOF\n"));
        assert_eq!(state.answer("/").status, "404 Not Found");
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
            assert_eq!(path(head.as_bytes()), expected, "{head}");
        }
    }

    #[test]
    fn one_address_does_not_get_every_place() {
        let guests = Guests::default();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let mut held: Vec<_> = (0..MAX_OF_ADDRESS).map(|_| guests.let_in(one)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(guests.let_in(one).is_none());
        assert!(guests.let_in(other).is_some());
        held.pop();
        assert!(guests.let_in(one).is_some());
        drop(held);
        assert_eq!(guests.0.lock().unwrap().len(), 0);
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_cut() {
        let state = State::new(Arc::new(Metrics::new()));
        let address = serve(([127, 0, 0, 1], 0).into(), state).await.unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A head that does not fit and never ends.
        let _ = stream.write_all(&[b'x'; MAX_HEAD]).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(answer, b"");
    }
}
