use proptest::prelude::*;

use super::*;

fn destination(text: &str) -> Destination {
    let (pattern, port) = match text.split_once(' ') {
        Some((pattern, port)) => (pattern, Some(port.parse().expect("a port"))),
        None => (text, None),
    };
    Destination::parse(pattern, port).expect("a destination")
}

#[test]
fn hosts() {
    for (text, expected) in [
        ("api.Example.com", "api.example.com"),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("2001:db8:0::1", "[2001:db8::1]"),
        ("3com.com", "3com.com"),
        ("a.0xg", "a.0xg"),
    ] {
        assert_eq!(Host::parse(text).map(|host| host.to_string()), Ok(expected.to_owned()));
    }
    for text in ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "1.2.3.4.5", "a.0x", "example.1", "127.0.0.256"] {
        assert_eq!(Host::parse(text), Err(InvalidHost::Ambiguous(text.into())), "{text}");
    }
    for text in ["", ".", "a.", ".a", "a..b", "-a", "a-", "a_b", "exаmple.com", "a b", "*.a", "[::1", "a/b", "a:1"] {
        assert_eq!(Host::parse(text), Err(InvalidHost::Host(text.into())), "{text}");
    }
    let long = format!("{}a", "a.".repeat(127));
    assert!(Host::parse(&long[2..]).is_ok());
    assert!(Host::parse(&format!("a.{long}")).is_err());
}

#[test]
fn public_hosts() {
    for text in [
        "api.openai.com",
        // Ends like a local name, but not at a label boundary.
        "a.elocalhost",
        "local.example.com",
        "8.8.8.8",
        "[2606:4700::1]",
    ] {
        assert!(Host::parse(text).is_ok_and(|host| host.is_public()), "{text}");
    }
    for text in [
        "localhost",
        "x.localhost",
        "intranet",
        "ollama.default.svc",
        "a.b.svc.cluster.local",
        "printer.local",
        "metadata.google.internal",
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "198.18.0.1",
        "192.0.2.1",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::]",
        "[2001:0:1::]",
        "[2001:db8::1]",
    ] {
        assert!(Host::parse(text).is_ok_and(|host| !host.is_public()), "{text}");
    }
}

#[test]
fn destinations() {
    for (pattern, host, port, allowed) in [
        ("example.com", "example.com", 443, true),
        ("Example.com", "eXample.com", 443, true),
        ("example.com", "a.example.com", 443, false),
        ("*.example.com", "a.example.com", 443, true),
        ("*.example.com", "a.b.example.com", 443, true),
        ("*.example.com", "example.com", 443, false),
        ("*.example.com", "evilexample.com", 443, false),
        ("*.example.com", "example.com.evil.org", 443, false),
        ("example.com 443", "example.com", 443, true),
        ("example.com 443", "example.com", 80, false),
        ("10.0.0.1 5432", "10.0.0.1", 5432, true),
    ] {
        let host = Host::parse(host).expect("a host");
        assert_eq!(destination(pattern).allows(&host, port), allowed, "{pattern} {host}:{port}");
    }
    for pattern in ["*", "*.", "a.*.b", "*.127.0.0.1", "**.a.com", "*a.com"] {
        assert!(Destination::parse(pattern, None).is_err(), "{pattern}");
    }
    let meet = |left: &str, right: &str| destination(left).meet(&destination(right)).map(|meet| meet.to_string());
    assert_eq!(meet("*.a.com", "x.a.com 443"), Some("x.a.com:443".to_owned()));
    assert_eq!(meet("*.a.com 443", "x.a.com"), Some("x.a.com:443".to_owned()));
    assert_eq!(meet("*.a.com 443", "x.a.com 80"), None);
    assert_eq!(meet("*.a.com", "a.com"), None);
}

