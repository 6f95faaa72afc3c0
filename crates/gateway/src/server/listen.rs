//! The socket that parts of runs connect to: accepts or refuses clients.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sympozium_program::Failure;
use sympozium_program::listen::{ACCEPT_BACKOFF, bind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::connection_limits::ConnectionSlot;
use crate::egress::Gateway;
use crate::events::Reason;
use crate::forward::GatewayAddress;
use crate::metrics::Metrics;
use crate::network::Network;

use super::refused_connections::{MAX_REFUSED, RefusedConnections};

/// File descriptors besides those of connections.
const OTHER_FILES: usize = 256;
/// How long a connection waits for room before it is refused.
const BURST_TIMEOUT: Duration = Duration::from_secs(2);
/// TCP keepalive: idle time, interval, and number of probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_COUNT: u32 = 4;
/// The first byte of every TLS connection, and of no HTTP request.
const TLS_HANDSHAKE: u8 = 0x16;

/// Raises the limit of open files as far as needed: two for each connection.
pub fn raise_file_limit(connections: usize) -> anyhow::Result<()> {
    let wanted = (2 * (connections + MAX_REFUSED) + OTHER_FILES) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum.map(|maximum| maximum.max(wanted)) };
    let raised = setrlimit(Resource::Nofile, raised);
    ensure!(
        raised.is_ok(),
        "{connections} connections need {wanted} open files, and the limit is {}; choose fewer with --max-connections",
        limit.maximum.unwrap_or_default()
    );
    Ok(())
}

/// Enables TCP keepalive, to detect a peer that vanished silently: a connection of the run API may be idle for as long
/// as its run, and HTTP/2 pings would wake an idle bridge.
fn set_keepalive(stream: &TcpStream) {
    // A connection without keepalive is served as well.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
}

pub struct ClientListener {
    pub gateway: Arc<Gateway<Network>>,
    /// Counts refused connections.
    pub metrics: Arc<Metrics>,
    /// May change for the next connection.
    pub tls: Option<watch::Receiver<TlsAcceptor>>,
    /// Whether the proxy also serves clients without TLS.
    pub plain_proxy: bool,
    /// Each connection holds a clone.
    pub open: mpsc::Sender<()>,
}

/// A client whose first byte can be peeked at.
trait Peek {
    /// Whether it begins a TLS handshake.
    fn begins_tls(&self) -> impl Future<Output = io::Result<bool>> + Send;
}

impl Peek for TcpStream {
    async fn begins_tls(&self) -> io::Result<bool> {
        let mut first = [0];
        match self.peek(&mut first).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(first[0] == TLS_HANDSHAKE),
        }
    }
}

impl Peek for UnixStream {
    /// Tokio cannot peek at a Unix socket, and a Unix socket needs no two protocols.
    async fn begins_tls(&self) -> io::Result<bool> {
        Ok(true)
    }
}

impl ClientListener {
    /// Starts to listen. Returns the address, unless it is a Unix socket.
    pub async fn listen(
        self,
        at: &GatewayAddress,
        closing: watch::Receiver<bool>,
    ) -> Result<Option<SocketAddr>, Failure> {
        match at {
            GatewayAddress::Tcp(address) => {
                let listener = bind(*address).await?;
                let address = listener.local_addr().context("the socket has no address")?;
                let tls = self.tls.is_some();
                tracing::info!(%address, tls, "listening");
                if !tls && !address.ip().is_loopback() {
                    tracing::warn!(%address, "credentials travel in clear text beyond this machine");
                }
                tokio::spawn(self.accept(
                    async move || {
                        let (stream, peer) = listener.accept().await?;
                        let _ = stream.set_nodelay(true);
                        set_keepalive(&stream);
                        Ok((stream, Some(peer.ip())))
                    },
                    closing,
                ));
                Ok(Some(address))
            }
            GatewayAddress::Unix(path) => {
                let listener = UnixListener::bind(path);
                let listener = listener.with_context(|| format!("cannot listen on {}", path.display()));
                let listener =
                    listener.map_err(|error| Failure::new(error, "remove what is there, or choose another path"))?;
                tracing::info!(path = %path.display(), "listening");
                tokio::spawn(self.accept(async move || Ok((listener.accept().await?.0, None)), closing));
                Ok(None)
            }
        }
    }

    /// Accepts every connection at once, so that refused ones do not delay others.
    async fn accept<S>(
        self,
        next: impl AsyncFn() -> io::Result<(S, Option<IpAddr>)>,
        mut closing: watch::Receiver<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Peek + Unpin + Send + Sync + 'static,
    {
        let turned_away = RefusedConnections::new(Arc::clone(&self.metrics));
        loop {
            let accepted = tokio::select! {
                accepted = next() => accepted,
                _ = closing.wait_for(|closing| *closing) => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            let client = AcceptedClient {
                gateway: Arc::clone(&self.gateway),
                tls: self.tls.as_ref().map(|tls| tls.borrow().clone()),
                plain_proxy: self.plain_proxy,
                stream,
            };
            let open = self.open.clone();
            match self.gateway.limiter().acquire(peer) {
                Ok(permit) => {
                    tokio::spawn(async move {
                        client.serve(permit).await;
                        drop(open);
                    });
                }
                Err(reason) => {
                    // If many are refused, the rest of them is closed without an answer.
                    let Some(place) = turned_away.acquire(peer) else {
                        turned_away.record(peer, reason);
                        continue;
                    };
                    let turned_away = Arc::clone(&turned_away);
                    tokio::spawn(async move {
                        let admission = client.gateway.limiter();
                        let admitted = admission.acquire_within(peer, BURST_TIMEOUT).await;
                        match admitted {
                            Ok(permit) => {
                                drop(place);
                                client.serve(permit).await;
                            }
                            Err(reason) => {
                                turned_away.record(peer, reason);
                                client.refuse(reason).await;
                                drop(place);
                            }
                        }
                        drop(open);
                    });
                }
            }
        }
    }
}

struct AcceptedClient<S> {
    gateway: Arc<Gateway<Network>>,
    tls: Option<TlsAcceptor>,
    plain_proxy: bool,
    stream: S,
}

impl<S> AcceptedClient<S>
where
    S: AsyncRead + AsyncWrite + Peek + Unpin + Send + Sync,
{
    async fn serve(self, permit: ConnectionSlot) {
        let Self { gateway, tls, plain_proxy, stream } = self;
        let Some(tls) = tls else {
            return gateway.serve_accepted(stream, permit).await;
        };
        let deadline = gateway.settings().head_timeout;
        if plain_proxy {
            match timeout(deadline, stream.begins_tls()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return gateway.serve_proxy(stream, permit).await,
                _ => return tracing::debug!("a client sent nothing"),
            }
        }
        match timeout(deadline, tls.accept(stream)).await {
            Ok(Ok(stream)) => gateway.serve_tls(stream, permit).await,
            _ => tracing::debug!("a client spoke no TLS"),
        }
    }

    /// Sends the reason if the client uses plain HTTP: a TLS handshake is too expensive for a refusal.
    async fn refuse(self, reason: Reason) {
        let speaks_http = match (&self.tls, self.plain_proxy) {
            (None, _) => true,
            (Some(_), false) => false,
            (Some(_), true) => {
                let begins = timeout(BURST_TIMEOUT, self.stream.begins_tls()).await;
                matches!(begins, Ok(Ok(false)))
            }
        };
        if speaks_http {
            self.gateway.refuse(self.stream, reason).await;
        }
    }
}
