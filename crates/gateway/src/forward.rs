//! The forwarder, for programs that do not support a proxy: a loopback port that is a tunnel to one host.
//!
//! It runs next to the program, in the skill's own network namespace, which has only loopback. `psql`, `git` over ssh
//! and the like connect to the port instead of the host. It decides nothing: the gateway does.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::egress::target::parse_authority;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sympozium_ipc::credential::Credential;
use sympozium_ipc::strict_head::{Scanner, read_response};
use sympozium_plan::host::Host;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Maximum number of connections of one forwarder.
pub const MAX_FORWARDED: usize = 256;
/// Timeout for the gateway's answer to CONNECT: it may have to resolve a name and try several addresses.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a failed accept, when the system has no room for another connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayAddress {
    Tcp(SocketAddr),
    /// A Unix socket, which works across network namespaces.
    Unix(PathBuf),
}

/// A local port and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// An address of the loopback interface; port 0 for any port.
    pub local: SocketAddr,
    /// The host as the plan lists it.
    pub host: Host,
    pub port: u16,
}

impl FromStr for Forward {
    type Err = String;

    /// Parses `PORT=HOST:PORT`, or `ADDRESS:PORT=HOST:PORT` with a loopback address other than 127.0.0.1.
    fn from_str(text: &str) -> Result<Self, String> {
        let no = || "it is not PORT=HOST:PORT".to_owned();
        let (local, target) = text.split_once('=').ok_or_else(no)?;
        let (host, port) = parse_authority(target).ok_or_else(no)?;
        let local = match local.parse() {
            Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Err(_) => local.parse().map_err(|_| no())?,
        };
        if !local.ip().is_loopback() {
            return Err("the address is not of the loopback interface, so other machines could use it".to_owned());
        }
        Ok(Self { local, host, port: port.ok_or_else(no)? })
    }
}

/// Listens, but does not accept yet.
#[derive(Debug)]
pub struct Forwarder {
    listeners: Vec<(TcpListener, String)>,
    gateway: Arc<GatewayAddress>,
    authorization: Arc<Zeroizing<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("the gateway cannot be reached")]
    Gateway(#[source] io::Error),
    #[error("the gateway answers {0}")]
    Refused(u16),
    /// The answer is not that of a proxy.
    #[error("the gateway does not answer as a proxy")]
    NotAProxy,
    #[error("the gateway does not answer in time")]
    Timeout,
}

impl Forwarder {
    /// Listens on each of the ports.
    ///
    /// # Errors
    ///
    /// Returns an error if a port is not available.
    pub async fn bind(forwards: &[Forward], gateway: GatewayAddress, credential: &Credential) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for forward in forwards {
            let listener = TcpListener::bind(forward.local).await?;
            listeners.push((listener, format!("{}:{}", forward.host, forward.port)));
        }
        let pair = Zeroizing::new(format!("{}:{}", credential.user, *credential.password));
        Ok(Self {
            listeners,
            gateway: Arc::new(gateway),
            authorization: Arc::new(Zeroizing::new(STANDARD.encode(pair.as_bytes()))),
        })
    }

    /// The local ports, in the order of the forwards.
    ///
    /// # Errors
    ///
    /// Returns an error if a socket has no address, which does not happen to listening sockets.
    pub fn ports(&self) -> io::Result<Vec<u16>> {
        let ports = self.listeners.iter();
        ports.map(|(listener, _)| Ok(listener.local_addr()?.port())).collect()
    }

    /// Forwards until the future is dropped. Open connections live as long as the runtime.
    pub async fn run(self) {
        let room = Arc::new(Semaphore::new(MAX_FORWARDED));
        let mut listening = tokio::task::JoinSet::new();
        for (listener, target) in self.listeners {
            let gateway = Arc::clone(&self.gateway);
            let authorization = Arc::clone(&self.authorization);
            let room = Arc::clone(&room);
            listening.spawn(async move {
                loop {
                    // The semaphore is never closed.
                    let Ok(seat) = Arc::clone(&room).acquire_owned().await else {
                        return;
                    };
                    let local = match listener.accept().await {
                        Ok((local, _)) => local,
                        Err(error) => {
                            tracing::warn!(%error, "a connection could not be accepted");
                            tokio::time::sleep(ACCEPT_BACKOFF).await;
                            continue;
                        }
                    };
                    let (gateway, target) = (Arc::clone(&gateway), target.clone());
                    let authorization = Arc::clone(&authorization);
                    tokio::spawn(async move {
                        if let Err(error) = forward(local, &gateway, &target, &authorization).await {
                            let cause = std::error::Error::source(&error).map(ToString::to_string);
                            tracing::warn!(%error, cause, target, "a connection was not forwarded");
                        }
                        drop(seat);
                    });
                }
            });
        }
        while listening.join_next().await.is_some() {}
    }
}

async fn forward(
    local: TcpStream,
    gateway: &GatewayAddress,
    target: &str,
    authorization: &str,
) -> Result<(), ForwardError> {
    match gateway {
        GatewayAddress::Tcp(address) => {
            let stream = TcpStream::connect(address).await;
            tunnel(local, stream.map_err(ForwardError::Gateway)?, target, authorization).await
        }
        GatewayAddress::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            tunnel(local, stream.map_err(ForwardError::Gateway)?, target, authorization).await
        }
    }
}

async fn tunnel<G: AsyncRead + AsyncWrite + Unpin>(
    mut local: TcpStream,
    mut gateway: G,
    target: &str,
    authorization: &str,
) -> Result<(), ForwardError> {
    let opening = open_tunnel(&mut gateway, target, authorization);
    let first = timeout(ANSWER_TIMEOUT, opening).await.unwrap_or(Err(ForwardError::Timeout))?;
    // The program notices a broken tunnel itself.
    if local.write_all(&first).await.is_ok() {
        let _ = copy_bidirectional(&mut local, &mut gateway).await;
    }
    Ok(())
}

/// Asks for a tunnel, and returns the first bytes that arrived through it.
async fn open_tunnel<G: AsyncRead + AsyncWrite + Unpin>(
    gateway: &mut G,
    target: &str,
    authorization: &str,
) -> Result<Vec<u8>, ForwardError> {
    let head = Zeroizing::new(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {authorization}\r\n\r\n"
    ));
    let sent = gateway.write_all(head.as_bytes()).await;
    sent.map_err(ForwardError::Gateway)?;
    let mut bytes = Vec::new();
    let mut scanner = Scanner::default();
    loop {
        match scanner.find_end(&bytes) {
            Ok(Some(end)) => {
                let head = read_response(&bytes[..end]).map_err(|_| ForwardError::NotAProxy)?;
                return match head.status {
                    200 => Ok(bytes.split_off(end)),
                    status => Err(ForwardError::Refused(status)),
                };
            }
            Ok(None) => {}
            Err(_) => return Err(ForwardError::NotAProxy),
        }
        match gateway.read_buf(&mut bytes).await {
            Ok(0) => return Err(ForwardError::NotAProxy),
            Ok(_) => {}
            Err(error) => return Err(ForwardError::Gateway(error)),
        }
    }
}
