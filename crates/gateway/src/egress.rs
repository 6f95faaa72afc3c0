//! Egress: serves connections of clients, and decides about each request.
//!
//! The order is the point of this file: read a head within its bounds; check the credential before looking at the
//! target; check the plan before resolving the name; check all addresses before connecting to one of them; and in a
//! tunnel check the first bytes before passing one on. Each step can only refuse.

mod authenticate;
mod body;
mod client;
pub(crate) mod client_hello;
mod decide;
mod entrance;
mod http;
pub(crate) mod inspector;
mod meter;
pub(crate) mod records;
pub(crate) mod relay;
pub(crate) mod target;

use std::future::Future;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use sympozium_ipc::credential::KeyRing;
use sympozium_ipc::strict_head::{Targets, read_request};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};

use crate::admission::{Admission, Limits, Permit};
use crate::events::{Events, Outcome, Reason, What};
use crate::outside::Outside;
use crate::plans::Plans;
use crate::run_api::Served;
use crate::settings::Settings;
use client::{Client, NoHead};
use decide::{Allowed, Refusal};
use http::Next;
use inspector::Inspector;
use meter::Meter;
use target::Kind;

pub use entrance::ServedAlready;
pub use inspector::TLS_PORT;

/// Sent to the client before its tunnel.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The gateway, for any number of connections at once.
pub struct Gateway<O> {
    keys: Arc<RwLock<Arc<KeyRing>>>,
    plans: Arc<Plans>,
    events: Arc<Events>,
    settings: Arc<Settings>,
    outside: O,
    admission: Arc<Admission>,
    connections: AtomicU64,
    ending: watch::Sender<bool>,
    run_api: OnceLock<Arc<dyn Served>>,
}

impl<O: Outside> Gateway<O> {
    /// A gateway without runs.
    pub fn new(keys: KeyRing, settings: Settings, outside: O) -> Arc<Self> {
        Arc::new(Self {
            keys: Arc::new(RwLock::new(Arc::new(keys))),
            plans: Arc::new(Plans::default()),
            events: Events::new(settings.events),
            admission: Admission::new(Limits::from(&settings)),
            settings: Arc::new(settings),
            outside,
            connections: AtomicU64::new(0),
            ending: watch::Sender::new(false),
            run_api: OnceLock::new(),
        })
    }

    /// The runs that are served.
    pub fn plans(&self) -> &Arc<Plans> {
        &self.plans
    }

    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of connected clients.
    pub fn clients(&self) -> usize {
        self.admission.open()
    }

