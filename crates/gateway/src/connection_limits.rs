//! Limits how much of the gateway each client may hold at once.
//!
//! Nothing is reserved. Instead, one rule of dynamic thresholds (Choudhury and Hahne, 1998) applies to all competitors:
//! one more is given only to a holder of less than is still free. One namespace alone gets half of everything, two get
//! a third each, *n* of them 1/(*n*+1) each, and as much stays free for the next. Connections without a credential
//! compete as if they were one namespace, so they never hold more than half. A connection from the address of a pod
//! that has authenticated is charged to its run before it has authenticated itself: otherwise the pods of one namespace
//! could fill the gateway with silent connections.
//!
//! [`Shares`] is the rule, the rest of this module counts connections. Both are pure but for a lock, and slots are
//! released on drop.

mod shares;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::events::Reason;
use crate::settings::{KNOWN_PEER_FACTOR, Settings};

pub use shares::{MINIMUM_SHARE, Share, ShareExceeded, Shares};

/// Counts the connections of clients.
#[derive(Debug)]
pub struct ConnectionLimiter {
    limits: ConnectionLimits,
    state: Mutex<State>,
    /// Signals that a slot was released.
    released: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In total.
    pub connections: usize,
    /// From one address.
    pub per_peer: usize,
    /// From one address, without a credential.
    pub unauthenticated_per_peer: usize,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Without a credential, from addresses without an authenticated connection.
    anonymous: usize,
    /// With a credential. `shares` holds more: the pending ones too.
    authenticated: usize,
    peers: HashMap<IpAddr, Peer>,
    shares: Shares,
}

#[derive(Debug, Default)]
struct Peer {
    open: usize,
    authenticated: usize,
    /// The run that last authenticated a connection from this address, while such a connection is open. The last one
    /// and not the first: the address may belong to another pod by now, while connections of the previous one are still
    /// open.
    charged_run: Option<RunKey>,
}

#[derive(Debug, Clone)]
struct RunKey {
    namespace: String,
    run: String,
}

/// One accepted connection. Released on drop.
#[derive(Debug)]
pub struct ConnectionSlot {
    limiter: Arc<ConnectionLimiter>,
    peer: Option<IpAddr>,
    state: SlotState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SlotState {
    /// Without a credential, from an address without an authenticated connection.
    Anonymous,
    /// Without a credential, from an address with an authenticated connection: probably the same pod, and charged to
    /// its run.
    Pending(Share),
    /// Its credential was valid for this run.
    Authenticated(Share),
}

impl ConnectionLimiter {
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default(), released: Notify::new() })
    }

    /// Accepts a connection without a credential. A client of a Unix socket has no address.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub fn acquire(self: &Arc<Self>, peer: Option<IpAddr>) -> Result<ConnectionSlot, Reason> {
        let peer = peer.map(|peer| peer.to_canonical());
        let limits = &self.limits;
        let mut state = self.state.lock();
        let free = limits.connections.saturating_sub(state.open);
        if free == 0 {
            return Err(Reason::Connections);
        }
        let known = peer.and_then(|peer| state.peers.get(&peer));
        let (open, authenticated) = known.map_or((0, 0), |known| (known.open, known.authenticated));
        let charged = known.and_then(|known| known.charged_run.clone());
        if peer.is_some() {
            let most = match charged {
                Some(_) => limits.unauthenticated_per_peer.saturating_mul(KNOWN_PEER_FACTOR),
                None => limits.unauthenticated_per_peer,
            };
            if open >= limits.per_peer {
                return Err(Reason::ConnectionsOfPeer);
            }
            if open - authenticated >= most {
                return Err(Reason::UnauthenticatedOfPeer);
            }
        }
        let standing = match charged {
            Some(RunKey { namespace, run }) => {
                let share = state.shares.take(&namespace, &run, free);
                SlotState::Pending(share.map_err(share_reason)?)
            }
            None if state.anonymous >= free.max(MINIMUM_SHARE) => {
                return Err(Reason::Unauthenticated);
            }
            None => {
                state.anonymous += 1;
                SlotState::Anonymous
            }
        };
        state.open += 1;
        if let Some(peer) = peer {
            state.peers.entry(peer).or_default().open += 1;
        }
        drop(state);
        Ok(ConnectionSlot { limiter: Arc::clone(self), peer, state: standing })
    }

    /// Like `acquire`, but waits for room: the connections of a burst authenticate within moments.
    ///
    /// # Errors
    ///
    /// Returns the limit that is still exceeded at the end.
    pub async fn acquire_within(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        patience: Duration,
    ) -> Result<ConnectionSlot, Reason> {
        let waiting = async {
            loop {
                // Before the attempt, so that no release is missed.
                let released = self.released.notified();
                if let Ok(permit) = self.acquire(peer) {
                    return permit;
                }
                released.await;
            }
        };
        match timeout(patience, waiting).await {
            Ok(permit) => Ok(permit),
            Err(_elapsed) => self.acquire(peer),
        }
    }

    /// Number of open connections.
    pub fn open(&self) -> usize {
        self.state.lock().open
    }

    /// Number of open connections without a credential.
    pub fn unauthenticated(&self) -> usize {
        let state = self.state.lock();
        state.open - state.authenticated
    }
}

