//! Pages, fetched through a real gateway from real servers.

mod hostile;
mod redirects;

use std::io::Read as _;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use sympozium_api::run_plan::ToolLimits;
use sympozium_bridge::fetch;
use sympozium_harness::plan::{Public, credential};
use sympozium_harness::{Authority, Response, WebServer, wait_until};
use sympozium_ipc::door::{Refusal, RefusalCode, ToolAnswer};

use sympozium_gateway::Settings;
use tokio::io::AsyncWriteExt as _;

use crate::support::{GatewayHarness, RUN, Transport};

const LIMITS: ToolLimits =
    ToolLimits { timeout_seconds: 30, argument_bytes: 64 << 10, output_bytes: 2 << 20, concurrent: 1, per_minute: 60 };

/// A harness in which the web is open.
async fn open_web() -> GatewayHarness {
    GatewayHarness::unix(&[credential("web", Public::Open, &[])]).await
}

async fn fetch(harness: &GatewayHarness, arguments: Value) -> Result<ToolAnswer, Refusal> {
    let credential = harness.credential("web");
    let fetched = fetch::fetch(&harness.client, &credential, &arguments, &LIMITS).await;
    // Whatever comes of it, the secret is not in it.
    let shown = format!("{fetched:?}");
    assert!(!shown.contains(credential.password.as_str()), "{shown}");
    fetched
}

async fn get(harness: &GatewayHarness, url: &str) -> Result<ToolAnswer, Refusal> {
    fetch(harness, json!({ "url": url })).await
}

fn page(status: u16, url: &str, body: &str) -> ToolAnswer {
    ToolAnswer::Page {
        status,
        url: url.to_owned(),
        content_type: Some("text/plain".to_owned()),
        body: STANDARD.encode(body),
        truncated: false,
    }
}

