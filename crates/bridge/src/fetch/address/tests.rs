use proptest::prelude::*;

use super::*;
use crate::fetch::fuzzing::fetch_address;

fn parts(text: &str) -> (String, u16, String, String) {
    let address = Address::parse(text).unwrap();
    let (host, port) = (address.host().to_owned(), address.port());
    (host, port, address.authority(), address.request_target())
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
        ("", AddressError::Characters),
        (" http://a.example", AddressError::Characters),
        ("http://a.example\n", AddressError::Characters),
        ("http://a.exam\tple", AddressError::Characters),
        ("http://a.example\r\nX: y", AddressError::Characters),
        ("http://a.example\\@b.example/", AddressError::Characters),
        ("http://a.example/\u{85}", AddressError::Characters),
        ("a.example", AddressError::Scheme),
        ("//a.example", AddressError::Scheme),
        ("http:a.example", AddressError::Scheme),
        ("ftp://a.example", AddressError::Scheme),
        ("file:///etc/passwd", AddressError::Scheme),
        ("javascript:alert(1)", AddressError::Scheme),
        ("unix:///run/x", AddressError::Scheme),
        ("http://user@a.example", AddressError::User),
        ("http://user:password@a.example", AddressError::User),
        ("http://:password@a.example", AddressError::User),
        ("http://a.example:0/", AddressError::Host),
        ("http://", AddressError::Malformed(url::ParseError::EmptyHost)),
        ("http://a b/", AddressError::Malformed(url::ParseError::IdnaError)),
        ("http://a.example:99999/", AddressError::Malformed(url::ParseError::InvalidPort)),
        ("http://[fe80::1%25eth0]/", AddressError::Malformed(url::ParseError::InvalidIpv6Address)),
        ("http://1.2.3.256/", AddressError::Malformed(url::ParseError::InvalidIpv4Address)),
        (&long, AddressError::TooLong),
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
        let next = from.resolve_redirect(location.as_bytes()).unwrap();
        assert_eq!(next.url.as_str(), expected, "{location}");
    }
    let long = "x".repeat(MAX_LOCATION_BYTES + 1);
    let address = RedirectError::Address;
    for (location, expected) in [
        ("http://a.example/", RedirectError::Downgrade),
        ("http://b.example/", RedirectError::Downgrade),
        ("http:/x", RedirectError::Downgrade),
        ("ftp://a.example/", address(AddressError::Scheme)),
        ("file:///etc/passwd", address(AddressError::Scheme)),
        ("data:text/plain,x", address(AddressError::Scheme)),
        ("https://user:password@b.example/", address(AddressError::User)),
        ("//user@b.example/", address(AddressError::User)),
        ("/\\b.example/", address(AddressError::Characters)),
        ("", address(AddressError::Characters)),
        (&long, RedirectError::TooLong),
    ] {
        assert_eq!(from.resolve_redirect(location.as_bytes()), Err(expected), "{location}");
    }
    let no_text = from.resolve_redirect(b"/\xff");
    assert_eq!(no_text, Err(address(AddressError::Characters)));
    // An upgrade is allowed.
    let plain = Address::parse("http://a.example/").unwrap();
    assert!(plain.resolve_redirect(b"https://a.example/").is_ok());
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
        assert_eq!(there.has_same_origin(&here), expected, "{text}");
    }
}

#[test]
fn an_unrequested_query_is_not_shown() {
    let asked = Address::parse("https://a.example/x?page=1#top").unwrap();
    assert_eq!(asked.reported_url(&asked), "https://a.example/x?page=1");
    for (location, expected) in [
        ("https://b.example/y?signature=secret", "https://b.example/y"),
        ("https://b.example/y?page=1", "https://b.example/y?page=1"),
        ("/y#secret", "https://a.example/y"),
    ] {
        let next = asked.resolve_redirect(location.as_bytes()).unwrap();
        assert_eq!(next.reported_url(&asked), expected, "{location}");
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
