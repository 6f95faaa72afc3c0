//! What a credential opens, as rules over values; and which addresses a name that it opens may have.

use std::net::IpAddr;

use sympozium_api::run_plan::GatewayCredential;
use sympozium_plan::host::{Destination, Host, Hosts, Range};

use super::Unusable;
use crate::events::Reason;
use crate::settings::{Loopback, MAX_RULES};

/// The allow-list of one credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    public: bool,
    destinations: Vec<Destination>,
}

/// What allows a host and port, and which addresses it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// The rule, as events show it: `public`, or the destination as the plan lists it.
    pub rule: String,
    /// Which addresses the host may have.
    pub scope: Scope,
}

/// Which addresses a host may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Public ones, and those that the plan itself lists.
    Public,
    /// Those of a site as well: the plan names a host of one site, exactly.
    Site,
    /// Those of this machine: the plan names it, exactly.
    Machine,
}

impl Rules {
    /// Reads the allow-list of a plan.
    ///
    /// # Errors
    ///
    /// When it has too many entries, or one that is no destination.
    pub fn of(credential: &GatewayCredential) -> Result<Self, Unusable> {
        let listed = &credential.reach.destinations;
        if listed.len() > MAX_RULES {
            return Err(Unusable::TooManyRules(credential.name.clone()));
        }
        let read = listed.iter().map(|it| {
            Destination::parse(&it.host, it.port).map_err(|error| Unusable::Destination {
                credential: credential.name.clone(),
                host: it.host.chars().take(80).collect(),
                error,
            })
        });
        Ok(Self { public: credential.reach.public, destinations: read.collect::<Result<_, _>>()? })
    }

    /// Whether a host and port may be asked for at all, before anybody is asked for its addresses.
    ///
    /// # Errors
    ///
    /// When they may not.
    pub fn permit(&self, host: &Host, port: u16) -> Result<Permission, Reason> {
        // No plan opens these, by whatever rule.
        if host.is_metadata() {
            return Err(Reason::Metadata);
        }
        let mut listed = self.destinations.iter().filter(|it| it.allows(host, port));
        // A rule that names the host comes before one that covers it.
        let exact = listed.clone().find(|it| matches!(it.hosts, Hosts::One(_)));
        if let Some(rule) = exact {
            return Ok(Permission { rule: rule.to_string(), scope: scope_of(host) });
        }
        let wildcard = listed.next().map(ToString::to_string);
        let public = || (self.public && host.is_public()).then(|| "public".to_owned());
        let rule = wildcard.or_else(public).ok_or(Reason::NotInPlan)?;
        Ok(Permission { rule, scope: Scope::Public })
    }

    /// Whether every one of these addresses may be connected to. One that may not spoils all: whoever answers for the
    /// name could otherwise have us try until the right one comes.
    ///
    /// # Errors
    ///
    /// With the first that may not be.
    pub fn check_addresses(
        &self,
        scope: Scope,
        port: u16,
        addresses: &[IpAddr],
        loopback: Loopback,
    ) -> Result<(), (Reason, IpAddr)> {
        for &address in addresses {
            let range = Range::of(address);
            let reason = match range {
                Range::Metadata | Range::LinkLocal => Some(Reason::Metadata),
                _ if self.may_have(scope, port, address, range, loopback) => None,
                _ => Some(Reason::AddressNotAllowed),
            };
            if let Some(reason) = reason {
                return Err((reason, address));
            }
        }
        Ok(())
    }

    fn may_have(&self, scope: Scope, port: u16, address: IpAddr, range: Range, loopback: Loopback) -> bool {
        let listed = || {
            let host = Host::Address(address);
            let exact = |it: &&Destination| matches!(it.hosts, Hosts::One(_));
            let mut exact = self.destinations.iter().filter(exact);
            exact.any(|it| it.allows(&host, port))
        };
        match range {
            Range::Public => true,
            Range::Private | Range::Shared | Range::UniqueLocal | Range::Documentation | Range::Benchmarking => {
                scope == Scope::Site || listed()
            }
            Range::Loopback => loopback == Loopback::AsPlanned && (scope == Scope::Machine || listed()),
            // Nobody is there, or everybody, or nobody knows who.
            Range::Unspecified
            | Range::LinkLocal
            | Range::Metadata
            | Range::Multicast
            | Range::Broadcast
            | Range::Reserved => false,
        }
    }
}

/// What a plan opens that names this host. A name of the public network must have addresses of it, or whoever answers
/// for the name decides where in our network a run gets to.
fn scope_of(host: &Host) -> Scope {
    match host {
        Host::Name(name) if is_this_machine(name) => Scope::Machine,
        Host::Address(address) if Range::of(*address) == Range::Loopback => Scope::Machine,
        // The address itself is in the list.
        Host::Address(_) => Scope::Public,
        Host::Name(_) if host.is_public() => Scope::Public,
        Host::Name(_) => Scope::Site,
    }
}

/// Names that RFC 6761 keeps for this machine.
pub(crate) fn is_this_machine(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}
