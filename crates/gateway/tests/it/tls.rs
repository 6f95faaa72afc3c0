//! TLS in tunnels: for the server that the tunnel was asked for, or not at all.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sympozium_harness::plan::Public;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::dns::everybody;
use crate::harness::{Behavior, Catcher, NetworkHarness, echoes, read_all, run};

/// A ClientHello for a name, or for none, cut into records of this many bytes.
pub fn hello(name: Option<&str>, record: usize) -> Vec<u8> {
    let long = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).expect("short");
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let mut extensions = [&[0, 0x2b][..], &long(&[2, 3, 4])].concat();
    if let Some(name) = name {
        let listed = [&[0][..], &long(name.as_bytes())].concat();
        extensions.extend([&[0, 0][..], &long(&long(&listed))].concat());
    }
    let body = [&[3, 3][..], &[7; 32], &[0], &long(&[0x13, 1]), &[1, 0], &long(&extensions)].concat();
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    let records = message.chunks(record).flat_map(|it| [&[22, 3, 1][..], &long(it)].concat());
    records.collect()
}

/// A certificate for these names, and its key.
pub fn certificate(names: &[&str]) -> (CertificateDer<'static>, PrivateKeyDer<'static>, String, String) {
    let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let pem = made.signing_key.serialize_pem();
    (made.cert.der().clone(), key, made.cert.pem(), pem)
}

pub fn connector(root: CertificateDer<'static>, server_names: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_sni = server_names;
    TlsConnector::from(Arc::new(config))
}

/// Speaks TLS at port 443 of every IPv4 address, and says back what it is told.
async fn server(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) {
    server_with(certificate, key, rustls::crypto::ring::default_provider().kx_groups).await;
}

/// The same, with these key exchange groups.
async fn server_with(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    kx_groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>,
) {
    let provider = Arc::new(rustls::crypto::CryptoProvider { kx_groups, ..rustls::crypto::ring::default_provider() });
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("0.0.0.0:443").await.expect("a listener");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await?;
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    });
}

async fn handshake(connector: &TlsConnector, stream: TcpStream, name: &str) -> bool {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let Ok(mut stream) = connector.connect(name, stream).await else {
        return false;
    };
    let mut back = [0; 5];
    stream.write_all(b"hello").await.is_ok()
        && stream.flush().await.is_ok()
        && stream.read_exact(&mut back).await.is_ok()
        && back == *b"hello"
}

#[test]
fn the_server_of_a_tunnel_is_the_one_that_it_was_asked_for() {
    run(the_server_of_a_tunnel_is_the_one_that_it_was_asked_for, async || {
        let (certificate, key, ..) = certificate(&["api.example.com", "other.example.com", "93.184.216.34"]);
        server(certificate.clone(), key).await;
        let harness =
            NetworkHarness::new(Public::Closed, &["api.example.com 443", "93.184.216.34 443"], everybody).await;
        let named = connector(certificate.clone(), true);
        let nameless = connector(certificate, false);
        let host = "api.example.com:443";
        for (target, connector, name, expected) in [
            (host, &named, "api.example.com", true),
            (host, &named, "other.example.com", false),
            (host, &nameless, "api.example.com", false),
            // Clients send no name for an address.
            ("93.184.216.34:443", &named, "93.184.216.34", true),
            ("93.184.216.34:443", &named, "api.example.com", false),
        ] {
            let tunnel = harness.tunnel(target).await.expect(target);
            assert_eq!(handshake(connector, tunnel, name).await, expected, "{target} {name}");
        }
        for reason in ["ended other-server-name", "ended no-server-name"] {
            harness.wait_for(reason).await;
        }
    });
}

