use proptest::prelude::*;

use super::*;

/// First address, bits of the prefix, range: written by hand from the registries of special addresses.
const TABLE_V4: &[(&str, u32, AddressRange)] = &[
    ("0.0.0.0", 8, AddressRange::Unspecified),
    ("10.0.0.0", 8, AddressRange::Private),
    ("100.100.100.200", 32, AddressRange::Metadata),
    ("100.64.0.0", 10, AddressRange::Shared),
    ("127.0.0.0", 8, AddressRange::Loopback),
    ("168.63.129.16", 32, AddressRange::Metadata),
    ("169.254.0.0", 16, AddressRange::LinkLocal),
    ("172.16.0.0", 12, AddressRange::Private),
    ("192.0.0.192", 32, AddressRange::Metadata),
    ("192.0.0.0", 24, AddressRange::Reserved),
    ("192.0.2.0", 24, AddressRange::Documentation),
    ("192.88.99.0", 24, AddressRange::Reserved),
    ("192.168.0.0", 16, AddressRange::Private),
    ("198.18.0.0", 15, AddressRange::Benchmarking),
    ("198.51.100.0", 24, AddressRange::Documentation),
    ("203.0.113.0", 24, AddressRange::Documentation),
    ("224.0.0.0", 4, AddressRange::Multicast),
    ("255.255.255.255", 32, AddressRange::Broadcast),
    ("240.0.0.0", 4, AddressRange::Reserved),
];

/// Of two rows that match, the first counts.
fn expected_v4(address: Ipv4Addr) -> AddressRange {
    let row = TABLE_V4.iter().find(|(first, bits, _)| {
        let first: Ipv4Addr = first.parse().expect("an address");
        let shift = 32 - bits;
        u64::from(first.to_bits()) >> shift == u64::from(address.to_bits()) >> shift
    });
    row.map_or(AddressRange::Public, |(_, _, range)| *range)
}

#[test]
fn both_ends_of_every_range_and_their_neighbours() {
    for (first, bits, _) in TABLE_V4 {
        let first: Ipv4Addr = first.parse().expect("an address");
        let size = 1_u64 << (32 - bits);
        let last = u32::try_from(u64::from(first.to_bits()) + size - 1).expect("it fits");
        for number in [first.to_bits().wrapping_sub(1), first.to_bits(), last, last.wrapping_add(1)] {
            let address = Ipv4Addr::from_bits(number);
            assert_eq!(AddressRange::from_address(address.into()), expected_v4(address), "{address}");
        }
    }
}

#[test]
fn every_family_and_notation() {
    for (text, range) in [
        ("8.8.8.8", AddressRange::Public),
        ("2606:4700::1", AddressRange::Public),
        ("3ffe::1", AddressRange::Public),
        ("::", AddressRange::Unspecified),
        ("::1", AddressRange::Loopback),
        ("::2", AddressRange::Unspecified),
        ("::127.0.0.1", AddressRange::Loopback),
        ("::ffff:127.0.0.1", AddressRange::Loopback),
        ("::ffff:0.0.0.0", AddressRange::Unspecified),
        ("::ffff:7f00:1", AddressRange::Loopback),
        ("::ffff:8.8.8.8", AddressRange::Public),
        ("::ffff:0:10.0.0.1", AddressRange::Private),
        ("64:ff9b::10.0.0.1", AddressRange::Private),
        ("64:ff9b::8.8.8.8", AddressRange::Public),
        ("64:ff9b::a9fe:a9fe", AddressRange::LinkLocal),
        ("64:ff9b:1:a00:0:100::", AddressRange::Private),
        ("64:ff9b:1::10.0.0.1", AddressRange::Unspecified),
        ("64:ff9b:1:808:8:800:8.8.8.8", AddressRange::Public),
        ("2002:a00:1::1", AddressRange::Private),
        ("2002:7f00:1::", AddressRange::Loopback),
        ("2002:808:808::", AddressRange::Public),
        ("2001:0:a00:1::f7f7:f7f7", AddressRange::Private),
        ("2001:0:808:808::f5ff:fffe", AddressRange::Private),
        ("2001:0:808:808::f7f7:f7f7", AddressRange::Public),
        ("2606:4700::5efe:10.0.0.1", AddressRange::Private),
        ("2606:4700::200:5efe:127.0.0.1", AddressRange::Loopback),
        ("fe80::1", AddressRange::LinkLocal),
        ("febf::1", AddressRange::LinkLocal),
        ("fec0::1", AddressRange::Private),
        ("fc00::1", AddressRange::UniqueLocal),
        ("fd00:ec2::254", AddressRange::Metadata),
        ("fd00:ec2::253", AddressRange::UniqueLocal),
        ("ff02::1", AddressRange::Multicast),
        ("2001:db8::1", AddressRange::Documentation),
        ("3fff:fff::1", AddressRange::Documentation),
        ("3fff:1000::1", AddressRange::Public),
        ("2001:2::1", AddressRange::Benchmarking),
        ("2001:2:1::1", AddressRange::Reserved),
        ("2001:10::1", AddressRange::Reserved),
        ("2001:1ff::1", AddressRange::Reserved),
        ("2001:200::1", AddressRange::Public),
        ("100::1", AddressRange::Reserved),
        ("4000::1", AddressRange::Reserved),
        ("::ffff:168.63.129.16", AddressRange::Metadata),
    ] {
        let address: IpAddr = text.parse().expect(text);
        assert_eq!(AddressRange::from_address(address), range, "{text}");
    }
}

