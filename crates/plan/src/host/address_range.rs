//! Address ranges. Which destinations are allowed depends on the range of the address, in whatever notation it is
//! written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The range of an address. An IPv6 address that embeds an IPv4 address belongs to the range of the latter: a
/// translator on the way, or this machine's own kernel, extracts it and sends there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressRange {
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

impl AddressRange {
    /// The range that an address belongs to.
    pub fn from_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => classify_v4(address),
            IpAddr::V6(address) => classify_v6(address),
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

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn classify_v4(address: Ipv4Addr) -> AddressRange {
    if METADATA_V4.contains(&address) {
        return AddressRange::Metadata;
    }
    match address.octets() {
        [0, ..] => AddressRange::Unspecified,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => AddressRange::Private,
        [100, 64..=127, ..] => AddressRange::Shared,
        [127, ..] => AddressRange::Loopback,
        [169, 254, ..] => AddressRange::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressRange::Documentation,
        [198, 18 | 19, ..] => AddressRange::Benchmarking,
        // Protocol assignments, and the relays of 6to4.
        [192, 0, 0, _] | [192, 88, 99, _] => AddressRange::Reserved,
        [224..=239, ..] => AddressRange::Multicast,
        [255, 255, 255, 255] => AddressRange::Broadcast,
        [240..=255, ..] => AddressRange::Reserved,
        _ => AddressRange::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> AddressRange {
    if address == METADATA_V6 {
        return AddressRange::Metadata;
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => return AddressRange::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => return AddressRange::Loopback,
        _ => {}
    }
    // The embedded addresses come before the ranges: packets are sent to them.
    let carried = embedded_v4(address).into_iter().flatten().map(classify_v4);
    if let Some(worst) = carried.reduce(|one, other| match one {
        AddressRange::Public => other,
        _ => one,
    }) {
        return worst;
    }
    match address.segments() {
        [0xff00..=0xffff, ..] => AddressRange::Multicast,
        [0xfe80..=0xfebf, ..] => AddressRange::LinkLocal,
        [0xfec0..=0xfeff, ..] => AddressRange::Private,
        [0xfc00..=0xfdff, ..] => AddressRange::UniqueLocal,
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => AddressRange::Documentation,
        [0x2001, 0x0002, 0, ..] => AddressRange::Benchmarking,
        // Protocol assignments.
        [0x2001, 0..=0x01ff, ..] => AddressRange::Reserved,
        // Only 2000::/3 is allocated.
        [0x2000..=0x3fff, ..] => AddressRange::Public,
        _ => AddressRange::Reserved,
    }
}

/// The IPv4 addresses that translators, tunnels and kernels extract from an IPv6 address.
fn embedded_v4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let segments = address.segments();
    let last = v4_from_segments(segments[6], segments[7]);
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
        [0x2002, high, low, ..] => [Some(v4_from_segments(high, low)), None],
        // Teredo: the server, and the client with all bits inverted.
        [0x2001, 0, high, low, ..] => {
            let client = v4_from_segments(!segments[6], !segments[7]);
            [Some(v4_from_segments(high, low)), Some(client)]
        }
        // ISATAP, below any prefix.
        [.., 0 | 0x0200, 0x5efe, _, _] => [Some(last), None],
        _ => [None, None],
    }
}

fn v4_from_segments(high: u16, low: u16) -> Ipv4Addr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests;
