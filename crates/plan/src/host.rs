//! Hosts that a run may reach: patterns of policies and packs, and the hosts of URLs.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use sympozium_api::text::quote;

mod address_range;

pub use address_range::AddressRange;

/// Maximum length of a host name.
pub const MAX_HOST_BYTES: usize = 253;
/// Maximum length of a URL.
pub const MAX_URL_BYTES: usize = 2048;

/// A host: a name in lower case, or an IP address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name such as `api.example.com`.
    Name(String),
    /// An IPv4 or IPv6 address.
    Address(IpAddr),
}

/// A pattern of hosts, and the port on them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The hosts that match.
    pub hosts: HostSet,
    /// The port; any port when absent.
    pub port: Option<u16>,
}

/// One host, or the hosts below a domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostSet {
    /// Exactly this host.
    Exact(Host),
    /// `*.domain`: every host below the domain, but not the domain itself.
    Subdomains(String),
}

/// The parts of a URL that decide where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the scheme is `https`.
    pub encrypted: bool,
    /// The host of the URL.
    pub host: Host,
    /// The port of the URL, or the default of its scheme.
    pub port: u16,
    /// Path and query; empty when there are none. The fragment is dropped.
    pub path: String,
}

/// Why a text is not a host or URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    /// Not a host name or an IP address.
    #[error("{} is not a host name or an address", quote(.0))]
    Host(String),
    /// Digits that some programs read as an address and others as a name.
    #[error("{} looks like an address but is none; write four decimal numbers", quote(.0))]
    Ambiguous(String),
    /// The scheme is not `http://` or `https://`.
    #[error("it does not begin with `https://` or `http://`")]
    Scheme,
    /// The URL contains a user name or password, which would be stored in plain text.
    #[error("it has a user name or password in it")]
    User,
    /// Not a port number.
    #[error("{} is not a port", quote(.0))]
    Port(String),
    /// Longer than this maximum.
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// White space, control characters or a backslash, which programs interpret differently.
    #[error("it has characters that do not belong into an address")]
    Characters,
}

impl Host {
    /// Parses a host. IPv6 addresses may have brackets.
    ///
    /// # Errors
    ///
    /// When it is not a host, or different programs would interpret it differently.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        if let Some(address) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return match address.parse::<Ipv6Addr>() {
                Ok(address) => Ok(Self::Address(address.into())),
                Err(_) => Err(InvalidHost::Host(text.to_owned())),
            };
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address));
        }
        parse_name(text).map(Self::Name)
    }

    /// Whether a cloud serves the credentials of the machine there: link-local addresses, and the other names and
    /// addresses that clouds use for metadata.
    pub fn is_metadata(&self) -> bool {
        match self {
            Self::Name(name) => METADATA_NAMES.contains(&name.as_str()),
            Self::Address(address) => {
                matches!(AddressRange::from_address(*address), AddressRange::Metadata | AddressRange::LinkLocal)
            }
        }
    }

    /// Whether this is the machine itself.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => is_at_or_below(name, "localhost"),
            Self::Address(address) => AddressRange::from_address(*address) == AddressRange::Loopback,
        }
    }

    /// Whether this is the name of a Kubernetes Service: `name.namespace.svc`, with or without the default cluster
    /// domain.
    pub fn is_service(&self) -> bool {
        let Self::Name(name) = self else {
            return false;
        };
        let name = name.strip_suffix(".cluster.local").unwrap_or(name);
        let labels: Vec<&str> = name.split('.').collect();
        matches!(labels.as_slice(), [_, _, "svc"])
    }

    /// Whether the host can be on the public network: not an address of a private or special range, and not a name that
    /// has a meaning only in a cluster or on one machine.
    pub fn is_public(&self) -> bool {
        match self {
            Self::Name(name) => {
                name.contains('.')
                    && !LOCAL_DOMAINS.iter().any(|domain| is_at_or_below(name, domain))
                    && !name.ends_with(".svc")
            }
            Self::Address(address) => AddressRange::from_address(*address) == AddressRange::Public,
        }
    }
}

/// Domains of one machine, one cluster or one site.
const LOCAL_DOMAINS: &[&str] =
    &["cluster.local", "home.arpa", "internal", "lan", "local", "localdomain", "localhost", "svc"];

/// Names of metadata services.
const METADATA_NAMES: &[&str] = &[
    "instance-data",
    "instance-data.ec2.internal",
    "metadata",
    "metadata.azure.internal",
    "metadata.goog",
    "metadata.google.internal",
];
impl Destination {
    /// Parses a host pattern; the port is separate.
    ///
    /// # Errors
    ///
    /// When the pattern is neither a host nor `*.domain`.
    pub fn parse(pattern: &str, port: Option<u16>) -> Result<Self, InvalidHost> {
        let hosts = match pattern.strip_prefix("*.") {
            Some(domain) => HostSet::Subdomains(parse_name(domain)?),
            None => HostSet::Exact(Host::parse(pattern)?),
        };
        Ok(Self { hosts, port })
    }

