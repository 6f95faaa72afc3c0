//! The network beyond the gateway of one machine. Name servers are looked for when the first name is asked for: most runs on
//! one machine need none, and a machine without any still has its own addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use sympozium_gateway::outside::Outside;
use sympozium_gateway::resolve::{ResolveError, Resolver};
use tokio::net::TcpStream;

/// The real network, when it is needed.
#[derive(Debug, Default)]
pub struct Outdoors {
    resolver: OnceLock<Result<Resolver, String>>,
}

impl Outside for Outdoors {
    type Stream = TcpStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if name == "localhost" {
            return Ok(vec![[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()]);
        }
        let make = || Resolver::new(&[], None).map_err(|error| sympozium_program::chain(&error));
        match self.resolver.get_or_init(make) {
            Ok(resolver) => resolver.resolve(name).await,
            Err(why) => Err(ResolveError::Failed(why.clone())),
        }
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        // What clients send is passed on at once.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}