fn refused(fetched: Result<ToolAnswer, Refusal>) -> (RefusalCode, String) {
    match fetched {
        Err(refusal) => (refusal.code, refusal.message),
        Ok(answer) => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn pages_come_over_both_transports_encrypted_or_not() {
    let credentials = [credential("web", Public::Open, &[])];
    for harness in [GatewayHarness::unix(&credentials).await, GatewayHarness::tls(&credentials).await] {
        let config = harness.authority.server(&["a.example"], &["http/1.1"]);
        let encrypted = WebServer::encrypted(config, |_| Response::page("over TLS")).await;
        let plain = WebServer::plain(|_| Response::page("in the clear")).await;
        let elsewhere = WebServer::plain(|_| Response::page("elsewhere")).await;
        harness.internet.host("a.example", 443, &encrypted);
        harness.internet.host("b.example", 80, &plain);
        harness.internet.host("c.example", 8080, &elsewhere);
        let address = "2606:4700::1";
        let config = harness.authority.server(&[address], &[]);
        let nameless = WebServer::encrypted(config, |_| Response::page("without a name")).await;
        let place = (address.parse::<IpAddr>().expect("an address"), 8443);
        harness.internet.route(place.into(), &nameless);
        for (url, body) in [
            ("https://a.example/x?y=1", "over TLS"),
            ("http://b.example/", "in the clear"),
            ("http://c.example:8080/", "elsewhere"),
            ("https://[2606:4700::1]:8443/", "without a name"),
        ] {
            assert_eq!(get(&harness, url).await, Ok(page(200, url, body)));
        }
        let expected = format!(
            "GET /x?y=1 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nAccept-Encoding: gzip, deflate\r\n\
             User-Agent: Sympozium/{}\r\nAccept: */*\r\n\r\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(encrypted.requests(), [expected]);
        let host = "\r\nHost: [2606:4700::1]:8443\r\n";
        assert!(nameless.requests()[0].contains(host));
        let mut allowed = harness.outcomes();
        allowed.retain(|it| it.contains("allowed"));
        let expected = ["a.example:443", "b.example:80", "c.example:8080", "[2606:4700::1]:8443"];
        assert_eq!(allowed, expected.map(|it| format!("{it} allowed public")));
    }
}

#[tokio::test]
async fn errors_of_servers_are_pages() {
    let harness = open_web().await;
    let site = WebServer::plain(|head| {
        if head.contains("/teapot") {
            Response::with(418, "Content-Type: text/plain\r\n", "short and stout")
        } else {
            Response::with(500, "Content-Type: text/plain\r\n", "oh")
        }
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    for (url, status, body) in [("http://a.example/teapot", 418, "short and stout"), ("http://a.example/", 500, "oh")] {
        assert_eq!(get(&harness, url).await, Ok(page(status, url, body)));
    }
}

#[tokio::test]
async fn compressed_pages_are_what_they_were() {
    let harness = open_web().await;
    let words = "the same words again and again, ".repeat(1000);
    let (mut gzip, mut zlib) = (Vec::new(), Vec::new());
    let (body, level) = (words.as_bytes(), Compression::default());
    let read = GzEncoder::new(body, level).read_to_end(&mut gzip);
    read.expect("memory");
    let read = ZlibEncoder::new(body, level).read_to_end(&mut zlib);
    read.expect("memory");
    let site = WebServer::plain(move |head| {
        let (name, body) = if head.contains("/gzip") { ("gzip", &gzip) } else { ("deflate", &zlib) };
        let headers = format!("Content-Type: text/plain\r\nContent-Encoding: {name}\r\n");
        Response::with(200, &headers, body)
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    for url in ["http://a.example/gzip", "http://a.example/deflate"] {
        assert_eq!(get(&harness, url).await, Ok(page(200, url, &words)));
    }
}

#[tokio::test]
async fn the_gateway_decides_and_its_reason_is_reported() {
    // The model may reach another host than the web's tools.
    let harness = GatewayHarness::unix(&[
        credential("web", Public::Closed, &["a.example 80", "gone.example 80"]),
        credential("model", Public::Closed, &["model.example 80"]),
    ])
    .await;
    let site = WebServer::plain(|_| Response::page("hello")).await;
    harness.internet.host("a.example", 80, &site);
    harness.internet.host("model.example", 80, &site);
    let gone = ["1.2.3.99".parse().expect("an address")];
    harness.internet.name("gone.example", &[&gone]);
    for (url, code, words) in [
        (
            "http://model.example/",
            RefusalCode::Denied,
            "`model.example` cannot be reached: the plan of this run does not let this part reach that host and port\nhint: ",
        ),
        (
            "http://a.example:81/",
            RefusalCode::Denied,
            "`a.example:81` cannot be reached: the plan of this run does not let",
        ),
        (
            "http://gone.example/",
            RefusalCode::Unavailable,
            "`gone.example` cannot be reached: the host does not take the connection",
        ),
    ] {
        let (told, message) = refused(get(&harness, url).await);
        assert_eq!(told, code, "{message}");
        assert!(message.starts_with(words), "{message}");
    }
    assert_eq!(harness.internet.resolved(), ["gone.example"]);
    assert_eq!(site.requests(), [""; 0]);
    // And when the run is over, nothing is fetched for it any more.
    assert!(get(&harness, "http://a.example/").await.is_ok());
    harness.gateway.plans().end(RUN);
    let over = "`a.example` cannot be reached: the gateway does not take this run's credential for the web (any more)";
    assert_eq!(refused(get(&harness, "http://a.example/").await), (RefusalCode::Denied, over.to_owned()));
    assert_eq!(site.requests().len(), 1);
}

#[tokio::test]
async fn a_full_gateway_is_distinguished_from_a_refusal() {
    let credentials = [credential("web", Public::Open, &[])];
    let one_at_a_time = Settings { connections_of_credential: 1, ..Settings::default() };
    let a_few_bytes = Settings { bytes_of_credential: 100, ..Settings::default() };
    for (settings, before, code, words) in [
        (one_at_a_time, "allowed public", RefusalCode::Busy, "this part has too many connections open"),
        (
            a_few_bytes,
            "ended bytes-of-credential",
            RefusalCode::Budget,
            "this part has sent and received as much as it may",
        ),
    ] {
        let harness = GatewayHarness::with(Transport::Unix, settings, &credentials).await;
        let site = WebServer::plain(|_| Response::page(&"x".repeat(200))).await;
        harness.internet.host("a.example", 80, &site);
        let credential = harness.credential("web");
        let tunnel = harness.client.tunnel(&credential, "a.example", 80).await;
        let mut tunnel = tunnel.expect("a tunnel");
        // One more than may be sent, where that is bounded.
        tunnel.write_all(&[b'x'; 101]).await.expect("it is open");
        let before = format!("a.example:80 {before}");
        assert!(wait_until(|| harness.outcomes().contains(&before)).await);
        let message = format!("`a.example` cannot be reached: {words}");
        let fetched = get(&harness, "http://a.example/").await;
        assert_eq!(refused(fetched), (code, message));
    }
}

#[tokio::test]
async fn a_server_without_a_trusted_certificate_gives_no_page() {
    let harness = open_web().await;
    let stranger = Authority::new("a stranger").server(&["a.example"], &[]);
    let strange = WebServer::encrypted(stranger, |_| Response::page("trust me")).await;
    let other = harness.authority.server(&["other.example"], &[]);
    let other = WebServer::encrypted(other, |_| Response::page("trust me")).await;
    harness.internet.host("a.example", 443, &strange);
    harness.internet.host("b.example", 443, &other);
    for host in ["a.example", "b.example"] {
        let (code, message) = refused(get(&harness, &format!("https://{host}/")).await);
        assert_eq!(code, RefusalCode::Unavailable, "{message}");
        let words = format!("`{host}` cannot be reached: no TLS could be agreed on");
        assert!(message.starts_with(&words), "{message}");
    }
    for site in [strange, other] {
        assert_eq!(site.requests(), [""; 0]);
    }
}

#[tokio::test]
async fn invalid_arguments_reach_no_server() {
    let harness = open_web().await;
    let url = "http://a.example/";
    for (arguments, words) in [
        (json!({}), "`url` is not of the kind"),
        (json!({ "url": 1 }), "`url` is not of the kind"),
        (json!({ "url": url, "headers": [] }), "`headers` is not of the kind"),
        (json!({ "url": "ftp://a.example/" }), "`url` cannot be fetched: it does not begin"),
        (json!({ "url": "http://u:p@a.example/" }), "`url` cannot be fetched: it has a user"),
        (json!({ "url": "http:///x y" }), "`url` cannot be fetched: it is not an address"),
        (json!({ "url": url, "headers": { "Host": "b.example" } }), "`headers` cannot be sent: `Host`"),
        (
            json!({ "url": url, "headers": { "Proxy-Authorization": "x" } }),
            "`headers` cannot be sent: `Proxy-Authorization`",
        ),
        (json!({ "url": url, "headers": { "X": "a\r\nHost: b" } }), "`headers` cannot be sent: the value"),
    ] {
        let (code, message) = refused(fetch(&harness, arguments).await);
        assert_eq!(code, RefusalCode::Arguments, "{message}");
        assert!(message.starts_with(words), "{message}");
    }
    assert_eq!(harness.outcomes(), [""; 0]);
}
