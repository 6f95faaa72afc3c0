//! The client side of the door: one HTTP/2 connection for the life of the agent, one stream for each request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sympozium_ipc::door::{
    AgentResult, PermitAnswer, PermitReport, Progress, REFUSED_HEADER, REMAINING_HEADER, Refusal, SOCKET_NAME,
    ToolAnswer, ToolCall, path,
};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::run_clock::RunClock;

/// The longest page that the bridge fetches, in Base64, with its envelope.
const MAX_TOOL_ANSWER: usize = 8 << 20;
const MAX_REFUSAL: usize = 64 << 10;
/// HTTP/2 flow control window, for each stream and for the connection.
const WINDOW: u32 = 256 << 10;
const MAX_HEADERS: u32 = 16 << 10;
const SEND_BUFFER: usize = 64 << 10;
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub struct Door {
    requests: SendRequest<ChunkedBody>,
    clock: Arc<RunClock>,
}

#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The bridge ended this exchange without a response, for example because the provider disconnected before its
    /// response headers were forwarded. Other exchanges go on.
    #[error("the bridge interrupted the exchange")]
    Interrupted(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection is closed, or the peer does not speak the protocol: the run is over.
    #[error("the bridge is gone")]
    Closed(#[source] Option<Box<dyn std::error::Error + Send + Sync>>),
}

impl DoorError {
    fn closed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Closed(Some(error.into()))
    }
}

impl Door {
    /// Connects as soon as the bridge listens. The task ends when the connection does.
    pub async fn connect(
        directory: &Path,
        timeout: Duration,
        clock: Arc<RunClock>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let stream = connect_with_retry(&directory.join(SOCKET_NAME), timeout).await?;
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(MAX_HEADERS)
            .max_send_buf_size(SEND_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let connection = tokio::spawn(async move {
            if let Err(error) = connection.await {
                let error = sympozium_program::error_chain(&error);
                tracing::info!(error, "the connection to the bridge broke");
            }
        });
        Ok((Self { requests, clock }, connection))
    }

    /// Returns as soon as the head of the response is there; the body is streamed.
    pub async fn model(&self, request: Vec<Bytes>) -> Result<Response<Incoming>, DoorError> {
        let response = self.post(path::MODEL, ChunkedBody(request.into())).await?;
        if response.headers().contains_key(REFUSED_HEADER) {
            Err(read_refusal(response.into_body()).await)
        } else {
            Ok(response)
        }
    }

    /// Calls a tool that runs outside of the agent.
    pub async fn call(&self, tool: &str, call: &ToolCall) -> Result<ToolAnswer, DoorError> {
        self.request_json(&format!("{}{tool}", path::TOOLS), call).await
    }

    /// Requests a permit for one call of a native tool.
    pub async fn permit(&self, tool: &str, call: &ToolCall) -> Result<u64, DoorError> {
        let response: PermitAnswer = self.request_json(&format!("{}{tool}", path::PERMITS), call).await?;
        Ok(response.permit)
    }

    pub async fn report(&self, permit: u64, report: &PermitReport) -> Result<(), DoorError> {
        let path = format!("{}{permit}{}", path::PERMITS, path::REPORT);
        self.post_json(&path, report).await
    }

    pub async fn progress(&self, text: String) -> Result<(), DoorError> {
        self.post_json(path::PROGRESS, &Progress { text }).await
    }

    pub async fn transcript(&self, lines: Bytes) -> Result<(), DoorError> {
        let response = self.post(path::TRANSCRIPT, ChunkedBody::single(lines)).await?;
        expect_accepted(response).await
    }

    pub async fn result(&self, result: &AgentResult) -> Result<(), DoorError> {
        self.post_json(path::RESULT, result).await
    }

    async fn post_json(&self, path: &str, body: &impl Serialize) -> Result<(), DoorError> {
        let body = serde_json::to_vec(body).map_err(DoorError::closed)?;
        expect_accepted(self.post(path, ChunkedBody::single(body.into())).await?).await
    }

    async fn request_json<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, DoorError> {
        let body = serde_json::to_vec(body).map_err(DoorError::closed)?;
        let response = self.post(path, ChunkedBody::single(body.into())).await?;
        if response.headers().contains_key(REFUSED_HEADER) {
            return Err(read_refusal(response.into_body()).await);
        }
        let body = match read_body(response.into_body(), MAX_TOOL_ANSWER).await {
            Ok(body) => body,
            Err(error) => return Err(self.exchange_error(error)),
        };
        serde_json::from_slice(&body).map_err(DoorError::closed)
    }

    async fn post(&self, path: &str, body: ChunkedBody) -> Result<Response<Incoming>, DoorError> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(DoorError::closed)?;
        let mut requests = self.requests.clone();
        requests.ready().await.map_err(DoorError::closed)?;
        let response = match requests.send_request(request).await {
            Ok(response) => response,
            Err(error) => return Err(self.exchange_error(error.into())),
        };
        if let Some(remaining) = header_number(response.headers(), REMAINING_HEADER) {
            self.clock.set_remaining(Duration::from_millis(remaining));
        }
        Ok(response)
    }

    /// The connection may be about to close without showing it yet; then the next request fails with
    /// [`DoorError::Closed`].
    fn exchange_error(&self, error: Box<dyn std::error::Error + Send + Sync>) -> DoorError {
        if self.requests.is_closed() { DoorError::Closed(Some(error)) } else { DoorError::Interrupted(error) }
    }
}

pub fn header_number(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

async fn connect_with_retry(socket: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let deadline = Instant::now() + timeout;
    let mut delay = INITIAL_RETRY_DELAY;
    loop {
        let error = match UnixStream::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        // The socket does not exist or the bridge does not listen yet; other errors are permanent.
        let not_listening = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        if !not_listening.contains(&error.kind()) || Instant::now() + delay >= deadline {
            return Err(error);
        }
        sleep(delay).await;
        delay = (delay * 2).min(MAX_RETRY_DELAY);
    }
}

async fn read_body(body: Incoming, max_bytes: usize) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let read_body = Limited::new(body, max_bytes).collect().await;
    read_body.map(http_body_util::Collected::to_bytes)
}

async fn read_refusal(body: Incoming) -> DoorError {
    match read_body(body, MAX_REFUSAL).await {
        Ok(body) => match serde_json::from_slice(&body) {
            Ok(refusal) => DoorError::Refused(refusal),
            Err(error) => DoorError::closed(error),
        },
        Err(error) => DoorError::Closed(Some(error)),
    }
}

async fn expect_accepted(response: Response<Incoming>) -> Result<(), DoorError> {
    if response.headers().contains_key(REFUSED_HEADER) { Err(read_refusal(response.into_body()).await) } else { Ok(()) }
}

pub struct ChunkedBody(VecDeque<Bytes>);

impl ChunkedBody {
    fn single(bytes: Bytes) -> Self {
        Self(VecDeque::from([bytes]))
    }
}

impl Body for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|chunk| chunk.len() as u64).sum())
    }
}
