//! The way out: one connection of a client after the other, each request decided anew.
//!
//! The order is the point of this file. A head is read within its bounds; then who asks is checked, before anything of
//! what they ask for is looked at; then whether the plan lists it, before anybody is asked for its addresses; then all
//! of its addresses, before a connection is made to one of them; and in a tunnel the first bytes, before one is passed
//! on. Each step can only say no.

mod authenticate;
mod body;
mod client;
pub(crate) mod client_hello;
mod http;
mod inspector;
mod meter;
pub(crate) mod relay;
pub(crate) mod target;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sympozium_ipc::credential::{Claims, KeyRing};
use sympozium_ipc::strict_head::{RequestHead, Targets, read_request};
use sympozium_plan::host::Host;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::events::{Events, Outcome, Reason, What, Who};
use crate::outside::Outside;
use crate::plans::{Permission, Plans, Usage};
use crate::resolve::ResolveError;
use crate::settings::{MAX_ADDRESSES, Settings};
use client::{Client, NoHead};
use http::{Next, Outgoing};
use inspector::Inspector;
use meter::Meter;
use target::{Kind, Target};

pub use inspector::TLS_PORT;

/// What a client gets before its tunnel.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The gateway, for any number of connections at once.
pub struct Gateway<O> {
    keys: RwLock<Arc<KeyRing>>,
    plans: Plans,
    events: Arc<Events>,
    settings: Arc<Settings>,
    outside: O,
    usage: Usage,
    connections: AtomicU64,
    ending: watch::Sender<bool>,
}

/// A refusal, for an event.
struct Refusal {
    who: Option<Who>,
    what: Option<What>,
    reason: Reason,
    detail: Option<String>,
}

/// Everything that was decided about a request, with the connection that it allows.
struct Allowed<S> {
    target: Target,
    meter: Meter,
    server: S,
    outgoing: Option<Outgoing>,
}

impl<O: Outside> Gateway<O> {
    /// With no run yet.
    pub fn new(keys: KeyRing, settings: Settings, outside: O) -> Arc<Self> {
        Arc::new(Self {
            keys: RwLock::new(Arc::new(keys)),
            plans: Plans::default(),
            events: Events::new(settings.events),
            settings: Arc::new(settings),
            outside,
            usage: Usage::default(),
            connections: AtomicU64::new(0),
            ending: watch::Sender::new(false),
        })
    }

