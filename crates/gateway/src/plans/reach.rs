//! The allow-list of a credential, and the addresses that an allowed name may have. Pure.

use std::net::IpAddr;

use sympozium_api::run_plan::GatewayCredential;
use sympozium_plan::host::{AddressRange, Destination, Host, HostSet};

use super::PlanError;
use crate::events::Reason;
use crate::settings::{Loopback, MAX_RULES};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowList {
    public: bool,
    destinations: Vec<Destination>,
}

/// The rule that allows a host and port, and the addresses that the host may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedTarget {
    /// The rule in events: `public`, or the destination as the plan lists it.
    pub rule: String,
    pub scope: AddressScope,
}

/// Which addresses a host may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressScope {
    /// Public ones, and those that the plan itself lists.
    Public,
    /// Private ones as well: the plan names exactly this private host.
    Site,
    /// Loopback addresses: the plan names exactly this machine.
    Machine,
}

impl AllowList {
    /// Parses the allow-list of a plan.
    ///
    /// # Errors
    ///
    /// Returns an error if it has too many entries or an invalid one.
    pub fn from_credential(credential: &GatewayCredential) -> Result<Self, PlanError> {
        let listed = &credential.reach.destinations;
        if listed.len() > MAX_RULES {
            return Err(PlanError::TooManyRules(credential.name.clone()));
        }
        let read = listed.iter().map(|destination| {
            Destination::parse(&destination.host, destination.port).map_err(|error| PlanError::Destination {
                credential: credential.name.clone(),
                host: destination.host.chars().take(80).collect(),
                error,
            })
        });
        Ok(Self { public: credential.reach.public, destinations: read.collect::<Result<_, _>>()? })
    }

    /// Checks whether a host and port are allowed, before the name is resolved.
    ///
    /// # Errors
    ///
    /// Returns the reason if they are not.
    pub fn check_target(&self, host: &Host, port: u16) -> Result<AllowedTarget, Reason> {
        // No rule of a plan allows these.
        if host.is_metadata() {
            return Err(Reason::Metadata);
        }
        let mut listed = self.destinations.iter().filter(|destination| destination.allows(host, port));
        // An exact rule comes before a wildcard.
        let exact = listed.clone().find(|destination| matches!(destination.hosts, HostSet::Exact(_)));
        if let Some(rule) = exact {
            return Ok(AllowedTarget { rule: rule.to_string(), scope: address_scope(host) });
        }
        let wildcard = listed.next().map(ToString::to_string);
        let public = || (self.public && host.is_public()).then(|| "public".to_owned());
        let rule = wildcard.or_else(public).ok_or(Reason::NotInPlan)?;
        Ok(AllowedTarget { rule, scope: AddressScope::Public })
    }

    /// Checks that all addresses may be connected to. One that may not is enough to refuse: otherwise a malicious name
    /// server could make the gateway try until the right one comes.
    ///
    /// # Errors
    ///
    /// Returns the first address that is not allowed.
    pub fn check_addresses(
        &self,
        scope: AddressScope,
        port: u16,
        addresses: &[IpAddr],
        loopback: Loopback,
    ) -> Result<(), (Reason, IpAddr)> {
        for &address in addresses {
            let range = AddressRange::from_address(address);
            let reason = match range {
                AddressRange::Metadata | AddressRange::LinkLocal => Some(Reason::Metadata),
                _ if self.is_address_allowed(scope, port, address, range, loopback) => None,
                _ => Some(Reason::AddressNotAllowed),
            };
            if let Some(reason) = reason {
                return Err((reason, address));
            }
        }
        Ok(())
    }

    fn is_address_allowed(
        &self,
        scope: AddressScope,
        port: u16,
        address: IpAddr,
        range: AddressRange,
        loopback: Loopback,
    ) -> bool {
        let listed = || {
            let host = Host::Address(address);
            let exact = |destination: &&Destination| matches!(destination.hosts, HostSet::Exact(_));
            let mut exact = self.destinations.iter().filter(exact);
            exact.any(|destination| destination.allows(&host, port))
        };
        match range {
            AddressRange::Public => true,
            AddressRange::Private
            | AddressRange::Shared
            | AddressRange::UniqueLocal
            | AddressRange::Documentation
            | AddressRange::Benchmarking => scope == AddressScope::Site || listed(),
            AddressRange::Loopback => loopback == Loopback::AsPlanned && (scope == AddressScope::Machine || listed()),
            // No single known host has such an address.
            AddressRange::Unspecified
            | AddressRange::LinkLocal
            | AddressRange::Metadata
            | AddressRange::Multicast
            | AddressRange::Broadcast
            | AddressRange::Reserved => false,
        }
    }
}

/// The addresses for a host that a plan names exactly. A public name must have public addresses, or its name server
/// would decide where in our network a run can connect.
fn address_scope(host: &Host) -> AddressScope {
    match host {
        Host::Name(name) if is_localhost(name) => AddressScope::Machine,
        Host::Address(address) if AddressRange::from_address(*address) == AddressRange::Loopback => {
            AddressScope::Machine
        }
        // The address itself is in the list.
        Host::Address(_) => AddressScope::Public,
        Host::Name(_) if host.is_public() => AddressScope::Public,
        Host::Name(_) => AddressScope::Site,
    }
}

/// Names that RFC 6761 reserves for this machine.
pub(crate) fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}
