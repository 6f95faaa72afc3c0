//! The network of the gateway on one machine. The resolver is created on first use: most local runs need none, and a
//! machine without name servers still has its own addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use sympozium_gateway::network::NetworkAccess;
use sympozium_gateway::resolve::{ResolveError, Resolver};
use tokio::net::TcpStream;

#[derive(Debug, Default)]
pub struct LazyNetwork {
    resolver: OnceLock<Result<Resolver, String>>,
}

impl NetworkAccess for LazyNetwork {
    type Stream = TcpStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if name == "localhost" {
            return Ok(vec![[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()]);
        }
        let make = || Resolver::new(&[], None).map_err(|error| sympozium_program::error_chain(&error));
        match self.resolver.get_or_init(make) {
            Ok(resolver) => resolver.resolve(name).await,
            Err(why) => Err(ResolveError::Failed(why.clone())),
        }
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        // What clients send is forwarded at once.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}