#[test]
fn nothing_of_a_tunnel_that_is_cut_reaches_the_server() {
    run(nothing_of_a_tunnel_that_is_cut_reaches_the_server, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com"], everybody).await;
        let https = Catcher::at(443, &Behavior::Echo);
        let other = Catcher::at(8443, &Behavior::Echo);
        let good = "api.example.com";
        for (port, first, reason) in [
            (443, b"GET / HTTP/1.1\r\n".to_vec(), "not-tls"),
            (443, b"SSH-2.0-x\r\n".to_vec(), "not-tls"),
            (443, hello(Some("evil.example.com"), 9999), "other-server-name"),
            (443, hello(Some("api.example.com."), 9999), "other-server-name"),
            (443, hello(None, 9999), "no-server-name"),
            (443, hello(Some("evil.example.com"), 3), "other-server-name"),
            (443, [&hello(Some(good), 9999)[..5], &[2; 40]].concat(), "hello-malformed"),
            (8443, hello(Some("evil.example.com"), 9999), "other-server-name"),
            (8443, hello(None, 1), "no-server-name"),
            // A server that skips what comes before the ClientHello would see the other name.
            (8443, [&[22, 3, 1, 0, 0], &hello(Some("evil.example.com"), 9999)[..]].concat(), "hello-malformed"),
            (8443, [&[21, 3, 1, 0, 2, 1, 100], &hello(Some("evil.example.com"), 9999)[..]].concat(), "hello-malformed"),
        ] {
            let mut tunnel = harness.tunnel(&format!("{good}:{port}")).await.expect("allowed");
            tunnel.write_all(&first).await.expect("it reads");
            assert_eq!(read_all(&mut tunnel).await, b"", "{reason}");
            harness.wait_for(&format!("ended {reason}")).await;
        }
        assert_eq!((https.heard(), other.heard()), (String::new(), String::new()));
        // In whatever pieces a good one comes, all of it gets there.
        for (port, record) in [(443, 9999), (443, 1), (8443, 7)] {
            let mut tunnel = harness.tunnel(&format!("{good}:{port}")).await.expect("allowed");
            let bytes = hello(Some("API.example.com"), record);
            for byte in &bytes[..bytes.len() - 1] {
                tunnel.write_all(&[*byte]).await.expect("it reads");
            }
            tunnel.write_all(&bytes[bytes.len() - 1..]).await.expect("it reads");
            let mut back = vec![0; bytes.len()];
            tunnel.read_exact(&mut back).await.expect("an echo");
            assert_eq!(back, bytes);
            assert!(echoes(&mut tunnel, b"more").await);
        }
    });
}

/// A ServerHello whose random says that it is a HelloRetryRequest (RFC 8446, 4.1.3).
const RETRY: [u8; 43] = [
    22, 3, 3, 0, 38, 2, 0, 0, 34, 3, 3, 0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e,
    0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

#[test]
fn a_second_hello_is_for_the_same_server() {
    run(a_second_hello_is_for_the_same_server, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com"], everybody).await;
        // Answers whatever comes with a retry, and says back what follows.
        let listener = TcpListener::bind("0.0.0.0:8443").await.expect("a listener");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let first = hello(Some("api.example.com"), 9999).len();
                    stream.read_exact(&mut vec![0; first]).await?;
                    stream.write_all(&RETRY).await?;
                    let (mut reader, mut writer) = stream.split();
                    tokio::io::copy(&mut reader, &mut writer).await
                });
            }
        });
        for (second, expected) in [("api.example.com", true), ("evil.example.com", false)] {
            let mut tunnel = harness.tunnel("api.example.com:8443").await.expect("allowed");
            let first = hello(Some("api.example.com"), 9999);
            tunnel.write_all(&first).await.expect("it reads");
            let mut answer = [0; RETRY.len()];
            tunnel.read_exact(&mut answer).await.expect("an answer");
            let passes = echoes(&mut tunnel, &hello(Some(second), 9999)).await;
            assert_eq!(passes, expected, "{second}");
        }
        harness.wait_for("ended other-server-name").await;
    });
}

#[test]
fn a_handshake_with_a_retry_works() {
    run(a_handshake_with_a_retry_works, async || {
        let (certificate, key, ..) = certificate(&["api.example.com"]);
        // The client offers a key of another group first, so the server asks for another hello.
        let groups = vec![rustls::crypto::ring::kx_group::SECP256R1];
        server_with(certificate.clone(), key, groups).await;
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 443"], everybody).await;
        let tunnel = harness.tunnel("api.example.com:443").await.expect("allowed");
        let connector = connector(certificate, true);
        assert!(handshake(&connector, tunnel, "api.example.com").await);
    });
}

#[test]
fn other_protocols_pass_at_other_ports_whichever_side_begins() {
    run(other_protocols_pass_at_other_ports_whichever_side_begins, async || {
        let harness =
            NetworkHarness::new(Public::Closed, &["git.example.com 22", "db.example.com 5432"], everybody).await;
        let _ssh = Catcher::at(22, &Behavior::Greet(b"SSH-2.0-server\r\n"));
        let _db = Catcher::at(5432, &Behavior::Echo);
        let mut tunnel = harness.tunnel("git.example.com:22").await.expect("allowed");
        let mut greeting = [0; 16];
        tunnel.read_exact(&mut greeting).await.expect("a greeting");
        assert_eq!(&greeting, b"SSH-2.0-server\r\n");
        assert!(echoes(&mut tunnel, b"SSH-2.0-client\r\n").await);
        let mut tunnel = harness.tunnel("db.example.com:5432").await.expect("allowed");
        // What begins like TLS and goes on otherwise is held back until that is clear, and then passes.
        tunnel.write_all(&[22]).await.expect("it reads");
        assert!(echoes_after(&mut tunnel, &[22], &[0, 1, 2]).await);
    });
}

/// Sends more, and wants all of it back.
async fn echoes_after(stream: &mut TcpStream, before: &[u8], more: &[u8]) -> bool {
    stream.write_all(more).await.expect("it reads");
    let mut back = vec![0; before.len() + more.len()];
    stream.read_exact(&mut back).await.is_ok() && back == [before, more].concat()
}
