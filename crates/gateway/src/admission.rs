//! Admission control: who may hold how much of the gateway at once.
//!
//! Nothing is set aside for anybody. Instead one rule, that of dynamic thresholds (Choudhury and Hahne, 1998), holds for everybody
//! who competes: one more is given only to a holder of less than is still free. One namespace alone gets half of everything, two
//! a third each, *n* of them 1/(*n*+1) each, and as much stays free for the next. Connections that have shown no credential
//! compete as if they were one namespace, so they never take more than half. Those from the address of a pod that has shown one
//! are charged to its run before they show it too: otherwise the pods of one namespace could fill the gateway with silent ones.
//!
//! [`Shares`] is the rule, [`Admission`] the connections; both are pure but for a lock, and give back by themselves.

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

/// The connections of clients, counted.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    state: Mutex<State>,
    /// Somebody gave something back.
    released: Notify,
}

/// Bounds of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All of them.
    pub connections: usize,
    /// From one address.
    pub of_peer: usize,
    /// From one address, without a credential.
    pub unauthenticated_of_peer: usize,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Without a credential, from addresses that held no connection with one.
    strangers: usize,
    /// With a credential. What [`Self::shares`] holds is more: it has those that are pending too.
    authenticated: usize,
    peers: HashMap<IpAddr, Peer>,
    shares: Shares,
}

#[derive(Debug, Default)]
struct Peer {
    open: usize,
    authenticated: usize,
    /// The run that last authenticated a connection from here, while any such connection is open. The last one and not the
    /// first: an address may be another pod's by now, while connections of the one before are still open.
    charged: Option<RunKey>,
}

#[derive(Debug, Clone)]
struct RunKey {
    namespace: String,
    run: String,
}

/// One connection, from when it was accepted until this is dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    peer: Option<IpAddr>,
    standing: Standing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// It has shown no credential, and its address held no connection that has.
    Stranger,
    /// It has shown none, and its address has: more of the same pod's, and charged to its run.
    Pending(Share),
    /// Its credential was good for this.
    Authenticated(Share),
}

impl Admission {
    /// With nobody connected.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default(), released: Notify::new() })
    }

    /// Admits a connection that has shown no credential yet. One that comes by a socket in the file system has no address.
    ///
    /// # Errors
    ///
    /// When there is no room for it.
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

    /// As [`Self::admit`], and waits for a while for room: the connections of a burst show their credentials within moments.
    ///
    /// # Errors
    ///
    /// When there is no room by then.
    pub async fn admit_within(self: &Arc<Self>, peer: Option<IpAddr>, patience: Duration) -> Result<Permit, Reason> {
        let waiting = async {
            loop {
                // Before it is tried, so that nothing is missed in between.
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

    /// Connections at present.
    pub fn open(&self) -> usize {
        self.lock().open
    }

    /// Of those, the ones that have shown no credential.
    pub fn unauthenticated(&self) -> usize {
        let state = self.lock();
        state.open - state.authenticated
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the counts whole: nothing in here panics between two of them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// The connection has shown a good credential of this run. It may show another's later, and is then that one's.
    ///
    /// # Errors
    ///
    /// When the run or its namespace holds as much as it may while others want something too. The connection is what it was.
    pub fn authenticate(&mut self, namespace: &str, run: &str) -> Result<(), Reason> {
        if let Standing::Authenticated(share) = &self.standing
            && share.is_of(namespace, run)
        {
            return Ok(());
        }
        let mut state = self.admission.lock();
        let share = match &self.standing {
            // Charged when it was admitted.
            Standing::Pending(share) if share.is_of(namespace, run) => share.clone(),
            _ => {
                // Its own place is one that it could have.
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
                // Further ones are a stranger's again.
                peer.charged = None;
            }
            if peer.open == 0 {
                // Addresses that are gone are not remembered: there are many.
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
