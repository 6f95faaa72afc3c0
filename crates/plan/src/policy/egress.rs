//! The hosts that a run may reach.

use sympozium_api::network::NetworkPolicy;

use super::allowed::Allowed;
use crate::host::{Destination, Host, HostSet};

/// Allowed destinations: whether public hosts are, and a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EgressBounds {
    /// Whether every public host may be reached.
    pub public: bool,
    /// Further destinations. Where public hosts are allowed, they are not listed again.
    destinations: Allowed<Destination>,
}

impl EgressBounds {
    /// Everything, private networks included.
    pub fn unrestricted() -> Self {
        Self { public: true, destinations: Allowed::All }
    }

    /// Public hosts only.
    pub fn public_only() -> Self {
        Self::new(true, Allowed::none())
    }

    /// From the section of a policy, with its parsed list.
    pub fn from_policy(policy: &NetworkPolicy, listed: Allowed<Destination>) -> Self {
        Self::new(!policy.deny_all, listed)
    }

    fn new(public: bool, listed: Allowed<Destination>) -> Self {
        let listed = match listed {
            Allowed::Only(listed) if public => Allowed::only(listed.into_iter().filter(|pattern| !is_public(pattern))),
            listed => listed,
        };
        Self { public, destinations: listed }
    }

    /// What both allow.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let common = self.destinations.meet(&other.destinations);
        let of_public = |open: &Self, listed: &Self| match &listed.destinations {
            Allowed::Only(listed) if open.public => {
                listed.iter().filter(|pattern| is_public(pattern)).cloned().collect()
            }
            _ => Vec::new(),
        };
        let listed = match common {
            Allowed::All => Allowed::All,
            Allowed::Only(common) => {
                Allowed::only(common.into_iter().chain(of_public(self, other)).chain(of_public(other, self)))
            }
        };
        Self::new(self.public && other.public, listed)
    }

    /// Whether anything may be reached.
    pub fn allows_any(&self) -> bool {
        self.public || self.destinations != Allowed::none()
    }

    /// The listed destinations; none where there is no list.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        match &self.destinations {
            Allowed::Only(listed) => Some(listed.iter()),
            Allowed::All => None,
        }
        .into_iter()
        .flatten()
    }

    /// Whether all of a destination may be reached.
    pub fn covers(&self, destination: &Destination) -> bool {
        (self.public && is_public(destination)) || self.destinations.covers(destination)
    }

    /// Whether this host may be reached at this port.
    pub fn allows(&self, host: &Host, port: u16) -> bool {
        (self.public && host.is_public()) || self.destinations.allows(|listed| listed.allows(host, port))
    }
}

/// The list of a policy, and its entries that are not hosts.
pub fn parse_egress_list(policy: &NetworkPolicy) -> (Allowed<Destination>, Vec<(usize, String)>) {
    let mut listed = Vec::new();
    let mut invalid = Vec::new();
    for (index, egress) in policy.allowed_egress.iter().enumerate() {
        match parse_egress(egress) {
            Ok(destination) => listed.push(destination),
            Err(error) => invalid.push((index, error)),
        }
    }
    (Allowed::only(listed), invalid)
}

/// Parses an entry; the default port is that of HTTPS.
pub fn parse_egress(egress: &sympozium_api::network::Egress) -> Result<Destination, String> {
    let port = u16::try_from(egress.port())
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("`{}` is not a port", egress.port()))?;
    Destination::parse(egress.host.as_str(), Some(port)).map_err(|error| error.to_string())
}

/// Whether all hosts of a destination are public. It is never only some of them: private names are recognised by their
/// end.
fn is_public(destination: &Destination) -> bool {
    match &destination.hosts {
        HostSet::Exact(host) => host.is_public(),
        HostSet::Subdomains(domain) => Host::Name(format!("any.{domain}")).is_public(),
    }
}
