//! Egress: serves connections of clients, and decides about each request.
//!
//! The order is the point of this file: read a head within its bounds; check the credential before looking at the
//! target; check the plan before resolving the name; check all addresses before connecting to one of them; and in a
//! tunnel check the first bytes before passing one on. Each step can only refuse.

mod accept;
mod authenticate;
mod body;
mod client;
pub(crate) mod client_hello;
mod decide;
mod http;
pub(crate) mod inspector;
mod meter;
pub(crate) mod relay;
pub(crate) mod target;
pub(crate) mod tls_records;

use std::future::Future;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::RwLock;
use sympozium_ipc::credential::KeyRing;
use sympozium_ipc::strict_head::{TargetForm, read_request};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};

use crate::connection_limits::{ConnectionLimiter, ConnectionLimits, ConnectionSlot};
use crate::events::{EventKind, EventLog, Reason, RequestTarget};
use crate::network::NetworkAccess;
use crate::plans::Plans;
use crate::run_api::RunApiService;
use crate::settings::Settings;
use client::{Client, HeadError};
use decide::{AllowedRequest, Refusal};
use http::Persistence;
use inspector::Inspector;
use meter::Meter;
use target::TargetKind;

pub use accept::AlreadyServed;
pub use inspector::TLS_PORT;

/// Sent to the client before its tunnel.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The gateway, for any number of connections at once.
pub struct Gateway<O> {
    keys: Arc<RwLock<Arc<KeyRing>>>,
    plans: Arc<Plans>,
    events: Arc<EventLog>,
    settings: Arc<Settings>,
    network: O,
    limiter: Arc<ConnectionLimiter>,
    connections: AtomicU64,
    shutdown: watch::Sender<bool>,
    run_api: OnceLock<Arc<dyn RunApiService>>,
}

impl<O: NetworkAccess> Gateway<O> {
    /// A gateway without runs.
    pub fn new(keys: KeyRing, settings: Settings, outside: O) -> Arc<Self> {
        Arc::new(Self {
            keys: Arc::new(RwLock::new(Arc::new(keys))),
            plans: Arc::new(Plans::default()),
            events: EventLog::new(settings.events),
            limiter: ConnectionLimiter::new(ConnectionLimits::from(&settings)),
            settings: Arc::new(settings),
            network: outside,
            connections: AtomicU64::new(0),
            shutdown: watch::Sender::new(false),
            run_api: OnceLock::new(),
        })
    }

    /// The runs that are served.
    pub fn plans(&self) -> &Arc<Plans> {
        &self.plans
    }

