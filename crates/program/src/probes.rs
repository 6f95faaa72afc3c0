//! `/healthz`, `/readyz` and `/metrics`, for the kubelet and for Prometheus.
//!
//! Connections are few and short, and each has a timeout: a client that reaches the port can do no more than send a
//! GET.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::failure::Failure;
use crate::listen::{ConnectionBounds, serve_short};

/// Concurrent connections of one address.
const MAX_CONNECTIONS_OF_PEER: usize = 8;
/// Bounds one connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for a request's head, in bytes.
const MAX_HEAD: usize = 8 * 1024;
/// The type of what [`ProbeHandler::metrics`] returns.
const METRICS_TYPE: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain");

/// What a program tells about itself. Called for every request, so it must not block.
pub trait ProbeHandler: Send + Sync + 'static {
    /// Whether the program can do its work: what `/readyz` answers, or why it is not ready.
    fn check_ready(&self) -> Result<&'static str, &'static str>;
    /// All metrics, in the text format of OpenMetrics.
    fn metrics(&self) -> String;
}

/// Starts to serve probes in the background, until `closing` is ready. `max_connections` bounds all concurrent
/// connections. Returns the address, which has a port when the requested one was 0.
///
/// # Errors
///
/// When the socket has no address.
pub fn serve_probes(
    listener: TcpListener,
    max_connections: usize,
    closing: impl Future<Output = ()> + Send + 'static,
    handler: Arc<impl ProbeHandler>,
) -> Result<SocketAddr, Failure> {
    let address = listener.local_addr().context("the socket for probes has no address")?;
    tracing::info!(%address, "listening for probes");
    let bounds =
        ConnectionBounds { total: max_connections, of_peer: MAX_CONNECTIONS_OF_PEER, timeout: CONNECTION_TIMEOUT };
    tokio::spawn(serve_short(listener, bounds, closing, move |stream| serve_one(stream, Arc::clone(&handler))));
    Ok(address)
}

async fn serve_one(stream: TcpStream, handler: Arc<impl ProbeHandler>) {
    let service = service_fn(async |request| Ok::<_, Infallible>(respond(&*handler, &request)));
    let connection = http1::Builder::new()
        .keep_alive(false)
        // A client may close its side after the request.
        .half_close(true)
        // The whole connection has a timeout.
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off, or sends no HTTP, harms only itself.
    let _ = connection.await;
}

fn respond<B>(handler: &impl ProbeHandler, request: &Request<B>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        return response(StatusCode::METHOD_NOT_ALLOWED, TEXT_TYPE, "error: only GET\n".to_owned());
    }
    match request.uri().path() {
        "/healthz" => response(StatusCode::OK, TEXT_TYPE, "ok\n".to_owned()),
        "/readyz" => match handler.check_ready() {
            Ok(state) => response(StatusCode::OK, TEXT_TYPE, format!("{state}\n")),
            Err(reason) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT_TYPE, format!("not ready: {reason}\n")),
        },
        "/metrics" => response(StatusCode::OK, METRICS_TYPE, handler.metrics()),
        _ => {
            let text = "error: ask for /healthz, /readyz or /metrics\n";
            response(StatusCode::NOT_FOUND, TEXT_TYPE, text.to_owned())
        }
    }
}

fn response(status: StatusCode, content_type: HeaderValue, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::listen::bind;

    struct State(Result<&'static str, &'static str>);

    impl ProbeHandler for State {
        fn check_ready(&self) -> Result<&'static str, &'static str> {
            self.0
        }

        fn metrics(&self) -> String {
            "# EOF\n".to_owned()
        }
    }

    async fn ask(state: State, method: Method, target: &str) -> (u16, String, String) {
        let request = Request::builder().method(method).uri(target).body(()).unwrap();
        let response = respond(&state, &request);
        let content_type = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn each_path_has_its_answer() {
        let text = |status, body: &str| (status, "text/plain".to_owned(), body.to_owned());
        for (state, method, target, expected) in [
            (Err("starting"), Method::GET, "/healthz", text(200, "ok\n")),
            (Err("starting"), Method::GET, "/readyz", text(503, "not ready: starting\n")),
            (Ok("ok: standby"), Method::GET, "/readyz", text(200, "ok: standby\n")),
            (Ok("ok"), Method::GET, "/readyz?verbose", text(200, "ok\n")),
            (Ok("ok"), Method::POST, "/readyz", text(405, "error: only GET\n")),
            (Ok("ok"), Method::GET, "/", text(404, "error: ask for /healthz, /readyz or /metrics\n")),
        ] {
            assert_eq!(ask(State(state), method, target).await, expected, "{target}");
        }
        let (status, content_type, body) = ask(State(Ok("ok")), Method::GET, "/metrics").await;
        assert_eq!((status, &*content_type, &*body), (200, METRICS_TYPE.to_str().unwrap(), "# EOF\n"));
    }

    /// Sends bytes, and returns everything that comes back until the server closes the connection.
    async fn exchange(bytes: &[u8]) -> String {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = serve_probes(listener, 4, pending(), Arc::new(State(Ok("ok")))).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn a_connection_is_closed_after_one_answer() {
        for request in ["GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", "GET /readyz?a=b HTTP/1.0\r\n\r\n"] {
            let answer = exchange(request.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.") && answer.contains(" 200 OK\r\n"), "{answer}");
            assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
        }
    }

    #[tokio::test]
    async fn other_protocols_get_nothing() {
        for request in ["GET /readyz\r\n\r\n", "GET /readyz HTTP/2\r\n\r\n", "\r\n\r\n\r\n?"] {
            let answer = exchange(request.as_bytes()).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{request}: {answer}");
        }
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_cut() {
        let answer = exchange(&[b'x'; MAX_HEAD]).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}
