use proptest::prelude::*;

use super::*;
use crate::fetch::fuzzing::fetch_address;

fn parts(text: &str) -> (String, u16, String, String) {
    let address = Address::parse(text).unwrap();
    let (host, port) = (address.host().to_owned(), address.port());
    (host, port, address.authority(), address.path())
}

#[test]
fn addresses_and_what_is_made_of_them() {
    for (text, host, port, authority, path) in [
        ("https://a.example", "a.example", 443, "a.example", "/"),
        ("HTTP://A.Example:80/x?y#z", "a.example", 80, "a.example", "/x?y"),
        ("http://a.example:443/", "a.example", 443, "a.example:443", "/"),
        (
            "https://b\u{fc}cher.example/\u{fc}?q=a b",
            "xn--bcher-kva.example",
            443,
            "xn--bcher-kva.example",
            "/%C3%BC?q=a%20b",
        ),
        // Every notation of an address becomes the one that the gateway checks.
        ("http://2130706433/", "127.0.0.1", 80, "127.0.0.1", "/"),
        ("http://0x7f.1/", "127.0.0.1", 80, "127.0.0.1", "/"),
        ("http://0177.0.0.01/", "127.0.0.1", 80, "127.0.0.1", "/"),
        ("http://127.1./", "127.0.0.1", 80, "127.0.0.1", "/"),
        ("http://\u{ff11}27.0.0.1/", "127.0.0.1", 80, "127.0.0.1", "/"),
        ("http://[0::1]:8/", "::1", 8, "[::1]:8", "/"),
        ("http://a.example/%0d%0aX", "a.example", 80, "a.example", "/%0d%0aX"),
        ("http://a.example/../../x", "a.example", 80, "a.example", "/x"),
    ] {
        let expected = (host.to_owned(), port, authority.to_owned(), path.to_owned());
        assert_eq!(parts(text), expected, "{text}");
    }
}

#[test]
fn what_is_not_fetched() {
    let long = format!("http://a.example/{}", "x".repeat(MAX_URL_BYTES));
    for (text, expected) in [
        ("", NoAddress::Characters),
        (" http://a.example", NoAddress::Characters),
        ("http://a.example\n", NoAddress::Characters),
        ("http://a.exam\tple", NoAddress::Characters),
        ("http://a.example\r\nX: y", NoAddress::Characters),
        ("http://a.example\\@b.example/", NoAddress::Characters),
        ("http://a.example/\u{85}", NoAddress::Characters),
        ("a.example", NoAddress::Scheme),
        ("//a.example", NoAddress::Scheme),
        ("http:a.example", NoAddress::Scheme),
        ("ftp://a.example", NoAddress::Scheme),
        ("file:///etc/passwd", NoAddress::Scheme),
        ("javascript:alert(1)", NoAddress::Scheme),
        ("unix:///run/x", NoAddress::Scheme),
        ("http://user@a.example", NoAddress::User),
        ("http://user:password@a.example", NoAddress::User),
        ("http://:password@a.example", NoAddress::User),
        ("http://a.example:0/", NoAddress::Host),
        ("http://", NoAddress::Malformed(url::ParseError::EmptyHost)),
        ("http://a b/", NoAddress::Malformed(url::ParseError::IdnaError)),
        ("http://a.example:99999/", NoAddress::Malformed(url::ParseError::InvalidPort)),
        ("http://[fe80::1%25eth0]/", NoAddress::Malformed(url::ParseError::InvalidIpv6Address)),
        ("http://1.2.3.256/", NoAddress::Malformed(url::ParseError::InvalidIpv4Address)),
        (&long, NoAddress::TooLong),
    ] {
        assert_eq!(Address::parse(text), Err(expected), "{text}");
    }
}

#[test]
fn an_error_has_nothing_of_a_password_in_it() {
    let refused = Address::parse("http://user:hunter2@a.example/?hunter2").unwrap_err();
    assert!(!format!("{refused} {refused:?}").contains("hunter2"));
}

#[test]
fn redirects() {
    let from = Address::parse("https://a.example/x/y?z").unwrap();
    for (location, expected) in [
        ("w", "https://a.example/x/w"),
        ("/w?v#u", "https://a.example/w?v"),
        ("?v", "https://a.example/x/y?v"),
        ("//b.example", "https://b.example/"),
        ("https://b.example:444/", "https://b.example:444/"),
        ("https://169.254.169.254/", "https://169.254.169.254/"),
        ("https://0xA9FEA9FE/", "https://169.254.169.254/"),
        ("/\u{fc}", "https://a.example/%C3%BC"),
    ] {
        let next = from.redirected(location.as_bytes()).unwrap();
        assert_eq!(next.url.as_str(), expected, "{location}");
    }
    let long = "x".repeat(MAX_LOCATION_BYTES + 1);
    let address = NoRedirect::Address;
    for (location, expected) in [
        ("http://a.example/", NoRedirect::Downgrade),
        ("http://b.example/", NoRedirect::Downgrade),
        ("http:/x", NoRedirect::Downgrade),
        ("ftp://a.example/", address(NoAddress::Scheme)),
        ("file:///etc/passwd", address(NoAddress::Scheme)),
        ("data:text/plain,x", address(NoAddress::Scheme)),
        ("https://user:password@b.example/", address(NoAddress::User)),
        ("//user@b.example/", address(NoAddress::User)),
        ("/\\b.example/", address(NoAddress::Characters)),
        ("", address(NoAddress::Characters)),
        (&long, NoRedirect::TooLong),
    ] {
        assert_eq!(from.redirected(location.as_bytes()), Err(expected), "{location}");
    }
    let no_text = from.redirected(b"/\xff");
    assert_eq!(no_text, Err(address(NoAddress::Characters)));
    // An upgrade is allowed.
    let plain = Address::parse("http://a.example/").unwrap();
    assert!(plain.redirected(b"https://a.example/").is_ok());
}

#[test]
fn the_same_server_is_scheme_and_host_and_port() {
    let here = Address::parse("https://a.example/").unwrap();
    for (text, expected) in [
        ("https://a.example/other", true),
        ("https://A.EXAMPLE:443/", true),
        ("https://a.example:444/", false),
        ("http://a.example:443/", false),
        ("https://www.a.example/", false),
    ] {
        let there = Address::parse(text).unwrap();
        assert_eq!(there.is_at_the_same_server_as(&here), expected, "{text}");
    }
}

#[test]
fn a_query_that_nobody_asked_for_is_not_shown() {
    let asked = Address::parse("https://a.example/x?page=1#top").unwrap();
    assert_eq!(asked.shown(&asked), "https://a.example/x?page=1");
    for (location, expected) in [
        ("https://b.example/y?signature=secret", "https://b.example/y"),
        ("https://b.example/y?page=1", "https://b.example/y?page=1"),
        ("/y#secret", "https://a.example/y"),
    ] {
        let next = asked.redirected(location.as_bytes()).unwrap();
        assert_eq!(next.shown(&asked), expected, "{location}");
    }
}

/// Texts that resemble URLs.
fn nearly() -> impl Strategy<Value = String> {
    let scheme = prop::sample::select(vec!["http://", "https://", "HTTP://", "http:", "//", ""]);
    (scheme, "[a-zA-Z0-9.:@%/?#\\[\\]\\\\ \t\u{fc}\u{3002}_-]{0,40}").prop_map(|(a, b)| a.to_owned() + &b)
}

proptest! {
    #[test]
    fn whatever_is_taken_is_plain(text in nearly(), location in nearly()) {
        fetch_address(format!("{text}\n{location}").as_bytes());
    }
}
