//! The agent's end of the door: one connection for its whole life, one stream for each thing it says.

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

use crate::time::Time;

/// Bytes of an answer of the bridge to a call: the longest page that it fetches, in Base64, and what is around it.
const MAX_CALL_ANSWER: usize = 8 << 20;
/// Bytes of a refusal.
const MAX_REFUSAL: usize = 64 << 10;
/// Bytes that the bridge may send ahead in one stream, and in all.
const WINDOW: u32 = 256 << 10;
/// Bytes of the bridge's heads.
const MAX_HEAD: u32 = 16 << 10;
/// Bytes of a request that are handed over at a time.
const SEND_BUFFER: usize = 64 << 10;
/// How long to wait for the bridge's socket between two looks, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The door.
#[derive(Clone)]
pub struct Door {
    requests: SendRequest<Pieces>,
    time: Arc<Time>,
}

/// Why something could not be said.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The bridge says no.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The bridge is there, and ended this one exchange without an answer. It does so when a provider breaks off before the
    /// head of its answer was passed on.
    #[error("the bridge broke off")]
    BrokenOff(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The bridge is gone, or does not speak our protocol: the run is over.
    #[error("the bridge is gone")]
    Gone(#[source] Option<Box<dyn std::error::Error + Send + Sync>>),
}

impl DoorError {
    fn gone(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Gone(Some(error.into()))
    }
}

impl Door {
    /// Connects as soon as the bridge is there. The second value ends when the connection does.
    ///
    /// # Errors
    ///
    /// When the bridge is not there in time, or does not speak HTTP/2.
    pub async fn connect(directory: &Path, patience: Duration, time: Arc<Time>) -> io::Result<(Self, JoinHandle<()>)> {
        let stream = connected(&directory.join(SOCKET_NAME), patience).await?;
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(MAX_HEAD)
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
        Ok((Self { requests, time }, connection))
    }

    /// Sends a request to the model, and gives what comes back as it comes: an answer of the model, or of its provider.
    ///
    /// # Errors
    ///
    /// When the bridge says no, or is gone.
    pub async fn model(&self, request: Vec<Bytes>) -> Result<Response<Incoming>, DoorError> {
        let answer = self.post(path::MODEL, Pieces(request.into())).await?;
        match answer.headers().contains_key(REFUSED_HEADER) {
            true => Err(refused(answer.into_body()).await),
            false => Ok(answer),
        }
    }

    /// Calls a tool that others act on.
    ///
    /// # Errors
    ///
    /// When the bridge says no, or is gone.
    pub async fn call(&self, tool: &str, call: &ToolCall) -> Result<ToolAnswer, DoorError> {
        self.ask(&format!("{}{tool}", path::TOOLS), call).await
    }

    /// Asks to act on a tool of the agent's own, once.
    ///
    /// # Errors
    ///
    /// When the bridge says no, or is gone.
    pub async fn permit(&self, tool: &str, call: &ToolCall) -> Result<u64, DoorError> {
        let answer: PermitAnswer = self.ask(&format!("{}{tool}", path::PERMITS), call).await?;
        Ok(answer.permit)
    }

    /// Says what came of a permit.
    ///
    /// # Errors
    ///
    /// When the bridge says no, or is gone.
    pub async fn report(&self, permit: u64, report: &PermitReport) -> Result<(), DoorError> {
        let path = format!("{}{permit}{}", path::PERMITS, path::REPORT);
        self.tell(&path, report).await
    }

    /// Says what is going on, for people who watch.
    ///
    /// # Errors
    ///
    /// When the bridge says no, or is gone.
    pub async fn progress(&self, text: String) -> Result<(), DoorError> {
        self.tell(path::PROGRESS, &Progress { text }).await
    }

    /// Keeps lines of the transcript.
    ///
    /// # Errors
    ///
    /// When the bridge says no, or is gone.
    pub async fn transcript(&self, lines: Bytes) -> Result<(), DoorError> {
        let answer = self.post(path::TRANSCRIPT, Pieces::one(lines)).await?;
        taken(answer).await
    }

    /// Says how it ended.
    ///
    /// # Errors
    ///
    /// When the bridge says no, or is gone.
    pub async fn result(&self, result: &AgentResult) -> Result<(), DoorError> {
        self.tell(path::RESULT, result).await
    }

    async fn tell(&self, path: &str, body: &impl Serialize) -> Result<(), DoorError> {
        let body = serde_json::to_vec(body).map_err(DoorError::gone)?;
        taken(self.post(path, Pieces::one(body.into())).await?).await
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, DoorError> {
        let body = serde_json::to_vec(body).map_err(DoorError::gone)?;
        let answer = self.post(path, Pieces::one(body.into())).await?;
        if answer.headers().contains_key(REFUSED_HEADER) {
            return Err(refused(answer.into_body()).await);
        }
        let body = match collected(answer.into_body(), MAX_CALL_ANSWER).await {
            Ok(body) => body,
            Err(error) => return Err(self.broken(error)),
        };
        serde_json::from_slice(&body).map_err(DoorError::gone)
    }

    async fn post(&self, path: &str, body: Pieces) -> Result<Response<Incoming>, DoorError> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(DoorError::gone)?;
        let mut requests = self.requests.clone();
        requests.ready().await.map_err(DoorError::gone)?;
        let answer = match requests.send_request(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.broken(error.into())),
        };
        if let Some(left) = number(answer.headers(), REMAINING_HEADER) {
            self.time.set_left(Duration::from_millis(left));
        }
        Ok(answer)
    }

    /// What an exchange that broke means. Where the connection is about to end and does not show it yet, whoever says the
    /// next thing finds out.
    fn broken(&self, error: Box<dyn std::error::Error + Send + Sync>) -> DoorError {
        match self.requests.is_closed() {
            true => DoorError::Gone(Some(error)),
            false => DoorError::BrokenOff(error),
        }
    }
}

/// The number in a header.
pub fn number(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

async fn connected(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    let deadline = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match UnixStream::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        // Not made yet, or made and not listened at yet. Anything else stays as it is.
        let early = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        if !early.contains(&error.kind()) || Instant::now() + pause >= deadline {
            return Err(error);
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reads a body that is no stream.
async fn collected(body: Incoming, most: usize) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let collected = Limited::new(body, most).collect().await;
    collected.map(http_body_util::Collected::to_bytes)
}

async fn refused(body: Incoming) -> DoorError {
    match collected(body, MAX_REFUSAL).await {
        Ok(body) => match serde_json::from_slice(&body) {
            Ok(refusal) => DoorError::Refused(refusal),
            Err(error) => DoorError::gone(error),
        },
        Err(error) => DoorError::Gone(Some(error)),
    }
}

async fn taken(answer: Response<Incoming>) -> Result<(), DoorError> {
    match answer.headers().contains_key(REFUSED_HEADER) {
        true => Err(refused(answer.into_body()).await),
        false => Ok(()),
    }
}

/// A body that is there already, in pieces.
pub struct Pieces(VecDeque<Bytes>);

impl Pieces {
    fn one(bytes: Bytes) -> Self {
        Self(VecDeque::from([bytes]))
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}
