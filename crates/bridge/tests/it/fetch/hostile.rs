//! Servers that mean harm, and a gateway that goes away.

use std::io::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::json;
use sympozium_api::run_plan::ToolLimits;
use sympozium_bridge::fetch;
use sympozium_harness::{Response, WebServer, wait_until};
use sympozium_ipc::door::{RefusalCode, ToolAnswer};
use sympozium_testkit::processes::memory;

use super::{LIMITS, get, open_web, refused};

const MIB: usize = 1 << 20;

/// Length of the body, and whether there was more.
fn size(answer: ToolAnswer) -> (usize, bool) {
    match answer {
        ToolAnswer::Page { body, truncated, .. } => (STANDARD.decode(body).expect("Base64").len(), truncated),
        other => panic!("{other:?}"),
    }
}

/// The most memory that this process ever had, in MiB.
fn peak_memory() -> u64 {
    memory("self").expect("own memory").peak >> 20
}

#[tokio::test]
async fn a_gibibyte_of_nothing_stops_at_the_bound() {
    let harness = open_web().await;
    // A block of deflate that becomes 1 MiB, and can be followed by itself: a thousand of them are a gibibyte.
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; MIB]).expect("memory");
    encoder.flush().expect("memory");
    let block = encoder.get_ref().clone();
    assert!(block.len() < 4096, "{}", block.len());
    let site = WebServer::plain(move |head| {
        let (encoding, begin) = if head.contains("/gzip") {
            ("gzip", &b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"[..])
        } else {
            ("deflate", &b""[..])
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\n\r\n");
        Response::Repeated { head: [head.as_bytes(), begin].concat(), piece: block.clone(), times: 1024 }
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    for url in ["http://a.example/gzip", "http://a.example/deflate"] {
        let answer = get(&harness, url).await.expect("a page");
        assert_eq!(size(answer), (2 * MIB, true));
    }
    // This process holds all tests of the bridge; the page alone would be four times as much.
    assert!(peak_memory() < 256, "{} MiB", peak_memory());
}

#[tokio::test]
async fn a_body_without_an_end_is_cut_and_the_server_let_go() {
    let harness = open_web().await;
    let site = WebServer::plain(|head| {
        let (head, piece) = if head.contains("/chunks") {
            ("Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n".repeat(1000))
        } else {
            ("", vec![b'x'; 65536])
        };
        Response::Repeated { head: format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes(), piece, times: u64::MAX }
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    for url in ["http://a.example/", "http://a.example/chunks"] {
        let answer = get(&harness, url).await.expect("a page");
        assert_eq!(size(answer), (2 * MIB, true));
        assert!(wait_until(|| site.open() == 0).await);
    }
    // What was on its way when we had enough is in buffers of the system.
    assert!(site.written() < 64 * MIB as u64, "{}", site.written());
}

#[tokio::test]
async fn a_server_that_stalls_costs_no_more_than_the_time_of_a_call() {
    let harness = open_web().await;
    let site = WebServer::plain(|head| {
        let said = match head.split(' ').nth(1) {
            Some("/silent") => "",
            Some("/head") => "HTTP/1.1 200 OK\r\nContent-",
            Some("/body") => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            Some("/chunk") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\n\r\nabc",
        };
        Response::Stalled(said.as_bytes().to_vec())
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    let limits = ToolLimits { timeout_seconds: 1, ..LIMITS };
    let credential = harness.credential("web");
    let paths = ["silent", "head", "body", "chunk", "end"];
    let arguments = paths.map(|path| json!({ "url": format!("http://a.example/{path}") }));
    let fetching = arguments.each_ref().map(|it| fetch::fetch(&harness.client, &credential, it, &limits));
    let [first, second, third, fourth, fifth] = fetching;
    let (first, second, third, fourth, fifth) = tokio::join!(first, second, third, fourth, fifth);
    for fetched in [first, second, third, fourth, fifth] {
        let (code, message) = refused(fetched);
        let expected = (RefusalCode::Unavailable, "no whole answer within 1 s");
        assert_eq!((code, &*message), expected);
    }
    assert!(wait_until(|| site.open() == 0).await);
}

#[tokio::test]
async fn answers_that_are_none() {
    let harness = open_web().await;
    let site = WebServer::plain(|head| {
        let answer = match head.split(' ').nth(1) {
            Some("/huge") => format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(MIB)),
            Some("/many") => format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(1000)),
            Some("/chunks") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n".to_owned(),
            Some("/size") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n".to_owned(),
            Some("/both") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
            Some("/short") => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_owned(),
            Some("/encoding") => "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nabc".to_owned(),
            Some("/gzip") => "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nabc".to_owned(),
            Some("/upgrade") => "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n".to_owned(),
            Some("/other") => "220 mail.example ESMTP\r\n\r\n".to_owned(),
            _ => String::new(),
        };
        Response::Whole(answer.into_bytes())
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    let garbled = "gave an answer whose body cannot be read";
    for (path, words) in [
        ("huge", "gave an answer whose head is too large"),
        ("many", "gave an answer whose head is too large"),
        ("chunks", &format!("{garbled}: a chunk is longer than it says")),
        ("size", &format!("{garbled}: the size of a chunk cannot be read")),
        ("both", "gave an answer whose head cannot be read"),
        ("short", "ended the connection before its answer was whole"),
        ("encoding", "compressed its answer in a way that was not asked for"),
        ("gzip", &format!("{garbled}: the body is not compressed as its head says")),
        ("upgrade", "changed the protocol without being asked to"),
        ("other", "gave an answer whose head cannot be read"),
        ("nothing", "ended the connection before its answer was whole"),
    ] {
        let (code, message) = refused(get(&harness, &format!("http://a.example/{path}")).await);
        let expected = (RefusalCode::Unavailable, format!("`a.example` {words}"));
        assert_eq!((code, message), expected, "{path}");
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_leaves_no_connection() {
    let harness = open_web().await;
    let site = WebServer::plain(|_| Response::Stalled(b"HTTP/1.1 200 OK\r\n".to_vec())).await;
    harness.internet.host("a.example", 80, &site);
    let (outward, credential) = (Arc::clone(&harness.client), harness.credential("web"));
    let call = tokio::spawn(async move {
        let arguments = json!({ "url": "http://a.example/" });
        fetch::fetch(&outward, &credential, &arguments, &LIMITS).await
    });
    assert!(wait_until(|| site.requests().len() == 1).await);
    call.abort();
    assert!(wait_until(|| site.open() == 0 && harness.gateway.client_count() == 0).await);
}

/// e56: the proxy is gone in the middle.
#[tokio::test]
async fn e56_a_gateway_that_is_gone_in_the_middle_is_an_error_and_there_is_no_way_around() {
    for url in [
        "http://a.example/length",
        "http://a.example/chunks",
        "https://a.example/length",
        // Here the connection's end is the body's; but a server ends TLS with a word, and this end has none.
        "https://a.example/end",
    ] {
        let harness = open_web().await;
        let begun = |head: &str| {
            let framing = match head.split(' ').nth(1) {
                Some("/length") => "Content-Length: 99\r\n\r\n",
                Some("/chunks") => "Transfer-Encoding: chunked\r\n\r\n9\r\n",
                _ => "\r\n",
            };
            Response::Stalled(format!("HTTP/1.1 200 OK\r\n{framing}half").into_bytes())
        };
        let config = harness.authority.server(&["a.example"], &[]);
        let (port, site) = if url.starts_with("https") {
            (443, WebServer::encrypted(config, begun).await)
        } else {
            (80, WebServer::plain(begun).await)
        };
        harness.internet.host("a.example", port, &site);
        let killing = async {
            assert!(wait_until(|| site.requests().len() == 1).await);
            harness.kill_gateway();
        };
        let (fetched, ()) = tokio::join!(get(&harness, url), killing);
        let (code, message) = refused(fetched);
        assert_eq!(code, RefusalCode::Unavailable, "{url}: {message}");
        assert!(wait_until(|| site.open() == 0).await);
        let (code, message) = refused(get(&harness, url).await);
        assert_eq!(code, RefusalCode::Unavailable, "{url}: {message}");
        assert_eq!(site.requests().len(), 1);
    }
}