#[test]
fn endpoints() {
    for (url, expected) in [
        ("https://api.openai.com/v1", "true api.openai.com 443"),
        ("http://ollama.default.svc:11434/v1", "false ollama.default.svc 11434"),
        ("http://[::1]:8080", "false [::1] 8080"),
        ("https://[::1]", "true [::1] 443"),
        ("https://a.b?x=@y", "true a.b 443"),
    ] {
        let endpoint = Endpoint::parse(url).expect("an endpoint");
        let text = format!("{} {} {}", endpoint.encrypted, endpoint.host, endpoint.port);
        assert_eq!(text, expected, "{url}");
    }
    for (url, expected) in [
        ("", InvalidHost::Scheme),
        ("api.openai.com", InvalidHost::Scheme),
        ("HTTPS://a.b", InvalidHost::Scheme),
        ("ftp://a.b", InvalidHost::Scheme),
        ("https://user:pass@a.b", InvalidHost::User),
        ("https://api.openai.com@evil.example", InvalidHost::User),
        ("https://api.openai.com\\@evil.example", InvalidHost::Characters),
        ("https://a.b /", InvalidHost::Characters),
        ("https://a.b\t", InvalidHost::Characters),
        ("https://éxample.com", InvalidHost::Characters),
        ("https://", InvalidHost::Host(String::new())),
        ("https:///x", InvalidHost::Host(String::new())),
        ("https://a.b:", InvalidHost::Port(String::new())),
        ("https://a.b:0", InvalidHost::Port("0".into())),
        ("https://a.b:65536", InvalidHost::Port("65536".into())),
        ("https://::1", InvalidHost::Host(":".into())),
        ("https://0x7f.1", InvalidHost::Ambiguous("0x7f.1".into())),
    ] {
        assert_eq!(Endpoint::parse(url), Err(expected), "{url}");
    }
    let long = format!("https://a.b/{}", "x".repeat(MAX_URL_BYTES));
    assert_eq!(Endpoint::parse(&long), Err(InvalidHost::TooLong(MAX_URL_BYTES)));
}

#[test]
fn metadata_services_are_known_in_every_spelling() {
    for host in [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[::ffff:100.100.100.200]",
        "[64:ff9b::a9fe:a9fe]",
        "[::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:808:808::5601:5601]",
        "[2606:4700::5efe:169.254.169.254]",
        "168.63.129.16",
        "192.0.0.192",
        "[fe80::1]",
        "[febf::1]",
        "[fd00:ec2::254]",
        "metadata",
        "Metadata.Google.Internal",
    ] {
        assert!(Host::parse(host).expect(host).is_metadata(), "{host}");
    }
    for host in [
        "10.0.0.7",
        "100.100.100.201",
        "[::ffff:10.0.0.7]",
        "[64:ff9b::a00:7]",
        "[fd00:ec2::253]",
        "[fec0::1]",
        "[::1]",
        "metadata.example.com",
        "google.internal",
    ] {
        assert!(!Host::parse(host).expect(host).is_metadata(), "{host}");
    }
}

fn pattern() -> impl Strategy<Value = Destination> {
    ("(\\*\\.)?([ab]\\.){0,2}com", prop::option::of(1_u16..3))
        .prop_map(|(pattern, port)| Destination::parse(&pattern, port).expect("a destination"))
}

proptest! {
    #[test]
    fn texts_are_read_or_refused(text in prop_oneof!["[a-c0-9x.:\\[\\]-]{0,12}", "https?://[a-c0-9x.:@\\[\\]/-]{0,12}", any::<String>()]) {
        if let Ok(host) = Host::parse(&text) {
            prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
        }
        if let Ok(endpoint) = Endpoint::parse(&text) {
            prop_assert!(text.to_ascii_lowercase().contains("://"));
            prop_assert_ne!(endpoint.port, 0);
        }
    }

    #[test]
    fn the_meet_allows_what_both_allow(left in pattern(), right in pattern(), host in "([ab]\\.){0,3}com", port in 1_u16..3) {
        let host = Host::parse(&host)?;
        let both = left.allows(&host, port) && right.allows(&host, port);
        let meet = left.meet(&right);
        prop_assert_eq!(meet.as_ref().is_some_and(|meet| meet.allows(&host, port)), both);
        prop_assert_eq!(right.meet(&left), meet);
        if left.covers(&right) {
            prop_assert_eq!(left.meet(&right), Some(right));
        }
    }
}

#[test]
fn hosts_of_this_machine_and_of_a_cluster_are_known_by_their_names() {
    for (host, is_loopback, is_service) in [
        ("localhost", true, false),
        ("a.localhost", true, false),
        ("127.0.0.1", true, false),
        ("[::1]", true, false),
        ("localhost.example.com", false, false),
        ("10.0.0.1", false, false),
        ("db.team.svc", false, true),
        ("DB.team.svc.cluster.local", false, true),
        ("svc", false, false),
        ("team.svc", false, false),
        ("pod.db.team.svc", false, false),
        ("db.team.svc.example.com", false, false),
        ("cluster.local", false, false),
        ("notsvc", false, false),
        ("a.b.notsvc", false, false),
    ] {
        let host = Host::parse(host).unwrap_or_else(|error| panic!("{host}: {error}"));
        assert_eq!((host.is_loopback(), host.is_service()), (is_loopback, is_service), "{host}");
    }
}
