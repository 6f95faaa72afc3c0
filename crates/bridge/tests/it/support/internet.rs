//! What is beyond the gateway: names with the addresses that the test says, and addresses that lead to its servers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use sympozium_gateway::NetworkAccess;
use sympozium_gateway::resolve::ResolveError;
use tokio::net::TcpStream;

use super::Site;

/// The internet of a test. A copy is the same one.
#[derive(Clone, Default)]
pub struct Internet(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    names: HashMap<String, VecDeque<Vec<IpAddr>>>,
    places: HashMap<SocketAddr, SocketAddr>,
    resolved: Vec<String>,
    connected: Vec<SocketAddr>,
    hosts: u8,
}

impl Internet {
    /// A host with a public address of its own, at a port of which is this server.
    pub fn host(&self, name: &str, port: u16, site: &Site) {
        self.host_at(name, port, site.address);
    }

    /// As [`Self::host`], for whatever listens at an address of this machine.
    pub fn host_at(&self, name: &str, port: u16, to: SocketAddr) {
        let address = {
            let mut state = self.lock();
            state.hosts += 1;
            // Public as far as the gateway knows; nothing here ever connects there.
            IpAddr::from(Ipv4Addr::new(1, 2, 3, state.hosts))
        };
        self.name(name, &[&[address]]);
        self.lead(SocketAddr::new(address, port), to);
    }

    /// What is answered to those who ask for a name, one after the other; the last stays.
    pub fn name(&self, name: &str, answers: &[&[IpAddr]]) {
        let answers = answers.iter().map(|it| it.to_vec()).collect();
        self.lock().names.insert(name.to_owned(), answers);
    }

    /// Puts a server at an address.
    pub fn place(&self, address: SocketAddr, site: &Site) {
        self.lead(address, site.address);
    }

    /// Lets an address lead to any other server.
    pub fn lead(&self, address: SocketAddr, to: SocketAddr) {
        self.lock().places.insert(address, to);
    }

    /// Names that were asked for.
    pub fn resolved(&self) -> Vec<String> {
        self.lock().resolved.clone()
    }

    /// Addresses that the gateway tried to connect to, whether or not anything is there.
    pub fn connected(&self) -> Vec<SocketAddr> {
        self.lock().connected.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }
}

impl NetworkAccess for Internet {
    type Stream = TcpStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let mut state = self.lock();
        state.resolved.push(name.to_owned());
        let answers = state.names.get_mut(name).ok_or(ResolveError::NotFound)?;
        let answer = match answers.len() {
            1 => answers.front().cloned(),
            _ => answers.pop_front(),
        };
        answer.ok_or(ResolveError::NotFound)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let place = {
            let mut state = self.lock();
            state.connected.push(address);
            state.places.get(&address).copied()
        };
        let place = place.ok_or(io::ErrorKind::ConnectionRefused)?;
        let stream = TcpStream::connect(place).await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}
