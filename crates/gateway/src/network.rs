//! Access to the network: resolves names, and connects to addresses that were checked.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::resolve::{ResolveError, Resolver};

/// Everything that the gateway does with the network.
pub trait NetworkAccess: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Resolves a name now. Only called for names that a plan allows.
    fn resolve(&self, name: &str) -> impl Future<Output = Result<Vec<IpAddr>, ResolveError>> + Send;

    /// Connects to exactly this address.
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// The real network.
#[derive(Debug)]
pub struct Network {
    resolver: Resolver,
}

impl Network {
    pub fn new(resolver: Resolver) -> Self {
        Self { resolver }
    }
}

impl NetworkAccess for Network {
    type Stream = TcpStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        self.resolver.resolve(name).await
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        // Bytes of clients are forwarded without delay.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}
