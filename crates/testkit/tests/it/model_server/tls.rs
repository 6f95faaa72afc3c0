//! TLS by an authority that only the test knows.

use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use sympozium_testkit::model_server::{Cut, DEFAULT_HOST, ModelServer, Reply, Settings};

use super::client::{Client, connect};

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Speaks to `server` as one who trusts the authority of `trusted`.
fn client(server: &ModelServer, trusted: &ModelServer, host: &str) -> Client<Tls> {
    let pem = trusted.ca_pem().unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    Client(BufReader::new(StreamOwned::new(connection, connect(server))))
}

fn server(host: &str) -> ModelServer {
    Settings::new().tls(host).start().unwrap()
}

#[test]
fn streams_go_through_tls() {
    let server = server(DEFAULT_HOST);
    assert_eq!(server.url(), format!("https://model.test:{}", server.address().port()));
    let mut client = client(&server, &server, DEFAULT_HOST);
    for number in 1..=2 {
        server.push(Reply::pieces(["one", "two"]));
        client.send_openai(json!({"stream": true}));
        assert!(client.head().contains(&format!("x-request-id: req_{number}\n")));
        let chunks = client.chunks();
        assert_eq!(chunks.len(), 5);
        assert_eq!(chunks[4], "data: [DONE]\n\n");
    }
    let connections: Vec<_> = server.requests().iter().map(|it| it.connection).collect();
    assert_eq!(connections, [1, 1]);
}

#[test]
fn the_certificate_is_for_the_host_that_was_named() {
    let named = server("api.example.com");
    let other = server("api.example.com");
    let address = server("127.0.0.1");
    let mut fine = client(&named, &named, "api.example.com");
    fine.send_openai(json!({}));
    assert!(fine.response().head.starts_with("HTTP/1.1 200 OK\n"));
    let mut fine = client(&address, &address, "127.0.0.1");
    fine.send_openai(json!({}));
    assert!(fine.response().head.starts_with("HTTP/1.1 200 OK\n"));

    for (what, mut wrong) in [
        ("another name", client(&named, &named, DEFAULT_HOST)),
        ("another authority", client(&named, &other, "api.example.com")),
    ] {
        let error = wrong.0.get_mut().write_all(b"a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}: {error}");
    }
}

#[test]
fn a_cut_is_no_goodbye() {
    let server = server(DEFAULT_HOST);
    server.push(Reply::pieces(["one", "two"]).cut(Cut::AfterPieces(1)));
    let mut client = client(&server, &server, DEFAULT_HOST);
    client.send_openai(json!({"stream": true}));
    client.head();
    client.chunk().unwrap();
    assert!(client.chunk().unwrap().contains("\"one\""));
    let error = client.0.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn who_speaks_plainly_is_not_answered() {
    let server = server(DEFAULT_HOST);
    let mut client = Client::new(&server);
    client.send_openai(json!({}));
    let mut answer = Vec::new();
    let _ = client.0.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert_eq!(server.request_count(), 0);
}
