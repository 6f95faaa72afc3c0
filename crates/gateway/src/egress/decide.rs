//! Decides about one request: credential, plan, all addresses, and the connection to one of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sympozium_ipc::credential::Claims;
use sympozium_ipc::strict_head::RequestHead;
use sympozium_plan::host::Host;
use tokio::time::timeout;

use super::http::OutgoingRequest;
use super::meter::Meter;
use super::target::{Target, TargetKind, loggable_target};
use super::{Gateway, authenticate, run_until};
use crate::connection_limits::ConnectionSlot;
use crate::events::{EventKind, Reason, RequestTarget, Requester};
use crate::network::NetworkAccess;
use crate::plans::AllowedTarget;
use crate::resolve::ResolveError;
use crate::settings::MAX_ADDRESSES;

/// A refusal, for an event.
pub(super) struct Refusal {
    pub(super) who: Option<Requester>,
    pub(super) what: Option<RequestTarget>,
    pub(super) reason: Reason,
    pub(super) detail: Option<String>,
}

/// An allowed request, with the connection to its server.
pub(super) struct AllowedRequest<S> {
    pub(super) target: Target,
    pub(super) meter: Meter,
    pub(super) server: S,
    pub(super) outgoing: Option<OutgoingRequest>,
}

impl<O: NetworkAccess> Gateway<O> {
    /// Decides about one request, and connects if it is allowed.
    pub(super) async fn decide(
        &self,
        connection: u64,
        head: &RequestHead<'_>,
        permit: &mut ConnectionSlot,
    ) -> Result<AllowedRequest<O::Stream>, Refusal> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(u64::MAX, |since_epoch| since_epoch.as_secs());
        let keys = Arc::clone(&self.keys.read());
        let claims = authenticate::authenticate(&keys, &head.fields, now).map_err(Refusal::from_reason)?;
        let Claims { run, name, expires } = claims;
        let holder = self.plans.find_credential(&run, &name).map_err(|reason| Refusal {
            who: Some(Requester { run, credential: name, part: None }),
            ..Refusal::from_reason(reason)
        })?;
        let who = holder.planned().requester.clone();
        let refuse =
            |what: Option<RequestTarget>, reason, detail| Refusal { who: Some(who.clone()), what, reason, detail };
        let namespace = holder.run.namespace();
        let shared = permit.authenticate(namespace, holder.run.uid());
        shared.map_err(|reason| refuse(None, reason, None))?;
        let target = Target::parse(head).map_err(|reason| refuse(None, reason, Some(loggable_target(head.target))))?;
        let what = target.event_target();
        let refuse = |reason, detail| refuse(Some(what.clone()), reason, detail);
        let permission = holder.planned().allow_list.check_target(&target.host, target.port);
        let permission = permission.map_err(|reason| refuse(reason, None))?;
        let left = Duration::from_secs(expires.saturating_sub(now));
        let meter = Meter::new(holder, Arc::clone(&self.settings), left);
        let meter = meter.map_err(|reason| refuse(reason, None))?;
        let connecting = async {
            let addresses = self.resolve_addresses(&target, &permission, &meter).await?;
            self.connect_first(&addresses, target.port).await
        };
        let connected = run_until(meter.wait_end(self.shutdown.subscribe()), connecting).await;
        let connected = connected.unwrap_or_else(|reason| Err((reason, None)));
        let (server, address) = connected.map_err(|(reason, detail)| refuse(reason, detail))?;
        let outcome = EventKind::Allowed { rule: permission.rule, address: address.to_string() };
        self.events.emit(connection, Some(who.clone()), Some(what.clone()), outcome);
        let outgoing = match target.kind {
            TargetKind::Tunnel => None,
            TargetKind::Request { .. } => Some(OutgoingRequest::new(head, &target)),
        };
        Ok(AllowedRequest { target, meter, server, outgoing })
    }

    /// All addresses of a host that the plan lists, all of them checked. They are valid for this decision only.
    async fn resolve_addresses(
        &self,
        target: &Target,
        permission: &AllowedTarget,
        meter: &Meter,
    ) -> Result<Vec<IpAddr>, (Reason, Option<String>)> {
        let addresses = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let resolving = self.network.resolve(name);
                let found = timeout(self.settings.resolve_timeout, resolving).await;
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
        let rules = &meter.credential().planned().allow_list;
        let loopback = self.settings.loopback;
        rules
            .check_addresses(permission.scope, target.port, &addresses, loopback)
            .map_err(|(reason, address)| (reason, Some(address.to_string())))?;
        Ok(addresses)
    }

    /// Connects to the first address that answers.
    async fn connect_first(
        &self,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<(O::Stream, SocketAddr), (Reason, Option<String>)> {
        let mut failed = (Reason::NameNotFound, None);
        for address in addresses {
            let address = SocketAddr::new(*address, port);
            let connecting = self.network.connect(address);
            match timeout(self.settings.connect_timeout, connecting).await {
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
    pub(super) fn from_reason(reason: Reason) -> Self {
        Self { who: None, what: None, reason, detail: None }
    }
}
