//! The sockets that the program listens on: for parts of runs, for probes, and the canary.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sympozium_program::Failure;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::arguments::ServeArguments;
use crate::egress::Gateway;
use crate::forward::GatewayAddress;
use crate::metrics::CONTENT_TYPE;
use crate::outside::Network;

use super::peers::Peers;

/// Descriptors besides those of connections.
const FOR_THE_REST: usize = 256;
/// Connections beyond the limit that are told so at the same time. Further ones wait to be accepted.
const TURNED_AWAY: usize = 64;
/// How long to wait when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections of probes, or to the canary, at once.
const MAX_PROBES: usize = 64;
/// The same, of one address: whoever stays silent must not keep the kubelet out.
const MAX_PROBES_OF_PEER: usize = 8;
/// How long one of them may take.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);
/// Silence after which the system asks whether a peer is still there, how often, and how many times.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TIMES: u32 = 4;
/// The first byte of every TLS connection, and of no HTTP.
const TLS_HANDSHAKE: u8 = 0x16;
/// What the canary says.
pub const CANARY: &[u8] = b"sympozium-gateway canary: this pod is not held in by its NetworkPolicy\n";

/// Raises the limit of open files as far as it is needed: two for each connection.
pub fn make_room(connections: usize) -> anyhow::Result<()> {
    let wanted = (2 * (connections + TURNED_AWAY) + FOR_THE_REST) as u64;
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

/// Serves parts of runs. Gives the address that it listens on, if it is one.
pub async fn serve(
    arguments: &ServeArguments,
    gateway: &Arc<Gateway<Network>>,
    tls: Option<watch::Receiver<TlsAcceptor>>,
    closing: watch::Receiver<bool>,
    open: mpsc::Sender<()>,
) -> Result<Option<SocketAddr>, Failure> {
    let gateway = Arc::clone(gateway);
    let serving = Serving { gateway, tls, plain_proxy: arguments.plain_proxy, open };
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
            let listener =
                listener.map_err(|error| Failure::new(error, "remove what is there, or choose another path"))?;
            tracing::info!(path = %path.display(), "listening");
            tokio::spawn(serving.accept(async move || Ok((listener.accept().await?.0, None)), closing));
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
    /// Which may be another one for the next connection.
    tls: Option<watch::Receiver<TlsAcceptor>>,
    /// Whether the proxy is there for clients without TLS too.
    plain_proxy: bool,
    open: mpsc::Sender<()>,
}

/// A client whose first byte can be looked at before anything is read.
trait Peek {
    /// Whether it begins a handshake of TLS.
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
    /// A socket's bytes can not be looked at by way of the runtime, and a socket needs no two protocols.
    async fn begins_tls(&self) -> io::Result<bool> {
        Ok(true)
    }
}

impl Serving {
    async fn accept<S>(
        self,
        next: impl AsyncFn() -> io::Result<(S, Option<IpAddr>)>,
        mut closing: watch::Receiver<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Peek + Unpin + Send + Sync + 'static,
    {
        let plain_proxy = self.plain_proxy;
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
                    let gateway = Arc::clone(&self.gateway);
                    let tls = self.tls.as_ref().map(|it| it.borrow().clone());
                    let open = self.open.clone();
                    tokio::spawn(async move {
                        match tls {
                            None => gateway.serve(stream).await,
                            Some(tls) => encrypted(&gateway, &tls, plain_proxy, stream).await,
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

/// Serves a client of an address that speaks TLS.
async fn encrypted<S>(gateway: &Gateway<Network>, tls: &TlsAcceptor, plain_proxy: bool, stream: S)
where
    S: AsyncRead + AsyncWrite + Peek + Unpin + Send + Sync,
{
    let deadline = gateway.settings().head_deadline;
    if plain_proxy {
        match timeout(deadline, stream.begins_tls()).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return gateway.serve_proxy(stream).await,
            _ => return tracing::debug!("a client said nothing"),
        }
    }
    match timeout(deadline, tls.accept(stream)).await {
        Ok(Ok(stream)) => gateway.serve_encrypted(stream).await,
        _ => tracing::debug!("a client spoke no TLS"),
    }
}

/// Says hello to everybody, at the same address as the gateway itself.
pub async fn canary(beside: Option<SocketAddr>, port: u16, closing: watch::Receiver<bool>) -> Result<(), Failure> {
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

/// Who answers probes.
pub trait Probed: Send + Sync + 'static {
    /// Whether runs can be served, or why not.
    fn ready(&self) -> Result<(), &'static str>;
    /// What was counted.
    fn metrics(&self) -> String;
}

/// Answers `GET /healthz`, `/readyz` and `/metrics`.
pub async fn probes(
    address: SocketAddr,
    closing: watch::Receiver<bool>,
    probed: Arc<impl Probed>,
) -> Result<(), Failure> {
    let listener = bind(address).await?;
    tracing::info!(address = ?listener.local_addr().ok(), "listening for probes");
    let answer = move |stream| answer_probe(stream, Arc::clone(&probed));
    tokio::spawn(small(listener, closing, answer));
    Ok(())
}

async fn answer_probe(mut stream: TcpStream, probed: Arc<impl Probed>) {
    let mut bytes = [0; 1024];
    let mut filled = 0;
    // A probe's head is short; whatever does not fit is none.
    while !bytes[..filled].ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes[filled..]).await {
            Ok(count @ 1..) => filled += count,
            _ => return,
        }
    }
    let text = "text/plain";
    let line = bytes[..filled].split(|byte| *byte == b'\r').next();
    let words: Vec<&[u8]> = line.unwrap_or_default().split(|byte| *byte == b' ').collect();
    let path = match words[..] {
        [b"GET", path, version] if version.starts_with(b"HTTP/1.") => path,
        _ => b"",
    };
    let (status, kind, body) = match path {
        b"/healthz" => ("200 OK", text, "ok\n".to_owned()),
        b"/readyz" => match probed.ready() {
            Ok(()) => ("200 OK", text, "ok\n".to_owned()),
            Err(why) => ("503 Service Unavailable", text, format!("not ready: {why}\n")),
        },
        b"/metrics" => ("200 OK", CONTENT_TYPE, probed.metrics()),
        _ => {
            let body = "error: ask for /healthz, /readyz or /metrics\n".to_owned();
            ("404 Not Found", text, body)
        }
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Serves a few short connections at once.
async fn small<F>(listener: TcpListener, mut closing: watch::Receiver<bool>, answer: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MAX_PROBES));
    let peers = Peers::new(MAX_PROBES_OF_PEER);
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
            Ok((stream, peer)) => {
                let Some(peer_seat) = peers.enter(peer.ip()) else {
                    continue;
                };
                let answering = answer(stream);
                tokio::spawn(async move {
                    let _ = timeout(PROBE_DEADLINE, answering).await;
                    drop((seat, peer_seat));
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"));
    listener.map_err(|error| Failure::new(error, "is the port in use, or reserved? choose another address"))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    async fn from(own: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{own}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_no_other_address_from_being_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_close, closing) = watch::channel(false);
        // Answers whoever has said something.
        tokio::spawn(small(listener, closing, async |mut stream: TcpStream| {
            if stream.read_u8().await.is_ok() {
                let _ = stream.write_all(b"ok").await;
            }
        }));
        let mut silent = Vec::new();
        for _ in 0..2 * MAX_PROBES {
            silent.push(from("127.0.0.2", address).await);
        }
        let mut kubelet = from("127.0.0.3", address).await;
        kubelet.write_all(b"?").await.unwrap();
        let mut answer = String::new();
        let read = timeout(PROBE_DEADLINE / 2, kubelet.read_to_string(&mut answer)).await;
        assert!(read.is_ok_and(|it| it.is_ok()));
        assert_eq!(answer, "ok");
    }
}
