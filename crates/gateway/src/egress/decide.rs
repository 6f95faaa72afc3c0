//! Decides about one request: credential, plan, all addresses, and the connection to one of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sympozium_ipc::credential::Claims;
use sympozium_ipc::strict_head::RequestHead;
use sympozium_plan::host::Host;
use tokio::time::timeout;

use super::http::Outgoing;
use super::meter::Meter;
use super::target::{Kind, Target, shown};
use super::{Gateway, authenticate, cut_by};
use crate::admission::Permit;
use crate::events::{Outcome, Reason, What, Who};
use crate::outside::Outside;
use crate::plans::Permission;
use crate::resolve::ResolveError;
use crate::settings::MAX_ADDRESSES;

/// A refusal, for an event.
pub(super) struct Refusal {
    pub(super) who: Option<Who>,
    pub(super) what: Option<What>,
    pub(super) reason: Reason,
    pub(super) detail: Option<String>,
}

/// An allowed request, with the connection to its server.
pub(super) struct Allowed<S> {
    pub(super) target: Target,
    pub(super) meter: Meter,
    pub(super) server: S,
    pub(super) outgoing: Option<Outgoing>,
}

impl<O: Outside> Gateway<O> {
    /// Decides about one request, and connects if it is allowed.
    pub(super) async fn decide(
        &self,
        connection: u64,
        head: &RequestHead<'_>,
        permit: &mut Permit,
    ) -> Result<Allowed<O::Stream>, Refusal> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(u64::MAX, |it| it.as_secs());
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let claims = authenticate::authenticate(&keys, &head.fields, now).map_err(Refusal::of)?;
        let Claims { run, name, expires } = claims;
        let holder = self.plans.holder(&run, &name).map_err(|reason| Refusal {
            who: Some(Who { run, credential: name, part: None }),
            ..Refusal::of(reason)
        })?;
        let who = holder.grant().who.clone();
        let refuse = |what: Option<What>, reason, detail| Refusal { who: Some(who.clone()), what, reason, detail };
        let namespace = holder.run.namespace();
        let shared = permit.authenticate(namespace, holder.run.uid());
        shared.map_err(|reason| refuse(None, reason, None))?;
        let target = Target::read(head).map_err(|reason| refuse(None, reason, Some(shown(head.target))))?;
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
        let outcome = Outcome::Allowed { rule: permission.rule, address: address.to_string() };
        self.events.tell(connection, Some(who.clone()), Some(what.clone()), outcome);
        let outgoing = match target.kind {
            Kind::Tunnel => None,
            Kind::Request { .. } => Some(Outgoing::new(head, &target)),
        };
        Ok(Allowed { target, meter, server, outgoing })
    }

    /// All addresses of a host that the plan lists, all of them checked. They are valid for this decision only.
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
                found.unwrap_or(Err(ResolveError::Timeout)).map_err(|error| match error {
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

    /// Connects to the first address that answers.
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
}

impl Refusal {
    pub(super) fn of(reason: Reason) -> Self {
        Self { who: None, what: None, reason, detail: None }
    }
}
