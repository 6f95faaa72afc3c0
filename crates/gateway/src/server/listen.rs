//! The sockets that the program listens on: for parts of runs, for probes, and the canary.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sympozium_program::Failure;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::arguments::ServeArguments;
use crate::egress::Gateway;
use crate::forward::GatewayAddress;
use crate::outside::Network;

use super::peers::Peers;

/// Descriptors besides those of connections.
const FOR_THE_REST: usize = 128;
/// Connections beyond the limit that are told so at the same time. Further ones wait to be accepted.
const TURNED_AWAY: usize = 64;
/// How long to wait when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections of probes, or to the canary, at once.
const MAX_PROBES: usize = 32;
/// How long one of them may take.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);
/// Silence after which the system asks whether a peer is still there, how often, and how many times.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TIMES: u32 = 4;
/// What the canary says.
pub const CANARY: &[u8] =
    b"sympozium-gateway canary: this pod is not held in by its NetworkPolicy\n";

/// Raises the limit of open files as far as it is needed: two for each connection.
pub fn make_room(connections: usize) -> anyhow::Result<()> {
    let wanted = (2 * (connections + TURNED_AWAY) + FOR_THE_REST) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum.map(|maximum| maximum.max(wanted)),
    };
    let raised = setrlimit(Resource::Nofile, raised);
    ensure!(
        raised.is_ok(),
        "{connections} connections need {wanted} open files, and the limit is {}; choose fewer with --max-connections",
        limit.maximum.unwrap_or_default()
    );
    Ok(())
}

/// Serves parts of runs. Gives the address that it listens on, if it is one.
pub async fn serve(
    arguments: &ServeArguments,
    gateway: &Arc<Gateway<Network>>,
    tls: Option<TlsAcceptor>,
    closing: watch::Receiver<bool>,
    open: mpsc::Sender<()>,
) -> Result<Option<SocketAddr>, Failure> {
    let gateway = Arc::clone(gateway);
    let serving = Serving { gateway, tls, open };
    match &arguments.listen {
        GatewayAddress::Tcp(address) => {
            let listener = bind(*address).await?;
            let address = listener.local_addr().context("the socket has no address")?;
            let tls = serving.tls.is_some();
            tracing::info!(%address, tls, "listening");
            if !tls && !address.ip().is_loopback() {
                tracing::warn!(%address, "credentials travel in clear text beyond this machine");
            }
            tokio::spawn(serving.accept(
                async move || {
                    let (stream, peer) = listener.accept().await?;
                    let _ = stream.set_nodelay(true);
                    keep_alive(&stream);
                    Ok((stream, Some(peer.ip())))
                },
                closing,
            ));
            Ok(Some(address))
        }
        GatewayAddress::Unix(path) => {
            let listener = UnixListener::bind(path);
            let listener = listener.with_context(|| format!("cannot listen on {}", path.display()));
            let listener = listener.map_err(|error| {
                Failure::new(error, "remove what is there, or choose another path")
            })?;
            tracing::info!(path = %path.display(), "listening");
            tokio::spawn(serving.accept(
                async move || Ok((listener.accept().await?.0, None)),
                closing,
            ));
            Ok(None)
        }
    }
}

/// Has the system find out when a peer is gone without a word: a connection of the run API may be silent for as long as
/// its run lasts, and asking in HTTP/2 would wake a bridge that has nothing to do.
fn keep_alive(stream: &TcpStream) {
    // A connection without is served as well.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_TIMES);
}

struct Serving {
    gateway: Arc<Gateway<Network>>,
    tls: Option<TlsAcceptor>,
    open: mpsc::Sender<()>,
}

impl Serving {
    async fn accept<S>(
        self,
        next: impl AsyncFn() -> std::io::Result<(S, Option<IpAddr>)>,
        mut closing: watch::Receiver<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let peers = Peers::new(self.gateway.settings().connections_of_peer);
        let room = self.gateway.settings().connections + TURNED_AWAY;
        let room = Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS)));
        loop {
            let accepting = async {
                let seat = Arc::clone(&room).acquire_owned().await;
                (seat, next().await)
            };
            let (seat, accepted) = tokio::select! {
                accepted = accepting => accepted,
                _ = closing.wait_for(|closing| *closing) => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let peer_seat = peer.map(|it| peers.enter(it));
                    if let (Some(None), Some(peer)) = (&peer_seat, peer) {
                        tracing::warn!(%peer, "an address has too many connections open");
                        continue;
                    }
                    let (gateway, tls) = (Arc::clone(&self.gateway), self.tls.clone());
                    let open = self.open.clone();
                    tokio::spawn(async move {
                        match tls {
                            None => gateway.serve(stream).await,
                            Some(tls) => {
                                let deadline = gateway.settings().head_deadline;
                                match timeout(deadline, tls.accept(stream)).await {
                                    Ok(Ok(stream)) => gateway.serve_encrypted(stream).await,
                                    _ => tracing::debug!("a client spoke no TLS"),
                                }
                            }
                        }
                        drop((seat, peer_seat, open));
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Says hello to everybody, at the same address as the gateway itself.
pub async fn canary(
    beside: Option<SocketAddr>,
    port: u16,
    closing: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let address = beside.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |it| it.ip());
    let listener = bind(SocketAddr::new(address, port)).await?;
    tracing::info!(address = ?listener.local_addr().ok(), "the canary listens");
    tokio::spawn(small(listener, closing, say_hello));
    Ok(())
}

async fn say_hello(mut stream: TcpStream) {
    let _ = stream.write_all(CANARY).await;
    let _ = stream.shutdown().await;
}

/// Answers `GET /healthz`.
pub async fn probes(address: SocketAddr, closing: watch::Receiver<bool>) -> Result<(), Failure> {
    let listener = bind(address).await?;
    tracing::info!(address = ?listener.local_addr().ok(), "listening for probes");
    tokio::spawn(small(listener, closing, answer_probe));
    Ok(())
}

async fn answer_probe(mut stream: TcpStream) {
    let mut bytes = [0; 1024];
    let mut filled = 0;
    // A probe's head is short; whatever does not fit is none.
    while !bytes[..filled].ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes[filled..]).await {
            Ok(count @ 1..) => filled += count,
            _ => return,
        }
    }
    let (status, body) = if bytes.starts_with(b"GET /healthz HTTP/1.") {
        ("200 OK", "ok\n")
    } else {
        ("404 Not Found", "error: ask for /healthz\n")
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Serves a few short connections at once.
async fn small<F>(
    listener: TcpListener,
    mut closing: watch::Receiver<bool>,
    answer: fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MAX_PROBES));
    loop {
        let accepting = async {
            let seat = Arc::clone(&room).acquire_owned().await;
            (seat, listener.accept().await)
        };
        let (seat, accepted) = tokio::select! {
            accepted = accepting => accepted,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(async move {
                    let _ = timeout(PROBE_DEADLINE, answer(stream)).await;
                    drop(seat);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"));
    listener.map_err(|error| {
        Failure::new(
            error,
            "is the port in use, or reserved? choose another address",
        )
    })
}