    /// Whether a connection to this host and port matches.
    pub fn allows(&self, host: &Host, port: u16) -> bool {
        let host = match (&self.hosts, host) {
            (HostSet::Exact(one), host) => one == host,
            (HostSet::Subdomains(domain), Host::Name(name)) => is_below(name, domain),
            (HostSet::Subdomains(_), Host::Address(_)) => false,
        };
        host && self.port.is_none_or(|allowed| allowed == port)
    }

    /// Whether every destination of `other` matches `self`.
    pub fn covers(&self, other: &Self) -> bool {
        let hosts = match (&self.hosts, &other.hosts) {
            (HostSet::Exact(one), HostSet::Exact(other)) => one == other,
            (HostSet::Subdomains(domain), HostSet::Exact(Host::Name(name))) => is_below(name, domain),
            (HostSet::Subdomains(domain), HostSet::Subdomains(other)) => is_at_or_below(other, domain),
            (HostSet::Subdomains(_), HostSet::Exact(Host::Address(_)))
            | (HostSet::Exact(_), HostSet::Subdomains(_)) => false,
        };
        hosts && (self.port.is_none() || self.port == other.port)
    }

    /// The destinations that match both, if there are any.
    pub fn meet(&self, other: &Self) -> Option<Self> {
        let hosts = if self.with_any_port().covers(&other.with_any_port()) {
            other.hosts.clone()
        } else if other.with_any_port().covers(&self.with_any_port()) {
            self.hosts.clone()
        } else {
            return None;
        };
        let port = match (self.port, other.port) {
            (Some(one), Some(other)) if one != other => return None,
            (one, other) => one.or(other),
        };
        Some(Self { hosts, port })
    }

    fn with_any_port(&self) -> Self {
        Self { hosts: self.hosts.clone(), port: None }
    }
}

impl Endpoint {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// When it is not a URL, or different programs would interpret it differently.
    pub fn parse(url: &str) -> Result<Self, InvalidHost> {
        if url.len() > MAX_URL_BYTES {
            return Err(InvalidHost::TooLong(MAX_URL_BYTES));
        }
        let strange = |byte: u8| byte <= b' ' || byte >= 0x7f || byte == b'\\';
        if url.bytes().any(strange) {
            return Err(InvalidHost::Characters);
        }
        let (encrypted, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(InvalidHost::Scheme),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = &rest[..end];
        if authority.contains('@') {
            return Err(InvalidHost::User);
        }
        let split = match authority.rfind(':') {
            // A colon inside of brackets is part of an address.
            Some(colon) if authority[colon..].contains(']') => None,
            other => other,
        };
        let (host, port) = match split {
            Some(colon) => (&authority[..colon], Some(&authority[colon + 1..])),
            None => (authority, None),
        };
        let port = match port {
            Some(port) => parse_port(port).ok_or_else(|| InvalidHost::Port(port.to_owned()))?,
            None if encrypted => 443,
            None => 80,
        };
        // Without brackets, an IPv6 address was split at its last colon.
        if host.contains(':') && !host.starts_with('[') {
            return Err(InvalidHost::Host(host.to_owned()));
        }
        Ok(Self {
            encrypted,
            host: Host::parse(host)?,
            port,
            path: rest[end..].split('#').next().unwrap_or_default().to_owned(),
        })
    }
}

fn parse_port(port: &str) -> Option<u16> {
    let plain = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| port.parse().ok()).flatten().filter(|port| *port != 0)
}

/// Parses a host name into lower case. Names that end in a number are rejected: resolvers take `127.1` and `0x7f.1` for
/// addresses.
fn parse_name(text: &str) -> Result<String, InvalidHost> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.first().copied().is_some_and(is_word)
            && bytes.last().copied().is_some_and(is_word)
            && bytes.iter().all(|byte| is_word(*byte) || *byte == b'-')
    };
    if text.len() > MAX_HOST_BYTES || !text.split('.').all(is_label) {
        return Err(InvalidHost::Host(text.to_owned()));
    }
    let last = text.rsplit('.').next().unwrap_or_default();
    let digits = last.bytes().all(|byte| byte.is_ascii_digit());
    let hexadecimal = last
        .strip_prefix("0x")
        .or(last.strip_prefix("0X"))
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if digits || hexadecimal {
        return Err(InvalidHost::Ambiguous(text.to_owned()));
    }
    Ok(text.to_ascii_lowercase())
}

fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).and_then(|rest| rest.strip_suffix('.')).is_some_and(|rest| !rest.is_empty())
}

fn is_at_or_below(name: &str, domain: &str) -> bool {
    name == domain || is_below(name, domain)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for HostSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => write!(f, "{host}"),
            Self::Subdomains(domain) => write!(f, "*.{domain}"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.hosts),
            None => write!(f, "{}", self.hosts),
        }
    }
}

#[cfg(test)]
mod tests;