impl ConnectionSlot {
    /// Called when the connection has shown a valid credential of this run. It may show another run's later, and then
    /// belongs to that run.
    ///
    /// # Errors
    ///
    /// Returns the limit that the run or its namespace exceeds. The slot is unchanged.
    pub fn authenticate(&mut self, namespace: &str, run: &str) -> Result<(), Reason> {
        if let SlotState::Authenticated(share) = &self.state
            && share.belongs_to(namespace, run)
        {
            return Ok(());
        }
        let mut state = self.limiter.state.lock();
        let share = match &self.state {
            // Charged when it was accepted.
            SlotState::Pending(share) if share.belongs_to(namespace, run) => share.clone(),
            _ => {
                // Its own slot counts as free.
                let free = self.limiter.limits.connections - state.open + 1;
                let taken = state.shares.take(namespace, run, free);
                let taken = taken.map_err(share_reason)?;
                match &self.state {
                    SlotState::Anonymous => state.anonymous -= 1,
                    SlotState::Pending(before) | SlotState::Authenticated(before) => {
                        state.shares.release(before);
                    }
                }
                taken
            }
        };
        let is_first = !matches!(self.state, SlotState::Authenticated(_));
        self.state = SlotState::Authenticated(share);
        state.authenticated += usize::from(is_first);
        if let Some(peer) = self.peer.and_then(|peer| state.peers.get_mut(&peer)) {
            peer.authenticated += usize::from(is_first);
            peer.charged_run = Some(RunKey { namespace: namespace.to_owned(), run: run.to_owned() });
        }
        drop(state);
        self.limiter.released.notify_waiters();
        Ok(())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        state.open -= 1;
        let was_authenticated = matches!(self.state, SlotState::Authenticated(_));
        state.authenticated -= usize::from(was_authenticated);
        match &self.state {
            SlotState::Anonymous => state.anonymous -= 1,
            SlotState::Pending(share) | SlotState::Authenticated(share) => {
                state.shares.release(share);
            }
        }
        if let Some(address) = self.peer
            && let Some(peer) = state.peers.get_mut(&address)
        {
            peer.open -= 1;
            peer.authenticated -= usize::from(was_authenticated);
            if peer.authenticated == 0 {
                // Further connections count as anonymous again.
                peer.charged_run = None;
            }
            if peer.open == 0 {
                // Addresses without connections are removed: there are many.
                state.peers.remove(&address);
            }
        }
        drop(state);
        self.limiter.released.notify_waiters();
    }
}

fn share_reason(refused: ShareExceeded) -> Reason {
    match refused {
        ShareExceeded::Namespace => Reason::ConnectionsOfNamespace,
        ShareExceeded::Run => Reason::ConnectionsOfRun,
    }
}

impl From<&Settings> for ConnectionLimits {
    fn from(settings: &Settings) -> Self {
        Self {
            connections: settings.connections,
            per_peer: settings.connections_of_peer,
            unauthenticated_per_peer: settings.unauthenticated_of_peer,
        }
    }
}

#[cfg(test)]
mod tests;
