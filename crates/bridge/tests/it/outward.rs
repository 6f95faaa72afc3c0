//! The way out, over both transports.

use std::error::Error as _;
use std::io;

use sympozium_bridge::egress_client::{
    ANSWER_TIMEOUT, EgressClient, EgressError, GatewayAddress, HANDSHAKE_TIMEOUT, MAX_ROOTS, MAX_ROOTS_BYTES, Stream,
    TunnelError,
};
use sympozium_harness::credential::{now, sign};
use sympozium_harness::plan::{Public, credential};
use sympozium_harness::{Authority, Response, TIMEOUT, WebServer, wait_until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::time::Instant;

use crate::support::{GATEWAY, GatewayHarness, RUN, Transport};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

async fn ask(stream: &mut Stream) -> io::Result<String> {
    stream.write_all(REQUEST).await?;
    stream.flush().await?;
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    tokio::time::timeout(TIMEOUT, reading).await.expect("in time")?;
    Ok(answer)
}

async fn both(name: &str, public: Public, hosts: &[&str]) -> [GatewayHarness; 2] {
    let credentials = [credential(name, public, hosts)];
    [GatewayHarness::unix(&credentials).await, GatewayHarness::tls(&credentials).await]
}

/// The refusal, its status and word.
fn refusal(tunnel: Result<Stream, TunnelError>) -> (u16, Option<String>, String) {
    match tunnel {
        Err(TunnelError::Refused { status, reason, message }) => (status, reason, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_tunnel_leads_to_the_host_over_both_transports() {
    for harness in both("c", Public::Open, &[]).await {
        let site = WebServer::plain(|_| Response::page("hello")).await;
        harness.internet.host("a.example", 80, &site);
        let credential = harness.credential("c");
        let tunnel = harness.client.tunnel(&credential, "a.example", 80).await;
        let answer = ask(&mut tunnel.expect("a tunnel")).await.expect("words");
        assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
        assert_eq!(site.requests(), [str::from_utf8(REQUEST).expect("text")]);
    }
}

#[tokio::test]
async fn end_servers_are_known_by_their_certificates() {
    for harness in both("c", Public::Open, &[]).await {
        let config = harness.authority.server(&["a.example"], &["http/1.1"]);
        let site = WebServer::encrypted(config, |_| Response::page("secret")).await;
        let stranger = Authority::new("a stranger").server(&["b.example"], &[]);
        let strange = WebServer::encrypted(stranger, |_| Response::page("trust me")).await;
        harness.internet.host("a.example", 443, &site);
        harness.internet.host("b.example", 443, &strange);
        // Has the certificate of another.
        harness.internet.host("c.example", 443, &site);
        let credential = harness.credential("c");
        for (host, expected) in [
            ("a.example", Ok(())),
            ("b.example", Err("invalid peer certificate: UnknownIssuer")),
            ("c.example", Err("certificate not valid for name")),
        ] {
            let tunnel = harness.client.tunnel(&credential, host, 443).await;
            let tunnel = tunnel.expect("a tunnel");
            match (harness.client.start_tls(tunnel, host).await, expected) {
                (Ok(mut stream), Ok(())) => {
                    let answer = ask(&mut stream).await.expect("words");
                    assert!(answer.ends_with("\r\n\r\nsecret"), "{answer}");
                }
                (Err(error @ TunnelError::Handshake(_)), Err(words)) => {
                    let cause = error.source().expect("a cause").to_string();
                    assert!(cause.contains(words), "{cause}");
                }
                (other, _) => panic!("{host}: {other:?}"),
            }
        }
        assert_eq!(strange.requests(), [""; 0]);
    }
}

#[tokio::test]
async fn addresses_have_certificates_too() {
    let addresses = ["1.2.3.200", "2606:4700::1"];
    let harness = GatewayHarness::unix(&[credential("c", Public::Open, &[])]).await;
    let config = harness.authority.server(&addresses, &[]);
    let site = WebServer::encrypted(config, |_| Response::page("hello")).await;
    for (host, place) in [
        ("1.2.3.200", "1.2.3.200:443"),
        ("2606:4700::1", "[2606:4700::1]:443"),
        ("[2606:4700::1]", "[2606:4700::1]:443"),
    ] {
        let place = place.parse().expect("an address");
        harness.internet.route(place, &site);
        let credential = harness.credential("c");
        let tunnel = harness.client.tunnel(&credential, host, 443).await;
        let stream = harness.client.start_tls(tunnel.expect("a tunnel"), host);
        let answer = ask(&mut stream.await.expect("TLS")).await.expect("words");
        assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    }
}

#[tokio::test]
async fn the_gateways_no_is_kept_and_the_password_is_nowhere() {
    for harness in both("c", Public::Closed, &["a.example 80", "none.example 80"]).await {
        harness.internet.name("a.example", &[&["10.0.0.1".parse().expect("an address")]]);
        let good = harness.credential("c");
        for (credential, host, expected) in [
            (&good, "b.example", (403, Some("not-in-plan"))),
            (&good, "a.example", (403, Some("address-not-allowed"))),
            (&good, "none.example", (502, Some("name-not-found"))),
            (&good, "2130706433", (400, Some("target-malformed"))),
            (&sign(RUN, "other", now() + 600), "a.example", (407, None)),
            (&sign(RUN, "c", 1), "a.example", (407, None)),
        ] {
            let tunnel = harness.client.tunnel(credential, host, 80).await;
            let shown = format!("{tunnel:?}");
            assert!(!shown.contains(credential.password.as_str()), "{shown}");
            let (status, reason, message) = refusal(tunnel);
            assert_eq!((status, reason.as_deref()), expected, "{host}");
            let known = sympozium_gateway::events::Reason::ALL;
            assert!(known.iter().any(|it| it.text() == message), "{message}");
        }
        assert_eq!(harness.internet.connected(), []);
    }
}

#[tokio::test]
async fn a_gateway_that_is_not_the_right_one_gets_nothing() {
    let harness = GatewayHarness::tls(&[credential("c", Public::Open, &[])]).await;
    let stranger = Authority::new("a stranger");
    let GatewayAddress::Tcp { addresses, .. } = &harness.address else {
        panic!("it is at an address");
    };
    let named = |name: &str| GatewayAddress::Tcp { addresses: addresses.clone(), server_name: name.to_owned() };
    for (name, authority) in [(GATEWAY, &stranger), ("other.sympozium.test", &harness.authority)] {
        let outward = EgressClient::new(named(name), Some(authority.pem().as_bytes()));
        let outward = outward.expect("a way");
        let refused = outward.tunnel(&harness.credential("c"), "a.example", 443).await;
        let handshake = TunnelError::Gateway(EgressError::Handshake(io::Error::other("")));
        assert_eq!(refused.expect_err("no tunnel").to_string(), handshake.to_string());
    }
    // No authority is trusted by default: not even the public ones.
    let none = EgressClient::new(named(GATEWAY), None);
    assert!(matches!(none, Err(EgressError::NoCa)));
    for pem in ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let unusable = EgressClient::new(named(GATEWAY), Some(pem.as_bytes()));
        assert!(matches!(unusable, Err(EgressError::Roots { .. })), "{pem}");
    }
    let large = "x".repeat(MAX_ROOTS_BYTES + 1);
    let unusable = EgressClient::new(named(GATEWAY), Some(large.as_bytes()));
    assert!(matches!(unusable, Err(EgressError::Roots { .. })));
    let no_name = EgressClient::new(named("no name"), Some(harness.authority.pem().as_bytes()));
    assert!(matches!(no_name, Err(EgressError::ServerName(_))));
    assert_eq!(harness.outcomes(), [""; 0]);
}

#[tokio::test]
async fn further_authorities_are_those_that_can_be_read() {
    let way = || EgressClient::new(GatewayAddress::Unix("/nowhere".into()), None).expect("a way");
    let good = Authority::new("a good one").pem();
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let both = format!("# a comment\n{bad}{good}");
    assert!(way().with_extra_roots(both.as_bytes()).is_ok());
    let many = good.repeat(MAX_ROOTS + 1);
    let large = format!("{}{good}", "#".repeat(MAX_ROOTS_BYTES));
    for pem in [bad, "", "nothing", &many, &large] {
        let unusable = way().with_extra_roots(pem.as_bytes());
        assert!(matches!(unusable, Err(EgressError::Roots { .. })));
    }
}

#[tokio::test]
async fn the_run_api_is_agreed_on_in_tls() {
    let harness = GatewayHarness::tls(&[]).await;
    harness.client.connect_run_api().await.expect("it is offered");
    // The same authority and name, without the protocol.
    let config = harness.authority.server(&[GATEWAY], &[]);
    let site = WebServer::encrypted(config, |_| Response::page("")).await;
    let address = GatewayAddress::Tcp { addresses: vec![site.address], server_name: GATEWAY.to_owned() };
    let ca = harness.authority.pem();
    let outward = EgressClient::new(address, Some(ca.as_bytes())).expect("a way");
    let refused = outward.connect_run_api().await;
    assert!(matches!(refused, Err(EgressError::NoRunApi)), "{refused:?}");
}

/// A gateway that sends this to every client, and then nothing more.
async fn gateway_that_says(words: &'static [u8]) -> (TempDir, EgressClient) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("gateway.sock");
    let listener = UnixListener::bind(&path).expect("a listener");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(words).await.expect("it reads");
                while stream.read_u8().await.is_ok() {}
            });
        }
    });
    let outward = EgressClient::new(GatewayAddress::Unix(path), None).expect("a way");
    (directory, outward)
}

