//! Limits the connections of each address: one pod must not use up the room of all others, with or without a
//! credential.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug)]
pub struct PeerLimiter {
    max: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection of an address, counted until it is dropped.
#[derive(Debug)]
pub struct PeerSlot {
    peers: Arc<PeerLimiter>,
    address: IpAddr,
}

impl PeerLimiter {
    /// `max` is the limit of each address.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// `None` if the address has too many connections.
    pub fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<PeerSlot> {
        let address = address.to_canonical();
        let mut open = self.open.lock();
        let count = open.get(&address).copied().unwrap_or(0);
        if count >= self.max {
            return None;
        }
        open.insert(address, count + 1);
        drop(open);
        Some(PeerSlot { peers: Arc::clone(self), address })
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                // Addresses without connections are removed: there are many.
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_room_and_gets_it_back() {
        let peers = PeerLimiter::new(2);
        let enter = |text: &str| peers.acquire(text.parse().unwrap());
        let first = enter("10.0.0.1");
        let _second = enter("::ffff:10.0.0.1").unwrap();
        assert!(first.is_some() && enter("10.0.0.1").is_none());
        assert!(enter("10.0.0.2").is_some());
        drop(first);
        assert!(enter("10.0.0.1").is_some());
        assert_eq!(peers.open.lock().len(), 1);
    }
}