    /// The runs that may reach something.
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// What was decided.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The bounds.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.usage.connections.load(Ordering::Relaxed)
    }

    /// From now on credentials must be signed by one of these.
    pub fn set_keys(&self, keys: KeyRing) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Cuts everything that is open, and lets nothing through any more.
    pub fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Serves one client until its connection ends.
    pub async fn serve<C>(&self, stream: C)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let connection = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let mut client = Client::new(stream);
        if !self.usage.enter(self.settings.connections) {
            self.refused(connection, &Refusal::of(Reason::Connections));
            return client.refuse(Reason::Connections).await;
        }
        let _seat = Seat(&self.usage);
        let mut patience = self.settings.head_deadline;
        loop {
            // In a box of its own, so that a tunnel that is open for hours does not carry the room for decisions.
            let next = Box::pin(self.next(connection, &mut client, patience)).await;
            let allowed = match next {
                Some(allowed) => allowed,
                None => return,
            };
            let next = match allowed.target.kind {
                Kind::Tunnel => {
                    Box::pin(self.tunnel(connection, client, allowed)).await;
                    return;
                }
                Kind::Request { .. } => {
                    Box::pin(self.request(connection, &mut client, allowed)).await
                }
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

    /// Reads the next request and decides. `None` when the client is gone, or has been told no.
    async fn next<C>(
        &self,
        connection: u64,
        client: &mut Client<C>,
        patience: Duration,
    ) -> Option<Allowed<O::Stream>>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let mut ending = self.ending.subscribe();
        let head = tokio::select! {
            // What ends comes first in every choice here: nothing starts that would be cut at once.
            biased;
            _ = ending.wait_for(|ending| *ending) => Err(NoHead::Gone),
            head = client.head(&self.settings, patience) => head,
        };
        let decided = match head {
            Err(NoHead::Gone) => return None,
            Err(NoHead::Refused(reason)) => Err(Refusal::of(reason)),
            Ok(head) => match read_request(&head, Targets::Proxy) {
                Err(violation) => Err(Refusal {
                    detail: Some(violation.to_string()),
                    ..Refusal::of(violation.into())
                }),
                Ok(head) => self.decide(connection, &head).await,
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

    /// Decides about one request, and connects if it may.
    async fn decide(
        &self,
        connection: u64,
        head: &RequestHead<'_>,
    ) -> Result<Allowed<O::Stream>, Refusal> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(u64::MAX, |it| it.as_secs());
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let claims = authenticate::authenticate(&keys, &head.fields, now).map_err(Refusal::of)?;
        let Claims { run, name, expires } = claims;
        let holder = self.plans.holder(&run, &name).map_err(|reason| Refusal {
            who: Some(Who {
                run,
                credential: name,
                part: None,
            }),
            ..Refusal::of(reason)
        })?;
        let who = holder.grant().who.clone();
        let refuse = |what: Option<What>, reason, detail| Refusal {
            who: Some(who.clone()),
            what,
            reason,
            detail,
        };
        let target = Target::read(head)
            .map_err(|reason| refuse(None, reason, Some(target::shown(head.target))))?;
        let what = target.what();
        let refuse = |reason, detail| refuse(Some(what.clone()), reason, detail);
        let permission = holder.grant().rules.permit(&target.host, target.port);
        let permission = permission.map_err(|reason| refuse(reason, None))?;
        let left = Duration::from_secs(expires.saturating_sub(now));
        let meter = Meter::new(holder, Arc::clone(&self.settings), left);
        let meter = meter.map_err(|reason| refuse(reason, None))?;
        let connecting = async {
            let addresses = self.addresses(&target, &permission, &meter).await?;
            self.connect(&addresses, target.port).await
        };
        let connected = cut_by(meter.ended(self.ending.subscribe()), connecting).await;
        let connected = connected.unwrap_or_else(|reason| Err((reason, None)));
        let (server, address) = connected.map_err(|(reason, detail)| refuse(reason, detail))?;
        let outcome = Outcome::Allowed {
            rule: permission.rule,
            address: address.to_string(),
        };
        self.events
            .tell(connection, Some(who.clone()), Some(what.clone()), outcome);
        let outgoing = match target.kind {
            Kind::Tunnel => None,
            Kind::Request { .. } => Some(Outgoing::new(head, &target)),
        };
        Ok(Allowed {
            target,
            meter,
            server,
            outgoing,
        })
    }

    /// Every address of a host that the plan lists, all of them checked. They are good for this one decision.
    async fn addresses(
        &self,
        target: &Target,
        permission: &Permission,
        meter: &Meter,
    ) -> Result<Vec<IpAddr>, (Reason, Option<String>)> {
        let addresses = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let resolving = self.outside.resolve(name);
                let found = timeout(self.settings.resolve_deadline, resolving).await;
                found
                    .unwrap_or(Err(ResolveError::Timeout))
                    .map_err(|error| match error {
                        ResolveError::NotFound => (Reason::NameNotFound, None),
                        ResolveError::Timeout => (Reason::ResolveTimeout, None),
                        ResolveError::Failed(detail) => (Reason::ResolveFailed, Some(detail)),
                    })?
            }
        };
        if addresses.len() > MAX_ADDRESSES {
            return Err((Reason::TooManyAddresses, None));
        }
        let rules = &meter.holder().grant().rules;
        let loopback = self.settings.loopback;
        rules
            .check_addresses(permission.scope, target.port, &addresses, loopback)
            .map_err(|(reason, address)| (reason, Some(address.to_string())))?;
        Ok(addresses)
    }

    /// Connects to the first of the addresses that answers.
    async fn connect(
        &self,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<(O::Stream, SocketAddr), (Reason, Option<String>)> {
        let mut failed = (Reason::NameNotFound, None);
        for address in addresses {
            let address = SocketAddr::new(*address, port);
            let connecting = self.outside.connect(address);
            match timeout(self.settings.connect_deadline, connecting).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                Ok(Err(error)) => {
                    failed = (Reason::ConnectFailed, Some(format!("{address}: {error}")));
                }
                Err(_) => failed = (Reason::ConnectTimeout, Some(address.to_string())),
            }
        }
        Err(failed)
    }

    /// A tunnel, to its end.
    async fn tunnel<C>(&self, connection: u64, client: Client<C>, allowed: Allowed<O::Stream>)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let Allowed {
            target,
            meter,
            mut server,
            ..
        } = allowed;
        let what = target.what();
        let Client {
            mut stream,
            buffered,
        } = client;
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

    /// A request, to the end of its answer.
    async fn request<C>(
        &self,
        connection: u64,
        client: &mut Client<C>,
        allowed: Allowed<O::Stream>,
    ) -> Next
    where
        C: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let Allowed {
            target,
            meter,
            server,
            outgoing,
        } = allowed;
        let what = target.what();
        let Some(outgoing) = outgoing else {
            unreachable!("requests have a head to pass on");
        };
        let passed = cut_by(
            meter.ended(self.ending.subscribe()),
            http::pass(client, server, &outgoing, &meter),
        )
        .await;
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
        let outcome = Outcome::Refused {
            reason: refusal.reason,
            detail: refusal.detail.clone(),
        };
        let (who, what) = (refusal.who.clone(), refusal.what.clone());
        self.events.tell(connection, who, what, outcome);
    }

    fn ended(&self, connection: u64, meter: &Meter, what: What, reason: Reason) {
        let who = meter.holder().grant().who.clone();
        let outcome = meter.outcome(reason);
        self.events.tell(connection, Some(who), Some(what), outcome);
    }
}

impl Refusal {
    fn of(reason: Reason) -> Self {
        Self {
            who: None,
            what: None,
            reason,
            detail: None,
        }
    }
}

/// Does `work` unless `cut` comes first.
async fn cut_by<T>(
    cut: impl Future<Output = Reason>,
    work: impl Future<Output = T>,
) -> Result<T, Reason> {
    tokio::select! {
        biased;
        reason = cut => Err(reason),
        done = work => Ok(done),
    }
}

/// A connection of a client, counted.
struct Seat<'a>(&'a Usage);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
