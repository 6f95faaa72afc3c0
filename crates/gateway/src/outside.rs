//! The network beyond the gateway: finding a name's addresses, and connecting to one that was checked.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::resolve::{ResolveError, Resolver};

/// What the gateway does with the network, and all that it does.
pub trait Outside: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Every address of a name, asked for now. Called for names only that a plan allows.
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
    /// With this resolver.
    pub fn new(resolver: Resolver) -> Self {
        Self { resolver }
    }
}

impl Outside for Network {
    type Stream = TcpStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        self.resolver.resolve(name).await
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        // What clients send is passed on at once.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}