proptest! {
    #[test]
    fn v4_is_as_the_table_and_std_say(number: u32) {
        let address = Ipv4Addr::from_bits(number);
        let range = AddressRange::from_address(address.into());
        prop_assert_eq!(range, expected_v4(address));
        prop_assert_eq!(range == AddressRange::Loopback, address.is_loopback());
        prop_assert_eq!(range == AddressRange::Private, address.is_private());
        prop_assert_eq!(range == AddressRange::LinkLocal, address.is_link_local());
        prop_assert_eq!(range == AddressRange::Multicast, address.is_multicast());
        prop_assert_eq!(range == AddressRange::Broadcast, address.is_broadcast());
        prop_assert_eq!(range == AddressRange::Documentation, address.is_documentation());
    }

    #[test]
    fn an_address_that_carries_another_is_no_better(
        number in prop_oneof![any::<u32>(), 0x0a00_0000_u32..0x0aff_ffff, 0x7f00_0000_u32..0x7fff_ffff, 0xa9fe_0000_u32..0xa9fe_ffff],
        rest: u16,
    ) {
        let address = Ipv4Addr::from_bits(number);
        let (high, low) = ((number >> 16) as u16, (number & 0xffff) as u16);
        let [a, b, c, d] = address.octets();
        let across = [u16::from_be_bytes([a, b]), u16::from_be_bytes([0, c]), u16::from_be_bytes([d, 0])];
        for carrier in [
            address.to_ipv6_mapped(),
            address.to_ipv6_compatible(),
            Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 1, across[0], across[1], across[2], 0x0808, 0x0808),
            Ipv6Addr::new(0x64, 0xff9b, 1, 0x0808, 0x0008, 0x0800, high, low),
            Ipv6Addr::new(0x2002, high, low, rest, 0, 0, 0, rest),
            Ipv6Addr::new(0x2001, 0, high, low, rest, rest, 0xf7f7, 0xf7f7),
            Ipv6Addr::new(0x2001, 0, 0x0808, 0x0808, rest, rest, !high, !low),
            Ipv6Addr::new(0x2606, 0x4700, rest, rest, 0, 0x5efe, high, low),
        ] {
            let range = AddressRange::from_address(carrier.into());
            // `::1` and `::` have meanings of their own.
            if carrier.is_loopback() || carrier.is_unspecified() {
                prop_assert_ne!(range, AddressRange::Public);
            } else {
                prop_assert_eq!(range, AddressRange::from_address(address.into()), "{}", carrier);
            }
        }
    }

    #[test]
    fn v6_that_is_public_is_none_that_std_knows_as_special(bits: u128) {
        let address = Ipv6Addr::from_bits(bits);
        let range = AddressRange::from_address(address.into());
        if range == AddressRange::Public {
            prop_assert!(!address.is_loopback() && !address.is_unspecified() && !address.is_multicast());
            prop_assert!(!address.is_unique_local() && !address.is_unicast_link_local());
            prop_assert_eq!(bits >> 125, 1, "{}", address);
        }
    }
}
