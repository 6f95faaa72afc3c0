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
use sympozium_api::text::quote;
use sympozium_ipc::credential::Credential;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub use connect::{MAX_REASON_BYTES, MAX_REFUSAL_BYTES};
pub use stream::Stream;
pub use trust::{MAX_ROOTS, MAX_ROOTS_BYTES};

/// Timeout for connecting to the gateway.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a TLS handshake, with the gateway or with a server.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the gateway's answer to CONNECT: it may have to resolve a name and try several addresses.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// ALPN protocol of the run API.
const RUN_API_ALPN: &[u8] = b"h2";
/// ALPN protocol of the gateway as a proxy, and of servers.
const HTTP_ALPN: &[u8] = b"http/1.1";

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
pub struct EgressClient(Arc<Inner>);

struct Inner {
    gateway: Gateway,
    /// Trusted for servers, besides the public CAs.
    extra_roots: RootCertStore,
    /// Built for the first encrypted tunnel.
    server_tls: OnceLock<Arc<ClientConfig>>,
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
pub enum EgressError {
    #[error("`{0}` is not the name of a server")]
    ServerName(String),
    #[error("the gateway is at an address, and there is no certificate to know it by")]
    NoCa,
    #[error("the {which} cannot be used: {why}")]
    Roots { which: &'static str, why: String },
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
    #[error("the gateway cannot be reached")]
    Connect(#[source] io::Error),
    /// The peer is not the gateway, or does not use TLS.
    #[error("no TLS could be agreed on with the gateway")]
    Handshake(#[source] io::Error),
    #[error("the gateway does not answer in time")]
    Timeout,
    /// A gateway without it, or of another release.
    #[error("the gateway does not offer the run API")]
    NoRunApi,
}

#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    #[error(transparent)]
    Gateway(#[from] EgressError),
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
    NotAProxy,
    #[error("{} is not a host", quote(.0))]
    Host(String),
    /// The server's certificate is not valid for the host, or it does not use TLS.
    #[error("no TLS could be agreed on with the server")]
    Handshake(#[source] io::Error),
    #[error("the server does not agree on TLS in time")]
    HandshakeTimeout,
}

impl EgressClient {
    /// A gateway with an address is authenticated by the CA in `ca_pem` only: public CAs are not trusted for it.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway has an address and there is no usable CA.
    pub fn new(address: GatewayAddress, ca_pem: Option<&[u8]>) -> Result<Self, EgressError> {
        let gateway = match address {
            GatewayAddress::Unix(path) => Gateway::Unix(path),
            GatewayAddress::Tcp { addresses, server_name } => {
                let name =
                    ServerName::try_from(server_name.clone()).map_err(|_| EgressError::ServerName(server_name))?;
                let pem = ca_pem.ok_or(EgressError::NoCa)?;
                let roots = trust::gateway_roots(pem)?;
                let proxy = trust::client_config(roots, HTTP_ALPN).map_err(EgressError::Setup)?;
                let mut run_api = proxy.clone();
                run_api.alpn_protocols = vec![RUN_API_ALPN.to_vec()];
                Gateway::Tcp { addresses, server_name: name, proxy: Arc::new(proxy), run_api: Arc::new(run_api) }
            }
        };
        Ok(Self(Arc::new(Inner { gateway, extra_roots: RootCertStore::empty(), server_tls: OnceLock::new() })))
    }

    /// Trusts these CAs too, for servers: those in `SSL_CERT_FILE`, for example.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no usable certificate.
    pub fn with_extra_roots(self, pem: &[u8]) -> Result<Self, EgressError> {
        let extra_roots = trust::extra_roots(pem)?;
        Ok(Self(Arc::new(Inner { gateway: self.0.gateway.clone(), extra_roots, server_tls: OnceLock::new() })))
    }

    /// Opens a tunnel to a host and port, if the plan allows it for this credential. IPv6 addresses may have brackets.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway is unreachable or refuses.
    pub async fn tunnel(&self, credential: &Credential, host: &str, port: u16) -> Result<Stream, TunnelError> {
        let target = connect::target_authority(host, port)?;
        let gateway = self.dial(Purpose::Proxy).await?;
        timeout(ANSWER_TIMEOUT, connect::open_tunnel(gateway, credential, &target))
            .await
            .unwrap_or(Err(TunnelError::Gateway(EgressError::Timeout)))
    }

    /// Opens a connection for the run API.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway is unreachable or does not offer the run API.
    pub async fn connect_run_api(&self) -> Result<Stream, EgressError> {
        self.dial(Purpose::RunApi).await
    }

    /// Starts TLS with the server of a tunnel. Its certificate must be valid for this host, a name or an address. The
    /// SNI is the host, as the gateway expects for a tunnel to that host.
    ///
    /// # Errors
    ///
    /// Returns an error if the server's certificate is not valid.
    pub async fn start_tls(&self, stream: Stream, host: &str) -> Result<Stream, TunnelError> {
        let no_host = || TunnelError::Host(host.to_owned());
        let bare = connect::without_brackets(host);
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| no_host())?;
        let web = Arc::clone(self.server_tls()?);
        let shaking = TlsConnector::from(web).connect(name, stream);
        match timeout(HANDSHAKE_TIMEOUT, shaking).await {
            Ok(Ok(encrypted)) => Ok(Stream::end_to_end(encrypted)),
            Ok(Err(error)) => Err(TunnelError::Handshake(error)),
            Err(_) => Err(TunnelError::HandshakeTimeout),
        }
    }

    fn server_tls(&self) -> Result<&Arc<ClientConfig>, EgressError> {
        if let Some(web) = self.0.server_tls.get() {
            return Ok(web);
        }
        let roots = trust::server_roots(&self.0.extra_roots);
        let web = trust::client_config(roots, HTTP_ALPN).map_err(EgressError::Setup)?;
        Ok(self.0.server_tls.get_or_init(|| Arc::new(web)))
    }

    async fn dial(&self, purpose: Purpose) -> Result<Stream, EgressError> {
        match &self.0.gateway {
            Gateway::Unix(path) => {
                let stream = connect_with_timeout(UnixStream::connect(path)).await?;
                Ok(Stream::unix(stream))
            }
            Gateway::Tcp { addresses, server_name, proxy, run_api } => {
                let config = match purpose {
                    Purpose::Proxy => proxy,
                    Purpose::RunApi => run_api,
                };
                let stream = connect_with_timeout(TcpStream::connect(addresses.as_slice())).await?;
                // Every write is a message that the peer waits for.
                let _ = stream.set_nodelay(true);
                let connector = TlsConnector::from(Arc::clone(config));
                let shaking = connector.connect(server_name.clone(), stream);
                let shaken = timeout(HANDSHAKE_TIMEOUT, shaking).await;
                let stream = shaken.map_err(|_| EgressError::Timeout)?.map_err(EgressError::Handshake)?;
                let agreed = stream.get_ref().1.alpn_protocol();
                if purpose == Purpose::RunApi && agreed != Some(RUN_API_ALPN) {
                    return Err(EgressError::NoRunApi);
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

async fn connect_with_timeout<S>(dialing: impl Future<Output = io::Result<S>>) -> Result<S, EgressError> {
    match timeout(CONNECT_TIMEOUT, dialing).await {
        Ok(connected) => connected.map_err(EgressError::Connect),
        Err(_) => Err(EgressError::Timeout),
    }
}

/// Prints the address only: the trusted certificates are long.
impl fmt::Debug for EgressClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.gateway {
            Gateway::Unix(path) => write!(f, "Outward({})", path.display()),
            Gateway::Tcp { addresses, .. } => write!(f, "Outward({addresses:?})"),
        }
    }
}