    pub fn events(&self) -> &Arc<EventLog> {
        &self.events
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of connected clients.
    pub fn client_count(&self) -> usize {
        self.limiter.open()
    }

    pub fn limiter(&self) -> &Arc<ConnectionLimiter> {
        &self.limiter
    }

    /// Replaces the keys that credentials must be signed with.
    pub fn set_keys(&self, keys: KeyRing) {
        *self.keys.write() = Arc::new(keys);
    }

    /// Cuts all open connections, and lets nothing through any more.
    pub fn shut_down(&self) {
        self.shutdown.send_replace(true);
    }

    /// Serves a client of the proxy until its connection ends.
    async fn run_proxy<C>(&self, connection: u64, mut client: Client<C>, mut permit: ConnectionSlot)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut patience = self.settings.head_timeout;
        loop {
            // In a box of its own, so that a tunnel that is open for hours does not hold the memory for decisions.
            let next = Box::pin(self.next_request(connection, &mut client, &mut permit, patience)).await;
            let allowed = match next {
                Some(allowed) => allowed,
                None => return,
            };
            let next = match allowed.target.kind {
                TargetKind::Tunnel => {
                    Box::pin(self.serve_tunnel(connection, client, allowed)).await;
                    return;
                }
                TargetKind::Request { .. } => Box::pin(self.forward_request(connection, &mut client, allowed)).await,
            };
            if next == Persistence::Close {
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
    async fn next_request<C>(
        &self,
        connection: u64,
        client: &mut Client<C>,
        permit: &mut ConnectionSlot,
        patience: Duration,
    ) -> Option<AllowedRequest<O::Stream>>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut ending = self.shutdown.subscribe();
        let head = tokio::select! {
            // The shutdown comes first in every select here: nothing starts that would be cut at once.
            biased;
            _ = ending.wait_for(|ending| *ending) => Err(HeadError::Closed),
            head = client.read_head(&self.settings, patience) => head,
        };
        let decided = match head {
            Err(HeadError::Closed) => return None,
            Err(HeadError::Refused(reason)) => Err(Refusal::from_reason(reason)),
            Ok(head) => match read_request(&head, TargetForm::Proxy) {
                Err(violation) => {
                    Err(Refusal { detail: Some(violation.to_string()), ..Refusal::from_reason(violation.into()) })
                }
                Ok(head) => self.decide(connection, &head, permit).await,
            },
        };
        match decided {
            Ok(allowed) => Some(allowed),
            Err(refusal) => {
                self.emit_refusal(connection, &refusal);
                client.refuse(refusal.reason).await;
                None
            }
        }
    }

    /// Serves a tunnel to its end.
    async fn serve_tunnel<C>(&self, connection: u64, client: Client<C>, allowed: AllowedRequest<O::Stream>)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let AllowedRequest { target, meter, mut server, .. } = allowed;
        let what = target.event_target();
        let Client { mut stream, buffered, .. } = client;
        let inspector = Inspector::new(target.host, target.port);
        let relaying = async {
            let greeted = stream.write_all(ESTABLISHED).await;
            greeted.map_err(|_| Reason::Broken)?;
            relay::relay(&mut stream, &mut server, &meter, inspector, buffered).await
        };
        let relayed = run_until(meter.wait_end(self.shutdown.subscribe()), relaying).await;
        let reason = match relayed {
            Ok(Ok(())) => Reason::Closed,
            Ok(Err(reason)) | Err(reason) => reason,
        };
        self.emit_end(connection, &meter, what, reason);
    }

    /// Forwards a request, to the end of its response.
    async fn forward_request<C>(
        &self,
        connection: u64,
        client: &mut Client<C>,
        allowed: AllowedRequest<O::Stream>,
    ) -> Persistence
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let AllowedRequest { target, meter, server, outgoing } = allowed;
        let what = target.event_target();
        let Some(outgoing) = outgoing else {
            unreachable!("requests have a head to pass on");
        };
        let passed =
            run_until(meter.wait_end(self.shutdown.subscribe()), http::forward(client, server, &outgoing, &meter))
                .await;
        match passed {
            Ok(Ok(next)) => {
                self.emit_end(connection, &meter, what, Reason::Complete);
                next
            }
            Ok(Err(unanswered)) => {
                self.emit_end(connection, &meter, what, unanswered.reason);
                if unanswered.can_answer {
                    client.refuse(unanswered.reason).await;
                }
                Persistence::Close
            }
            Err(reason) => {
                self.emit_end(connection, &meter, what, reason);
                Persistence::Close
            }
        }
    }

    fn emit_refusal(&self, connection: u64, refusal: &Refusal) {
        let outcome = EventKind::Refused { reason: refusal.reason, detail: refusal.detail.clone() };
        let (who, what) = (refusal.who.clone(), refusal.what.clone());
        self.events.emit(connection, who, what, outcome);
    }

    fn emit_end(&self, connection: u64, meter: &Meter, what: RequestTarget, reason: Reason) {
        let who = meter.credential().planned().requester.clone();
        let outcome = meter.end_event(reason);
        self.events.emit(connection, Some(who), Some(what), outcome);
    }
}

/// Runs `work` unless `cut` resolves first.
async fn run_until<T>(cut: impl Future<Output = Reason>, work: impl Future<Output = T>) -> Result<T, Reason> {
    tokio::select! {
        biased;
        reason = cut => Err(reason),
        done = work => Ok(done),
    }
}
