//! The way out: the gateway, and through it tunnels to what the plan lets a credential reach.
//!
//! The bridge connects to nothing else. In a cluster the gateway is at an address and speaks TLS, under a certificate of
//! the authority that the run was given; on one machine it is a socket in the file system. What goes through a tunnel to
//! an end server is encrypted here, so the gateway never sees it.
//!
//! Nothing happens while nobody asks: no connection is kept, no timer runs, and what TLS needs is built when it is first
//! needed.

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

/// How long connecting to the gateway may take.
pub const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// How long a handshake of TLS may take, with the gateway or with an end server.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(30);
/// How long the gateway may take to say yes or no: it may have to find and try several addresses.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// What the run API is spoken in.
const RUN_API: &[u8] = b"h2";
/// What the gateway as a proxy is spoken to in, and end servers.
const HTTP: &[u8] = b"http/1.1";

/// Where the gateway is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayAddress {
    /// At a socket in the file system: plain, because nobody is in between.
    Unix(PathBuf),
    /// At an address: TLS, always.
    Tcp {
        /// Its addresses, in the order to try; at least one. A run has no DNS to look one up.
        addresses: Vec<SocketAddr>,
        /// The name that its certificate must have.
        server_name: String,
    },
}

impl GatewayAddress {
    /// The ports that must stay open for it.
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

/// The way to the gateway and through it. A copy is the same way.
#[derive(Clone)]
pub struct Outward(Arc<Way>);

struct Way {
    gateway: Gateway,
    /// Trusted for end servers, besides those that everybody trusts.
    extra_roots: RootCertStore,
    /// Built for the first tunnel that is encrypted.
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

/// Why the gateway cannot be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum OutwardError {
    /// No name that a certificate could have.
    #[error("`{0}` is not the name of a server")]
    ServerName(String),
    /// TLS needs to know whom to trust.
    #[error("the gateway is at an address, and there is no certificate to know it by")]
    NoAuthority,
    /// The certificates cannot be read.
    #[error("the {which} cannot be used: {why}")]
    Roots {
        /// Which of them.
        which: &'static str,
        /// Why.
        why: String,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
    /// Nobody is there.
    #[error("the gateway cannot be reached")]
    Dial(#[source] io::Error),
    /// Somebody is there who is not the gateway, or who speaks no TLS.
    #[error("no TLS could be agreed on with the gateway")]
    Handshake(#[source] io::Error),
    /// Too slow.
    #[error("the gateway does not answer in time")]
    Slow,
    /// A gateway without it, or of another release.
    #[error("the gateway does not offer the run API")]
    NoRunApi,
}

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The gateway cannot be spoken to.
    #[error(transparent)]
    Gateway(#[from] OutwardError),
    /// The connection to it broke before it had answered.
    #[error("the connection to the gateway broke")]
    Broken(#[source] io::Error),
    /// It says no.
    #[error("{message}")]
    Refused {
        /// The status of its answer.
        status: u16,
        /// Why in a word, as its events have it; absent when the credential is what is wrong.
        reason: Option<String>,
        /// Why in words, possibly with a hint in a line of its own.
        message: String,
    },
    /// It does not say anything that can be understood.
    #[error("the gateway does not answer as a proxy")]
    NoProxy,
    /// Not a host.
    #[error("`{0}` is not a host")]
    Host(String),
    /// The end server is not who it should be, or speaks no TLS.
    #[error("no TLS could be agreed on with the server")]
    Handshake(#[source] io::Error),
    /// Nor in time.
    #[error("the server does not agree on TLS in time")]
    SlowHandshake,
}

impl Outward {
    /// The way to this gateway. One at an address is known by a certificate of the authority in `ca_pem`, and by no
    /// other: whom the rest of the world trusts does not matter there.
    ///
    /// # Errors
    ///
    /// When the gateway is at an address and there is no such authority, or it cannot be read.
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

    /// Trusts these authorities too, for end servers: what `SSL_CERT_FILE` names, say.
    ///
    /// # Errors
    ///
    /// When there is no certificate in it that can be used.
    pub fn trusting(self, pem: &[u8]) -> Result<Self, OutwardError> {
        let extra_roots = trust::extra(pem)?;
        Ok(Self(Arc::new(Way { gateway: self.0.gateway.clone(), extra_roots, web: OnceLock::new() })))
    }

    /// A tunnel to a host and port, if the plan lets this credential have it. Addresses of IPv6 may have brackets.
    ///
    /// # Errors
    ///
    /// When the gateway cannot be reached, or says no.
    pub async fn tunnel(&self, credential: &Credential, host: &str, port: u16) -> Result<Stream, TunnelError> {
        let target = connect::authority(host, port)?;
        let gateway = self.dial(Purpose::Proxy).await?;
        timeout(ANSWER_DEADLINE, connect::ask(gateway, credential, &target))
            .await
            .unwrap_or(Err(TunnelError::Gateway(OutwardError::Slow)))
    }

    /// A connection on which the run API is spoken.
    ///
    /// # Errors
    ///
    /// When the gateway cannot be reached, or does not speak it.
    pub async fn run_api(&self) -> Result<Stream, OutwardError> {
        self.dial(Purpose::RunApi).await
    }

    /// TLS with the end server of a tunnel, which must have a certificate for this host, name or address. The name that
    /// is asked for is the host's, so it is the one that the gateway expects in a tunnel to that host.
    ///
    /// # Errors
    ///
    /// When the server is not who it should be.
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
                // What is written is a message each time, and somebody waits for it.
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

/// What a connection to the gateway is for.
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

/// Where, and nothing of whom it trusts: that is long.
impl fmt::Debug for Outward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.gateway {
            Gateway::Unix(path) => write!(f, "Outward({})", path.display()),
            Gateway::Tcp { addresses, .. } => write!(f, "Outward({addresses:?})"),
        }
    }
}
