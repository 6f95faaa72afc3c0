//! The hosts that a run may reach.

use sympozium_api::network::NetworkPolicy;

use super::allowed::Allowed;
use crate::host::{Destination, Host, Hosts};

/// Allowed destinations: whether public hosts are, and a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reach {
    /// Whether every public host may be reached.
    pub public: bool,
    /// Further destinations. Where public hosts are allowed, they are not listed again.
    listed: Allowed<Destination>,
}

impl Reach {
    /// Everything, private networks included.
    pub fn anything() -> Self {
        Self { public: true, listed: Allowed::All }
    }

    /// Public hosts only.
    pub fn public() -> Self {
        Self::new(true, Allowed::nothing())
    }

    /// From the section of a policy, with its parsed list.
    pub fn of(policy: &NetworkPolicy, listed: Allowed<Destination>) -> Self {
        Self::new(!policy.deny_all, listed)
    }

    fn new(public: bool, listed: Allowed<Destination>) -> Self {
        let listed = match listed {
            Allowed::Only(listed) if public => Allowed::only(listed.into_iter().filter(|it| !is_public(it))),
            listed => listed,
        };
        Self { public, listed }
    }

    /// What both allow.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let common = self.listed.meet(&other.listed);
        let of_public = |open: &Self, listed: &Self| match &listed.listed {
            Allowed::Only(listed) if open.public => listed.iter().filter(|it| is_public(it)).cloned().collect(),
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
    pub fn is_anything_at_all(&self) -> bool {
        self.public || self.listed != Allowed::nothing()
    }

    /// The listed destinations; none where there is no list.
    pub fn listed(&self) -> impl Iterator<Item = &Destination> {
        match &self.listed {
            Allowed::Only(listed) => Some(listed.iter()),
            Allowed::All => None,
        }
        .into_iter()
        .flatten()
    }

    /// Whether all of a destination may be reached.
    pub fn covers(&self, destination: &Destination) -> bool {
        (self.public && is_public(destination)) || self.listed.covers(destination)
    }

    /// Whether this host may be reached at this port.
    pub fn reaches(&self, host: &Host, port: u16) -> bool {
        (self.public && host.is_public()) || self.listed.allows(|listed| listed.allows(host, port))
    }
}

/// The list of a policy, and its entries that are not hosts.
pub fn listed(policy: &NetworkPolicy) -> (Allowed<Destination>, Vec<(usize, String)>) {
    let mut listed = Vec::new();
    let mut invalid = Vec::new();
    for (index, egress) in policy.allowed_egress.iter().enumerate() {
        match destination(egress) {
            Ok(destination) => listed.push(destination),
            Err(error) => invalid.push((index, error)),
        }
    }
    (Allowed::only(listed), invalid)
}

/// Parses an entry; the default port is that of HTTPS.
pub fn destination(egress: &sympozium_api::network::Egress) -> Result<Destination, String> {
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
        Hosts::One(host) => host.is_public(),
        Hosts::Below(domain) => Host::Name(format!("any.{domain}")).is_public(),
    }
}