    pub fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// Replaces the keys that credentials must be signed with.
    pub fn set_keys(&self, keys: KeyRing) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Cuts all open connections, and lets nothing through any more.
    pub fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Serves a client of the proxy until its connection ends.
    async fn proxy<C>(&self, connection: u64, mut client: Client<C>, mut permit: Permit)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut patience = self.settings.head_deadline;
        loop {
            // In a box of its own, so that a tunnel that is open for hours does not hold the memory for decisions.
            let next = Box::pin(self.next(connection, &mut client, &mut permit, patience)).await;
            let allowed = match next {
                Some(allowed) => allowed,
                None => return,
            };
            let next = match allowed.target.kind {
                Kind::Tunnel => {
                    Box::pin(self.tunnel(connection, client, allowed)).await;
                    return;
                }
                Kind::Request { .. } => Box::pin(self.request(connection, &mut client, allowed)).await,
            };
            if next == Next::Close {
                let _ = client.stream.shutdown().await;
                return;
            }
            if client.buffered.is_empty() {
                // Bodies may have made it large.
                client.buffered = Vec::new();
            }
            patience = self.settings.keep_alive_limit;
        }
    }

    /// Serves the clients of a Unix socket until the future is dropped: this is how another program embeds the gateway.
    ///
    /// # Errors
    ///
    /// Returns an error if no further client can be accepted.
    pub async fn serve_unix(self: &Arc<Self>, listener: UnixListener) -> io::Result<()> {
        // Further clients wait to be accepted.
        let most = self.settings.connections.min(Semaphore::MAX_PERMITS);
        let room = Arc::new(Semaphore::new(most));
        loop {
            let seat = Arc::clone(&room).acquire_owned().await;
            let (stream, _) = listener.accept().await?;
            let gateway = Arc::clone(self);
            tokio::spawn(async move {
                gateway.serve(stream).await;
                drop(seat);
            });
        }
    }

    /// Reads the next request and decides. `None` if the client is gone or was refused.
    async fn next<C>(
        &self,
        connection: u64,
        client: &mut Client<C>,
        permit: &mut Permit,
        patience: Duration,
    ) -> Option<Allowed<O::Stream>>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut ending = self.ending.subscribe();
        let head = tokio::select! {
            // The shutdown comes first in every select here: nothing starts that would be cut at once.
            biased;
            _ = ending.wait_for(|ending| *ending) => Err(NoHead::Gone),
            head = client.head(&self.settings, patience) => head,
        };
        let decided = match head {
            Err(NoHead::Gone) => return None,
            Err(NoHead::Refused(reason)) => Err(Refusal::of(reason)),
            Ok(head) => match read_request(&head, Targets::Proxy) {
                Err(violation) => Err(Refusal { detail: Some(violation.to_string()), ..Refusal::of(violation.into()) }),
                Ok(head) => self.decide(connection, &head, permit).await,
            },
        };
        match decided {
            Ok(allowed) => Some(allowed),
            Err(refusal) => {
                self.refused(connection, &refusal);
                client.refuse(refusal.reason).await;
                None
            }
        }
    }

    /// Serves a tunnel to its end.
    async fn tunnel<C>(&self, connection: u64, client: Client<C>, allowed: Allowed<O::Stream>)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let Allowed { target, meter, mut server, .. } = allowed;
        let what = target.what();
        let Client { mut stream, buffered, .. } = client;
        let inspector = Inspector::new(target.host, target.port);
        let relaying = async {
            let greeted = stream.write_all(ESTABLISHED).await;
            greeted.map_err(|_| Reason::Broken)?;
            relay::relay(&mut stream, &mut server, &meter, inspector, buffered).await
        };
        let relayed = cut_by(meter.ended(self.ending.subscribe()), relaying).await;
        let reason = match relayed {
            Ok(Ok(())) => Reason::Closed,
            Ok(Err(reason)) | Err(reason) => reason,
        };
        self.ended(connection, &meter, what, reason);
    }

    /// Forwards a request, to the end of its response.
    async fn request<C>(&self, connection: u64, client: &mut Client<C>, allowed: Allowed<O::Stream>) -> Next
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let Allowed { target, meter, server, outgoing } = allowed;
        let what = target.what();
        let Some(outgoing) = outgoing else {
            unreachable!("requests have a head to pass on");
        };
        let passed = cut_by(meter.ended(self.ending.subscribe()), http::pass(client, server, &outgoing, &meter)).await;
        match passed {
            Ok(Ok(next)) => {
                self.ended(connection, &meter, what, Reason::Complete);
                next
            }
            Ok(Err(unanswered)) => {
                self.ended(connection, &meter, what, unanswered.reason);
                if unanswered.silent {
                    client.refuse(unanswered.reason).await;
                }
                Next::Close
            }
            Err(reason) => {
                self.ended(connection, &meter, what, reason);
                Next::Close
            }
        }
    }

    fn refused(&self, connection: u64, refusal: &Refusal) {
        let outcome = Outcome::Refused { reason: refusal.reason, detail: refusal.detail.clone() };
        let (who, what) = (refusal.who.clone(), refusal.what.clone());
        self.events.tell(connection, who, what, outcome);
    }

    fn ended(&self, connection: u64, meter: &Meter, what: What, reason: Reason) {
        let who = meter.holder().grant().who.clone();
        let outcome = meter.outcome(reason);
        self.events.tell(connection, Some(who), Some(what), outcome);
    }
}

/// Runs `work` unless `cut` resolves first.
async fn cut_by<T>(cut: impl Future<Output = Reason>, work: impl Future<Output = T>) -> Result<T, Reason> {
    tokio::select! {
        biased;
        reason = cut => Err(reason),
        done = work => Ok(done),
    }
}