#[tokio::test]
async fn what_a_server_says_first_is_not_lost() {
    let said = b"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0-server";
    let (_directory, outward) = gateway_that_says(said).await;
    let tunnel = outward.tunnel(&sign(RUN, "c", 1), "a.example", 22).await;
    let mut tunnel = tunnel.expect("a tunnel");
    let mut greeting = [0; 14];
    // In pieces that are smaller than what is there.
    for piece in greeting.chunks_mut(3) {
        tunnel.read_exact(piece).await.expect("it is there");
    }
    assert_eq!(&greeting, b"SSH-2.0-server");
}

#[tokio::test(start_paused = true)]
async fn no_peer_is_waited_for_longer_than_the_deadlines() {
    let started = Instant::now();
    let (_directory, outward) = gateway_that_says(b"").await;
    let silent = outward.tunnel(&sign(RUN, "c", 1), "a.example", 443).await;
    let slow = matches!(silent, Err(TunnelError::Gateway(EgressError::Timeout)));
    assert!(slow, "{silent:?}");
    assert_eq!(started.elapsed().as_secs(), ANSWER_TIMEOUT.as_secs());
    let (_directory, outward) = gateway_that_says(b"HTTP/1.1 200 OK\r\n\r\n").await;
    let tunnel = outward.tunnel(&sign(RUN, "c", 1), "a.example", 443).await;
    let silent = outward.start_tls(tunnel.expect("a tunnel"), "a.example").await;
    assert!(matches!(silent, Err(TunnelError::HandshakeTimeout)), "{silent:?}");
    let both = ANSWER_TIMEOUT + HANDSHAKE_TIMEOUT;
    assert_eq!(started.elapsed().as_secs(), both.as_secs());
}

