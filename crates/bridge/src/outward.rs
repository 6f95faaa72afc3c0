//! The client of the gateway: connections to it, and tunnels through it to what the plan allows a credential to reach.
//!
//! The bridge connects to nothing else. In a cluster the gateway has an address and uses TLS, with a certificate of the
//! CA that the run was given. On one machine it is a Unix socket. Connections to servers through a tunnel are encrypted
//! end to end, so the gateway never sees their content.
//!
//! Idle means idle: no connection is kept open, no timer runs, and the TLS configuration is built on first use.

mod connect;
mod stream;
mod trust;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use sympozium_ipc::credential::Credential;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub use connect::{MAX_REASON_BYTES, MAX_REFUSAL_BYTES};
pub use stream::Stream;
pub use trust::{MAX_ROOTS, MAX_ROOTS_BYTES};

/// Timeout for connecting to the gateway.
pub const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// Timeout of a TLS handshake, with the gateway or with a server.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(30);
/// Timeout for the gateway's answer to CONNECT: it may have to resolve a name and try several addresses.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// ALPN protocol of the run API.
const RUN_API: &[u8] = b"h2";
/// ALPN protocol of the gateway as a proxy, and of servers.
const HTTP: &[u8] = b"http/1.1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayAddress {
    /// A Unix socket, without TLS: there is no network in between.
    Unix(PathBuf),
    /// Always with TLS.
    Tcp {
        /// Its addresses in the order to try, at least one. A run has no DNS.
        addresses: Vec<SocketAddr>,
        /// The name in its certificate.
        server_name: String,
    },
}

impl GatewayAddress {
    /// The ports that the lockdown must keep open.
    pub fn tcp_ports(&self) -> Vec<u16> {
        match self {
            Self::Unix(_) => Vec::new(),
            Self::Tcp { addresses, .. } => {
                let ports: BTreeSet<u16> = addresses.iter().map(SocketAddr::port).collect();
                ports.into_iter().collect()
            }
        }
    }
}

/// The client. Clones share its state.
#[derive(Clone)]
pub struct Outward(Arc<Way>);

struct Way {
    gateway: Gateway,
    /// Trusted for servers, besides the public CAs.
    extra_roots: RootCertStore,
    /// Built for the first encrypted tunnel.
    web: OnceLock<Arc<ClientConfig>>,
}

