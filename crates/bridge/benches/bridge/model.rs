//! Requests to a model and the chunks of its answers: through bridge and gateway, through a tunnel, and directly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sympozium_harness::Agent;
use sympozium_ipc::door::path;
use sympozium_testkit::bench::Samples;
use sympozium_testkit::model_server::{Gate, ModelServer, Reply};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::harness::BenchHarness;
use crate::numbers::Compared;
use crate::{MODEL_HOST, question};

/// Alternating rounds; the first does not count.
const ROUNDS: usize = 41;
/// Requests in a round, in each way.
const REQUESTS: usize = 50;
/// Chunks of the one answer in a round, in each way.
const CHUNKS: usize = 50;
/// The path at the model's server.
pub const MODEL_PATH: &str = "/v1/chat/completions";

/// What the ways took.
#[derive(Default)]
pub struct Measured {
    /// From the first byte of a request to the last of its answer.
    pub requests: Compared,
    /// From the moment when the server may send a chunk until it is there.
    pub chunks: Compared,
}

/// A way to the model.
enum Way {
    Bridge(Agent),
    Http(SendRequest<Full<Bytes>>),
}

/// Measures all ways to a model.
pub async fn measure(harness: &BenchHarness, server: &ModelServer) -> Measured {
    let mut through = Way::Bridge(harness.agent().await);
    let mut tunnel = Way::http(harness.tunnel().await, server).await;
    let connected = TcpStream::connect(server.address()).await;
    let connected = connected.expect("the model listens");
    connected.set_nodelay(true).expect("a TCP connection");
    let mut direct = Way::http(connected, server).await;

    let mut measured = Measured::default();
    for round in 0..ROUNDS {
        if round == 1 {
            measured = Measured::default();
        }
        let Measured { requests, chunks } = &mut measured;
        for (way, requests, chunks) in [
            (&mut direct, &mut requests.direct, &mut chunks.direct),
            (&mut tunnel, &mut requests.tunnel, &mut chunks.tunnel),
            (&mut through, &mut requests.through, &mut chunks.through),
        ] {
            for _ in 0..REQUESTS {
                requests.add(way.ask().await);
            }
            way.stream(server, chunks).await;
        }
    }
    measured
}

impl Way {
    /// HTTP over a connection to the server, in TLS where the server speaks it.
    async fn http<S>(stream: S, server: &ModelServer) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match server.ca_pem() {
            Some(authority) => Self::from_stream(encrypted(stream, authority).await).await,
            None => Self::from_stream(stream).await,
        }
    }

    async fn from_stream<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, driver) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(async move {
            let _ = driver.await;
        });
        Self::Http(requests)
    }

    async fn send(&mut self, body: Vec<u8>) -> Response<Incoming> {
        let response = match self {
            Self::Bridge(agent) => agent.send(path::MODEL, body).await,
            Self::Http(requests) => {
                let mut request = Request::new(Full::new(Bytes::from(body)));
                *request.method_mut() = Method::POST;
                *request.uri_mut() = MODEL_PATH.parse().expect("a path");
                let host = header::HeaderValue::from_static(MODEL_HOST);
                request.headers_mut().insert(header::HOST, host);
                requests.ready().await.expect("a connection");
                requests.send_request(request).await
            }
        };
        response.expect("an answer")
    }

    /// One request, until all of its answer is there.
    async fn ask(&mut self) -> Duration {
        let body = question(false);
        let started = Instant::now();
        let response = self.send(body).await;
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body");
        let took = started.elapsed();
        assert_eq!(status, 200, "{:?}", body.to_bytes());
        took
    }

    /// One streamed answer, of which the server sends each chunk only when the one before was seen.
    async fn stream(&mut self, server: &ModelServer, times: &mut Samples) {
        let gate = Gate::new();
        server.push(Reply::pieces(["word "; CHUNKS]).gated(&gate));
        let mut events = Events(self.send(question(true)).await.into_body());
        // What opens the answer is not held back.
        events.next().await;
        for _ in 0..CHUNKS {
            let started = Instant::now();
            gate.release(1);
            events.next().await;
            times.add(started.elapsed());
        }
        gate.open();
        while let Some(rest) = events.0.frame().await {
            rest.expect("the rest");
        }
    }
}

/// The events of a stream, each of which the server writes at once.
struct Events(Incoming);

impl Events {
    /// Waits until one more event is there to its end.
    async fn next(&mut self) {
        loop {
            let frame = self.0.frame().await.expect("an event").expect("a frame");
            let bytes = frame.into_data().unwrap_or_default();
            if bytes.ends_with(b"\n\n") {
                return;
            }
        }
    }
}

async fn encrypted<S>(stream: S, authority: &str) -> tokio_rustls::client::TlsStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.as_bytes()).expect("a certificate");
    roots.add(certificate).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(MODEL_HOST).expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.expect("TLS")
}
