use super::*;

/// A ClientHello with these extensions, without its record.
fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let long = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).unwrap();
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let listed = extensions.iter().flat_map(|(kind, value)| [&kind.to_be_bytes()[..], &long(value)].concat());
    let listed: Vec<u8> = listed.collect();
    let body = [&[3, 3][..], &[7; 32], &[0], &long(&[0x13, 0x01]), &[1, 0], &long(&listed)].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1][..], &length[1..], &body].concat()
}

fn server_name_extension(names: &[(u8, &[u8])]) -> (u16, Vec<u8>) {
    let list: Vec<u8> = names
        .iter()
        .flat_map(|(kind, name)| {
            let length = u16::try_from(name.len()).unwrap().to_be_bytes();
            [&[*kind][..], &length, name].concat()
        })
        .collect();
    let length = u16::try_from(list.len()).unwrap().to_be_bytes();
    (0, [&length[..], &list].concat())
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    let records = message.chunks(size).flat_map(|part| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[22, 3, 1][..], &length, part].concat()
    });
    records.collect()
}

fn named(name: &str) -> Vec<u8> {
    message(&[(0x2b, vec![2, 3, 4]), server_name_extension(&[(0, name.as_bytes())]), (0xfe0d, vec![0; 40])])
}

#[test]
fn the_name_is_found_in_any_records_and_pieces() {
    let message = named("API.example.com");
    let expected = |wire: &[u8]| Hello::Complete { name: Some("api.example.com".into()), length: wire.len() };
    for size in [1, 2, 3, 4, 5, 63, 16 * 1024] {
        let wire = records(&message, size);
        for cut in 0..wire.len() {
            assert_eq!(parse_hello(&wire[..cut]), Ok(Hello::Incomplete), "{size} {cut}");
            assert!(may_be_tls(&wire[..cut]));
        }
        assert_eq!(parse_hello(&wire), Ok(expected(&wire)), "{size}");
        // Early data may follow, in records of its own.
        assert_eq!(parse_hello(&[&wire[..], &[23, 3, 3, 0, 1, 0]].concat()), Ok(expected(&wire)));
    }
    let without = records(&self::message(&[(0x2b, vec![2, 3, 4])]), 1000);
    let length = without.len();
    let name = None;
    assert_eq!(parse_hello(&without), Ok(Hello::Complete { name, length }));
}

#[test]
fn what_is_not_exactly_one_hello_is_refused() {
    let good = named("a.example");
    let name = |names: &[(u8, &[u8])]| message(&[server_name_extension(names)]);
    let mut longer = good.clone();
    longer.push(0);
    let mut other_message = good.clone();
    other_message[0] = 2;
    let mut huge = good.clone();
    huge[1] = 1;
    for (what, wire) in [
        (
            "two extensions",
            records(&message(&[server_name_extension(&[(0, b"a")]), server_name_extension(&[(0, b"a")])]), 1000),
        ),
        ("two names", records(&name(&[(0, b"a"), (0, b"b")]), 1000)),
        ("no name", records(&name(&[]), 1000)),
        ("an empty name", records(&name(&[(0, b"")]), 1000)),
        ("another kind", records(&name(&[(1, b"a")]), 1000)),
        ("a NUL", records(&name(&[(0, b"a\0b")]), 1000)),
        ("more in the record", records(&longer, 1000)),
        ("another message", records(&other_message, 1000)),
        ("a huge message", records(&huge, 1000)),
        ("an empty record", [&[22, 3, 1, 0, 0][..], &records(&good, 1000)].concat()),
        ("a long record", vec![22, 3, 1, 0x40, 1]),
        ("another record", [&records(&good, 40)[..45], &[23, 3, 1, 0, 1, 0]].concat()),
        ("plain HTTP", b"GET / HTTP/1.1\r\n".to_vec()),
        ("SSH", b"SSH-2.0-x\r\n".to_vec()),
        ("SSL 2", vec![0x80, 0x2e, 1, 3, 1]),
        ("too many small records", records(&[&good[..4], &vec![0; MAX_WIRE_BYTES][..]].concat(), 1)),
    ] {
        assert_eq!(parse_hello(&wire), Err(MalformedTls), "{what}");
    }
}

#[test]
fn whatever_begins_like_a_record_is_tls() {
    for (bytes, expected) in [
        (&[][..], true),
        (&[22], true),
        (&[22, 3], true),
        // Whatever follows: an empty record, another message, a length that is too large for a record.
        (&[22, 3, 1, 0, 0, 22], true),
        (&[22, 3, 3, 0, 1, 2], true),
        (&[22, 3, 9, 0xff, 0xff], true),
        // Some servers skip a warning before the ClientHello.
        (&[21, 3, 1, 0, 2, 1, 100], true),
        (&[20, 3, 3, 0, 1, 1], true),
        (&[23, 3, 3, 0, 0], true),
        (&[22, 2], false),
        (&[22, 0, 1, 2], false),
        (&[19, 3], false),
        (&[25, 3], false),
        (b"SSH-2.0-x", false),
        (b"GET / HTTP/1.1", false),
    ] {
        assert_eq!(may_be_tls(bytes), expected, "{bytes:?}");
    }
}

#[test]
fn a_message_cut_short_inside_is_refused() {
    let good = named("a.example");
    // Every length in it, increased or decreased by one.
    let mut wrong = 0;
    for at in 4..good.len() {
        for change in [1, 0xff] {
            let mut message = good.clone();
            message[at] = message[at].wrapping_add(change);
            match parse_hello(&records(&message, 1000)) {
                Err(MalformedTls) => wrong += 1,
                Ok(Hello::Complete { .. }) => {}
                Ok(Hello::Incomplete) => panic!("all of it is there: {at}"),
            }
        }
    }
    assert!(wrong > 10, "{wrong}");
}
