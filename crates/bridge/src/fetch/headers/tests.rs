use proptest::prelude::*;
use serde_json::json;
use sympozium_ipc::strict_head::{Framing, TargetForm, read_request};

use super::*;

fn of(value: Value) -> Result<Headers, HeaderError> {
    match value {
        Value::Object(object) => Headers::from_json(&object),
        other => panic!("{other}"),
    }
}

fn address() -> Address {
    Address::parse("https://a.example:444/x?y").unwrap()
}

#[test]
fn the_head_has_what_we_say_and_what_was_asked_for() {
    let ours = concat!("User-Agent: Sympozium/", env!("CARGO_PKG_VERSION"), "\r\n");
    let begin = "GET /x?y HTTP/1.1\r\nHost: a.example:444\r\nConnection: close\r\nAccept-Encoding: gzip, deflate\r\n";
    let head = Headers::default().request_head(&address());
    assert_eq!(head, format!("{begin}{ours}Accept: */*\r\n\r\n"));
    let headers = of(json!({ "accept": " text/html ", "X-Token": "a: b", "X-Empty": "" })).unwrap();
    let expected = format!("{begin}{ours}X-Empty: \r\nX-Token: a: b\r\naccept: text/html\r\n\r\n");
    assert_eq!(headers.request_head(&address()), expected);
}

#[test]
fn what_is_not_sent() {
    for name in [
        "Host",
        "host",
        "CONNECTION",
        "Content-Length",
        "Transfer-Encoding",
        "TE",
        "Trailer",
        "Upgrade",
        "Expect",
        "Accept-Encoding",
        "Keep-Alive",
        "Proxy-Authorization",
        "proxy-anything",
    ] {
        let refused = of(json!({ name: "x" }));
        assert_eq!(refused, Err(HeaderError::Reserved(name.to_owned())));
    }
    for name in ["", ":authority", "a b", "a:", "a\r\nb", "\u{fc}", "a\u{0}"] {
        let refused = of(json!({ name: "x" }));
        assert!(matches!(refused, Err(HeaderError::Name(_))), "{name}: {refused:?}");
    }
    for value in [
        json!("a\r\nHost: b"),
        json!("a\nb"),
        json!("a\tb"),
        json!("\u{0}"),
        json!("\u{7f}"),
        json!("\u{fc}"),
        json!(1),
        json!(null),
        json!(["a"]),
    ] {
        let refused = of(json!({ "X": value }));
        assert_eq!(refused, Err(HeaderError::Value("X".to_owned())), "{value}");
    }
    let twice = of(json!({ "Cookie": "a", "cookie": "b" }));
    assert_eq!(twice, Err(HeaderError::Duplicate("cookie".to_owned())));
}

#[test]
fn bounds() {
    let many = |count: usize| -> Map<String, Value> {
        let name = |at: usize| (format!("x-{at}"), json!("y"));
        (0..count).map(name).collect()
    };
    assert!(Headers::from_json(&many(MAX_HEADERS)).is_ok());
    assert_eq!(Headers::from_json(&many(MAX_HEADERS + 1)), Err(HeaderError::TooMany));
    let long = |bytes: usize| of(json!({ "a": "x".repeat(bytes - 1) }));
    assert!(long(MAX_HEADER_BYTES).is_ok());
    assert_eq!(long(MAX_HEADER_BYTES + 1), Err(HeaderError::TooLong));
}

proptest! {
    #[test]
    fn whatever_is_sent_is_read_as_what_was_asked_for(
        pairs in prop::collection::btree_map("[A-Za-z:\r\n -]{0,10}|Proxy-[a-z]{1,3}", "[ -~\r\n\u{fc}]{0,8}", 0..6)
    ) {
        let object: Map<String, Value> = pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let Ok(headers) = Headers::from_json(&object) else { return Ok(()) };
        let head = headers.request_head(&address());
        let read = read_request(head.as_bytes(), TargetForm::Server).unwrap();
        prop_assert_eq!((read.method, read.target, read.framing), ("GET", "/x?y", Framing::Length(0)));
        let is_ours = |name: &str| ["Host", "Connection", "Accept-Encoding", "User-Agent", "Accept"].contains(&name);
        let own: Vec<_> = read.fields.iter().filter(|(name, _)| pairs.contains_key(*name)).collect();
        prop_assert_eq!(own.len(), pairs.len());
        for (name, value) in &read.fields {
            let asked = pairs.get(*name).map(|value| value.trim_matches(' ').as_bytes());
            prop_assert!(asked == Some(*value) || is_ours(name), "{}", name);
        }
    }
}
