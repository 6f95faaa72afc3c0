//! TLS: what is spoken inside is agreed on before, and the run API is what a bridge asks for alone.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sympozium_gateway::run_api::local::NoApprover;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::tls::certificate;

const H2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// A connection to the gateway that offers these.
async fn connect(harness: &RunApiHarness, offered: &[&[u8]]) -> TlsStream<DuplexStream> {
    let (certificate, key, ..) = certificate(&["gateway"]);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a certificate");
    server.alpn_protocols = harness.gateway.alpn_protocols();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = offered.iter().map(|it| it.to_vec()).collect();

    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let gateway = Arc::clone(&harness.gateway);
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let stream = acceptor.accept(theirs).await.expect("TLS");
        let permit = gateway.limiter().acquire(None).expect("there is room");
        gateway.serve_tls(stream, permit).await;
    });
    let name = ServerName::try_from("gateway").expect("a name");
    let connector = TlsConnector::from(Arc::new(client));
    connector.connect(name, ours).await.expect("TLS")
}

#[tokio::test]
async fn a_bridge_asks_for_http_2_and_gets_the_run_api() {
    let harness = RunApiHarness::new(|_| {});
    let stream = connect(&harness, &[H2]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(H2));
    let client = Client::from_stream(stream, &token(UID, RUN_CREDENTIAL)).await;
    let mut reports = harness.reports();
    assert_eq!(client.report(&reports.next(3)).await, Ok(3));
    let (status, _) = client.post(path::MESSAGES, &json!({})).await;
    assert_eq!(status, 400);
    let nobody = client.with_token("nobody");
    assert_eq!(nobody.report(&reports.next(1)).await, Err("token".to_owned()));
}

#[tokio::test]
async fn everybody_else_gets_the_proxy_and_is_held_to_it() {
    let harness = RunApiHarness::new(|_| {});
    for offered in [&[][..], &[HTTP_1], &[H2, HTTP_1]] {
        for (said, expected) in [
            // HTTP/2 where HTTP/1.1 was agreed on is no head.
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 400 "),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", "HTTP/1.1 407 "),
        ] {
            let mut stream = connect(&harness, offered).await;
            let agreed = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            assert_ne!(agreed.as_deref(), Some(H2));
            stream.write_all(said.as_bytes()).await.expect("it reads");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with(expected), "{offered:?} {said:?} {answer}");
        }
    }
}

#[tokio::test]
async fn where_http_2_was_agreed_on_there_is_no_proxy() {
    let harness = RunApiHarness::new(|_| {});
    let mut stream = connect(&harness, &[H2]).await;
    let head = "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1"), "{answer:?}");
    assert_eq!(harness.outcomes(), [""; 0]);
}

#[tokio::test]
async fn without_a_run_api_nothing_is_offered() {
    let gateway = Gateway::new(keys(), Settings::default(), Nowhere);
    assert_eq!(gateway.alpn_protocols(), Vec::<Vec<u8>>::new());
    let api = || RunApi {
        authenticator: gateway.credentials(),
        question_handler: NoApprover,
        report_store: records(&tempfile::tempdir().expect("a directory")),
        scheduler: NoScheduler,
    };
    assert_eq!(gateway.serve_run_api(api()), Ok(()));
    assert_eq!(gateway.alpn_protocols(), [HTTP_1, H2]);
    // Who does the work is chosen once.
    assert!(gateway.serve_run_api(api()).is_err());
}
