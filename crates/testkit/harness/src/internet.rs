//! What is behind the gateway: names with the addresses that the test chooses, and addresses that lead to its servers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use sympozium_gateway::NetworkAccess;
use sympozium_gateway::resolve::ResolveError;
use tokio::net::TcpStream;

/// The internet of a test. Clones share it.
#[derive(Clone, Default)]
pub struct Internet(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    names: HashMap<String, VecDeque<Vec<IpAddr>>>,
    servers: HashMap<SocketAddr, SocketAddr>,
    resolved: Vec<String>,
    connected: Vec<SocketAddr>,
    hosts: u8,
}

impl Internet {
    /// Adds a host with a public address of its own, one port of which leads to this server.
    pub fn host(&self, name: &str, port: u16, server: impl Into<SocketAddr>) {
        let address = {
            let mut state = self.0.lock();
            state.hosts += 1;
            // Public as far as the gateway knows; nothing here ever connects to it.
            IpAddr::from(Ipv4Addr::new(1, 2, 3, state.hosts))
        };
        self.name(name, &[&[address]]);
        self.route((address, port).into(), server);
    }

    /// Resolves a name to these addresses, one answer after the other; the last one stays.
    pub fn name(&self, name: &str, answers: &[&[IpAddr]]) {
        let answers = answers.iter().map(|addresses| addresses.to_vec()).collect();
        self.0.lock().names.insert(name.to_owned(), answers);
    }

    /// Has an address lead to a server.
    pub fn route(&self, address: SocketAddr, server: impl Into<SocketAddr>) {
        self.0.lock().servers.insert(address, server.into());
    }

    /// Names that were resolved.
    pub fn resolved(&self) -> Vec<String> {
        self.0.lock().resolved.clone()
    }

    /// Addresses that the gateway tried to connect to, whether or not anything is there.
    pub fn connected(&self) -> Vec<SocketAddr> {
        self.0.lock().connected.clone()
    }
}

impl NetworkAccess for Internet {
    type Stream = TcpStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let mut state = self.0.lock();
        state.resolved.push(name.to_owned());
        let answers = state.names.get_mut(name).ok_or(ResolveError::NotFound)?;
        let answer = if answers.len() == 1 { answers.front().cloned() } else { answers.pop_front() };
        answer.ok_or(ResolveError::NotFound)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let server = {
            let mut state = self.0.lock();
            state.connected.push(address);
            state.servers.get(&address).copied()
        };
        let stream = TcpStream::connect(server.ok_or(io::ErrorKind::ConnectionRefused)?).await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}
