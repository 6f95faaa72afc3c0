//! Address ranges. Which destinations are allowed depends on the range of the address, in whatever notation it is
//! written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The range of an address. An IPv6 address that embeds an IPv4 address belongs to the range of the latter: a
/// translator on the way, or this machine's own kernel, extracts it and sends there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Range {
    /// The public Internet.
    Public,
    /// `0.0.0.0/8` and `::`, which many systems take for this machine.
    Unspecified,
    /// This machine.
    Loopback,
    /// One site: `10/8`, `172.16/12`, `192.168/16`, and the old `fec0::/10`.
    Private,
    /// `100.64/10`, between a provider and its customers; some clusters use it for pods.
    Shared,
    /// One site: `fc00::/7`.
    UniqueLocal,
    /// One link: `169.254/16` and `fe80::/10`.
    LinkLocal,
    /// The metadata service of a cloud, which serves the credentials of the machine.
    Metadata,
    /// `224/4` and `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// Reserved for documentation.
    Documentation,
    /// Reserved for benchmarks of networks.
    Benchmarking,
    /// Not allocated, or reserved for protocols.
    Reserved,
}

/// IPv4 metadata services outside of the link-local range.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// The IPv6 metadata service of AWS, in the unique-local range.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);

impl Range {
    /// The range that an address belongs to.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }

    /// The name in logs and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::Shared => "shared",
            Self::UniqueLocal => "unique-local",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Reserved => "reserved",
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn of_v4(address: Ipv4Addr) -> Range {
    if METADATA_V4.contains(&address) {
        return Range::Metadata;
    }
    match address.octets() {
        [0, ..] => Range::Unspecified,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Range::Private,
        [100, 64..=127, ..] => Range::Shared,
        [127, ..] => Range::Loopback,
        [169, 254, ..] => Range::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Range::Documentation,
        [198, 18 | 19, ..] => Range::Benchmarking,
        // Protocol assignments, and the relays of 6to4.
        [192, 0, 0, _] | [192, 88, 99, _] => Range::Reserved,
        [224..=239, ..] => Range::Multicast,
        [255, 255, 255, 255] => Range::Broadcast,
        [240..=255, ..] => Range::Reserved,
        _ => Range::Public,
    }
}

fn of_v6(address: Ipv6Addr) -> Range {
    if address == METADATA_V6 {
        return Range::Metadata;
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => return Range::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => return Range::Loopback,
        _ => {}
    }
    // The embedded addresses come before the ranges: packets are sent to them.
    let carried = carried(address).into_iter().flatten().map(of_v4);
    if let Some(worst) = carried.reduce(|one, other| match one {
        Range::Public => other,
        _ => one,
    }) {
        return worst;
    }
    match address.segments() {
        [0xff00..=0xffff, ..] => Range::Multicast,
        [0xfe80..=0xfebf, ..] => Range::LinkLocal,
        [0xfec0..=0xfeff, ..] => Range::Private,
        [0xfc00..=0xfdff, ..] => Range::UniqueLocal,
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Range::Documentation,
        [0x2001, 0x0002, 0, ..] => Range::Benchmarking,
        // Protocol assignments.
        [0x2001, 0..=0x01ff, ..] => Range::Reserved,
        // Only 2000::/3 is allocated.
        [0x2000..=0x3fff, ..] => Range::Public,
        _ => Range::Reserved,
    }
}

/// The IPv4 addresses that translators, tunnels and kernels extract from an IPv6 address.
fn carried(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let segments = address.segments();
    let last = joined(segments[6], segments[7]);
    match segments {
        // Mapped, translated (SIIT), and the old compatible ones.
        [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0, 0, 0, 0, 0, 0, ..] => [Some(last), None],
        // NAT64 with the well-known prefix.
        [0x0064, 0xff9b, 0, 0, 0, 0, ..] => [Some(last), None],
        // NAT64 with a prefix of the site: 48 bits long, or longer with the address at the end.
        [0x0064, 0xff9b, 1, high, low, next, ..] => {
            let [_, third] = low.to_be_bytes();
            let [fourth, _] = next.to_be_bytes();
            let [first, second] = high.to_be_bytes();
            let inside = Ipv4Addr::new(first, second, third, fourth);
            [Some(inside), Some(last)]
        }
        // 6to4.
        [0x2002, high, low, ..] => [Some(joined(high, low)), None],
        // Teredo: the server, and the client with all bits inverted.
        [0x2001, 0, high, low, ..] => {
            let client = joined(!segments[6], !segments[7]);
            [Some(joined(high, low)), Some(client)]
        }
        // ISATAP, below any prefix.
        [.., 0 | 0x0200, 0x5efe, _, _] => [Some(last), None],
        _ => [None, None],
    }
}

fn joined(high: u16, low: u16) -> Ipv4Addr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests;
