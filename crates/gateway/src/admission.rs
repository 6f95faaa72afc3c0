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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::events::Reason;
use crate::settings::{KNOWN_PEER_FACTOR, Settings};

pub use shares::{MINIMUM_SHARE, Share, ShareRefused, Shares};

/// Counts the connections of clients.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    state: Mutex<State>,
    /// Signals that a slot was released.
    released: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In total.
    pub connections: usize,
    /// From one address.
    pub of_peer: usize,
    /// From one address, without a credential.
    pub unauthenticated_of_peer: usize,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Without a credential, from addresses without an authenticated connection.
    strangers: usize,
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
    charged: Option<RunKey>,
}

#[derive(Debug, Clone)]
struct RunKey {
    namespace: String,
    run: String,
}

/// One accepted connection. Released on drop.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    peer: Option<IpAddr>,
    standing: Standing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// Without a credential, from an address without an authenticated connection.
    Stranger,
    /// Without a credential, from an address with an authenticated connection: probably the same pod, and charged to
    /// its run.
    Pending(Share),
    /// Its credential was valid for this run.
    Authenticated(Share),
}

impl Admission {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default(), released: Notify::new() })
    }

    /// Accepts a connection without a credential. A client of a Unix socket has no address.
    ///
    /// # Errors
    ///
    /// Returns the limit that is exceeded.
    pub fn admit(self: &Arc<Self>, peer: Option<IpAddr>) -> Result<Permit, Reason> {
        let peer = peer.map(|it| it.to_canonical());
        let limits = &self.limits;
        let mut state = self.lock();
        let free = limits.connections.saturating_sub(state.open);
        if free == 0 {
            return Err(Reason::Connections);
        }
        let known = peer.and_then(|it| state.peers.get(&it));
        let (open, authenticated) = known.map_or((0, 0), |it| (it.open, it.authenticated));
        let charged = known.and_then(|it| it.charged.clone());
        if peer.is_some() {
            let most = match charged {
                Some(_) => limits.unauthenticated_of_peer.saturating_mul(KNOWN_PEER_FACTOR),
                None => limits.unauthenticated_of_peer,
            };
            if open >= limits.of_peer {
                return Err(Reason::ConnectionsOfPeer);
            }
            if open - authenticated >= most {
                return Err(Reason::UnauthenticatedOfPeer);
            }
        }
        let standing = match charged {
            Some(RunKey { namespace, run }) => {
                let share = state.shares.take(&namespace, &run, free);
                Standing::Pending(share.map_err(refuse)?)
            }
            None if state.strangers >= free.max(MINIMUM_SHARE) => {
                return Err(Reason::Unauthenticated);
            }
            None => {
                state.strangers += 1;
                Standing::Stranger
            }
        };
        state.open += 1;
        if let Some(peer) = peer {
            state.peers.entry(peer).or_default().open += 1;
        }
        drop(state);
        Ok(Permit { admission: Arc::clone(self), peer, standing })
    }

    /// Like `acquire`, but waits for room: the connections of a burst authenticate within moments.
    ///
    /// # Errors
    ///
    /// Returns the limit that is still exceeded at the end.
    pub async fn admit_within(self: &Arc<Self>, peer: Option<IpAddr>, patience: Duration) -> Result<Permit, Reason> {
        let waiting = async {
            loop {
                // Before the attempt, so that no release is missed.
                let released = self.released.notified();
                if let Ok(permit) = self.admit(peer) {
                    return permit;
                }
                released.await;
            }
        };
        match timeout(patience, waiting).await {
            Ok(permit) => Ok(permit),
            Err(_elapsed) => self.admit(peer),
        }
    }

    /// Number of open connections.
    pub fn open(&self) -> usize {
        self.lock().open
    }

    /// Number of open connections without a credential.
    pub fn unauthenticated(&self) -> usize {
        let state = self.lock();
        state.open - state.authenticated
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in another thread leaves the counts consistent: no code here panics between two of them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Called when the connection has shown a valid credential of this run. It may show another run's later, and then
    /// belongs to that run.
    ///
    /// # Errors
    ///
    /// Returns the limit that the run or its namespace exceeds. The slot is unchanged.
    pub fn authenticate(&mut self, namespace: &str, run: &str) -> Result<(), Reason> {
        if let Standing::Authenticated(share) = &self.standing
            && share.is_of(namespace, run)
        {
            return Ok(());
        }
        let mut state = self.admission.lock();
        let share = match &self.standing {
            // Charged when it was accepted.
            Standing::Pending(share) if share.is_of(namespace, run) => share.clone(),
            _ => {
                // Its own slot counts as free.
                let free = self.admission.limits.connections - state.open + 1;
                let taken = state.shares.take(namespace, run, free);
                let taken = taken.map_err(refuse)?;
                match &self.standing {
                    Standing::Stranger => state.strangers -= 1,
                    Standing::Pending(before) | Standing::Authenticated(before) => {
                        state.shares.give_back(before);
                    }
                }
                taken
            }
        };
        let is_first = !matches!(self.standing, Standing::Authenticated(_));
        self.standing = Standing::Authenticated(share);
        state.authenticated += usize::from(is_first);
        if let Some(peer) = self.peer.and_then(|it| state.peers.get_mut(&it)) {
            peer.authenticated += usize::from(is_first);
            peer.charged = Some(RunKey { namespace: namespace.to_owned(), run: run.to_owned() });
        }
        drop(state);
        self.admission.released.notify_waiters();
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.open -= 1;
        let was_authenticated = matches!(self.standing, Standing::Authenticated(_));
        state.authenticated -= usize::from(was_authenticated);
        match &self.standing {
            Standing::Stranger => state.strangers -= 1,
            Standing::Pending(share) | Standing::Authenticated(share) => {
                state.shares.give_back(share);
            }
        }
        if let Some(address) = self.peer
            && let Some(peer) = state.peers.get_mut(&address)
        {
            peer.open -= 1;
            peer.authenticated -= usize::from(was_authenticated);
            if peer.authenticated == 0 {
                // Further connections count as anonymous again.
                peer.charged = None;
            }
            if peer.open == 0 {
                // Addresses without connections are removed: there are many.
                state.peers.remove(&address);
            }
        }
        drop(state);
        self.admission.released.notify_waiters();
    }
}

fn refuse(refused: ShareRefused) -> Reason {
    match refused {
        ShareRefused::Namespace => Reason::ConnectionsOfNamespace,
        ShareRefused::Run => Reason::ConnectionsOfRun,
    }
}

impl From<&Settings> for Limits {
    fn from(settings: &Settings) -> Self {
        Self {
            connections: settings.connections,
            of_peer: settings.connections_of_peer,
            unauthenticated_of_peer: settings.unauthenticated_of_peer,
        }
    }
}

#[cfg(test)]
mod tests;