/// e56: the proxy is gone in the middle.
#[tokio::test]
async fn e56_a_gateway_that_is_gone_cuts_what_is_open_and_opens_nothing() {
    for transport in [Transport::Unix, Transport::Tls] {
        let credentials = [credential("c", Public::Open, &[])];
        let harness = GatewayHarness::with(transport, Default::default(), &credentials).await;
        let site = WebServer::plain(|_| Response::Stalled(b"HTTP/1.1 200 OK\r\n".to_vec())).await;
        harness.internet.host("a.example", 80, &site);
        let credential = harness.credential("c");
        let tunnel = harness.client.tunnel(&credential, "a.example", 80).await;
        let mut tunnel = tunnel.expect("a tunnel");
        tunnel.write_all(REQUEST).await.expect("it is open");
        tunnel.flush().await.expect("it is open");
        assert!(wait_until(|| site.requests().len() == 1).await);
        harness.kill_gateway();
        let mut rest = Vec::new();
        let reading = tunnel.read_to_end(&mut rest);
        // An end or an error, as it happens: not more bytes, and not nothing at all.
        let _ = tokio::time::timeout(TIMEOUT, reading).await.expect("it is cut");
        assert!(b"HTTP/1.1 200 OK\r\n".starts_with(&rest));
        assert!(wait_until(|| site.open() == 0).await);
        let refused = harness.client.tunnel(&credential, "a.example", 80).await;
        assert!(refused.is_err(), "{refused:?}");
    }
}