#[derive(Clone)]
enum Gateway {
    Unix(PathBuf),
    Tcp {
        addresses: Vec<SocketAddr>,
        server_name: ServerName<'static>,
        proxy: Arc<ClientConfig>,
        run_api: Arc<ClientConfig>,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum OutwardError {
    #[error("`{0}` is not the name of a server")]
    ServerName(String),
    #[error("the gateway is at an address, and there is no certificate to know it by")]
    NoAuthority,
    #[error("the {which} cannot be used: {why}")]
    Roots { which: &'static str, why: String },
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
    #[error("the gateway cannot be reached")]
    Dial(#[source] io::Error),
    /// The peer is not the gateway, or does not use TLS.
    #[error("no TLS could be agreed on with the gateway")]
    Handshake(#[source] io::Error),
    #[error("the gateway does not answer in time")]
    Slow,
    /// A gateway without it, or of another release.
    #[error("the gateway does not offer the run API")]
    NoRunApi,
}

#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error(transparent)]
    Gateway(#[from] OutwardError),
    /// The connection broke before the gateway had answered.
    #[error("the connection to the gateway broke")]
    Broken(#[source] io::Error),
    #[error("{message}")]
    Refused {
        /// The HTTP status of the answer.
        status: u16,
        /// The reason as one word, as in the gateway's events; `None` if the credential was refused.
        reason: Option<String>,
        /// The reason as a sentence, possibly with a hint in a second line.
        message: String,
    },
    /// The answer is not that of a proxy.
    #[error("the gateway does not answer as a proxy")]
    NoProxy,
    #[error("`{0}` is not a host")]
    Host(String),
    /// The server's certificate is not valid for the host, or it does not use TLS.
    #[error("no TLS could be agreed on with the server")]
    Handshake(#[source] io::Error),
    #[error("the server does not agree on TLS in time")]
    SlowHandshake,
}

impl Outward {
    /// A gateway with an address is authenticated by the CA in `ca_pem` only: public CAs are not trusted for it.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway has an address and there is no usable CA.
    pub fn new(address: GatewayAddress, ca_pem: Option<&[u8]>) -> Result<Self, OutwardError> {
        let gateway = match address {
            GatewayAddress::Unix(path) => Gateway::Unix(path),
            GatewayAddress::Tcp { addresses, server_name } => {
                let name =
                    ServerName::try_from(server_name.clone()).map_err(|_| OutwardError::ServerName(server_name))?;
                let pem = ca_pem.ok_or(OutwardError::NoAuthority)?;
                let roots = trust::authority(pem)?;
                let proxy = trust::client(roots, HTTP).map_err(OutwardError::Setup)?;
                let mut run_api = proxy.clone();
                run_api.alpn_protocols = vec![RUN_API.to_vec()];
                Gateway::Tcp { addresses, server_name: name, proxy: Arc::new(proxy), run_api: Arc::new(run_api) }
            }
        };
        Ok(Self(Arc::new(Way { gateway, extra_roots: RootCertStore::empty(), web: OnceLock::new() })))
    }

    /// Trusts these CAs too, for servers: those in `SSL_CERT_FILE`, for example.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no usable certificate.
    pub fn trusting(self, pem: &[u8]) -> Result<Self, OutwardError> {
        let extra_roots = trust::extra(pem)?;
        Ok(Self(Arc::new(Way { gateway: self.0.gateway.clone(), extra_roots, web: OnceLock::new() })))
    }

    /// Opens a tunnel to a host and port, if the plan allows it for this credential. IPv6 addresses may have brackets.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway is unreachable or refuses.
    pub async fn tunnel(&self, credential: &Credential, host: &str, port: u16) -> Result<Stream, TunnelError> {
        let target = connect::authority(host, port)?;
        let gateway = self.dial(Purpose::Proxy).await?;
        timeout(ANSWER_DEADLINE, connect::ask(gateway, credential, &target))
            .await
            .unwrap_or(Err(TunnelError::Gateway(OutwardError::Slow)))
    }

    /// Opens a connection for the run API.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway is unreachable or does not offer the run API.
    pub async fn run_api(&self) -> Result<Stream, OutwardError> {
        self.dial(Purpose::RunApi).await
    }

    /// Starts TLS with the server of a tunnel. Its certificate must be valid for this host, a name or an address. The
    /// SNI is the host, as the gateway expects for a tunnel to that host.
    ///
    /// # Errors
    ///
    /// Returns an error if the server's certificate is not valid.
    pub async fn encrypted(&self, stream: Stream, host: &str) -> Result<Stream, TunnelError> {
        let no_host = || TunnelError::Host(connect::shown(host));
        let bare = connect::without_brackets(host);
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| no_host())?;
        let web = Arc::clone(self.web()?);
        let shaking = TlsConnector::from(web).connect(name, stream);
        match timeout(HANDSHAKE_DEADLINE, shaking).await {
            Ok(Ok(encrypted)) => Ok(Stream::end_to_end(encrypted)),
            Ok(Err(error)) => Err(TunnelError::Handshake(error)),
            Err(_) => Err(TunnelError::SlowHandshake),
        }
    }

    fn web(&self) -> Result<&Arc<ClientConfig>, OutwardError> {
        if let Some(web) = self.0.web.get() {
            return Ok(web);
        }
        let roots = trust::everybody(&self.0.extra_roots);
        let web = trust::client(roots, HTTP).map_err(OutwardError::Setup)?;
        Ok(self.0.web.get_or_init(|| Arc::new(web)))
    }

    async fn dial(&self, purpose: Purpose) -> Result<Stream, OutwardError> {
        match &self.0.gateway {
            Gateway::Unix(path) => {
                let stream = connecting(UnixStream::connect(path)).await?;
                Ok(Stream::unix(stream))
            }
            Gateway::Tcp { addresses, server_name, proxy, run_api } => {
                let config = match purpose {
                    Purpose::Proxy => proxy,
                    Purpose::RunApi => run_api,
                };
                let stream = connecting(TcpStream::connect(addresses.as_slice())).await?;
                // Every write is a message that the peer waits for.
                let _ = stream.set_nodelay(true);
                let connector = TlsConnector::from(Arc::clone(config));
                let shaking = connector.connect(server_name.clone(), stream);
                let shaken = timeout(HANDSHAKE_DEADLINE, shaking).await;
                let stream = shaken.map_err(|_| OutwardError::Slow)?.map_err(OutwardError::Handshake)?;
                let agreed = stream.get_ref().1.alpn_protocol();
                if purpose == Purpose::RunApi && agreed != Some(RUN_API) {
                    return Err(OutwardError::NoRunApi);
                }
                Ok(Stream::gateway(stream))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Proxy,
    RunApi,
}

async fn connecting<S>(dialing: impl Future<Output = io::Result<S>>) -> Result<S, OutwardError> {
    match timeout(DIAL_DEADLINE, dialing).await {
        Ok(connected) => connected.map_err(OutwardError::Dial),
        Err(_) => Err(OutwardError::Slow),
    }
}

/// Prints the address only: the trusted certificates are long.
impl fmt::Debug for Outward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.gateway {
            Gateway::Unix(path) => write!(f, "Outward({})", path.display()),
            Gateway::Tcp { addresses, .. } => write!(f, "Outward({addresses:?})"),
        }
    }
}
