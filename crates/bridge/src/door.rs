//! The door: one agent, one HTTP/2 connection, one stream per request.
//!
//! The first process that connects is the agent. The socket is unlinked before the first byte is read, so that no
//! second one can connect. Everything that is read is bounded, and so is everything that is buffered for an agent that
//! does not read.

mod answer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sympozium_ipc::door::{
    AgentResult, MAX_PROGRESS, MAX_TRANSCRIPT_CHUNK, PermitReport, Progress, REMAINING_HEADER, Refusal, RefusalCode,
    SOCKET_NAME, path,
};
use sympozium_ipc::receipt::{Event, to_receipt_text};
use sympozium_ipc::run_api::MAX_RESULT;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::calls::{elapsed_ms, refusal};
use crate::records::TranscriptOutcome;
use crate::session::Session;
use answer::{AnswerBudget, DoorAnswer};

/// Maximum number of concurrent streams. Calls have lower limits of their own.
const MAX_STREAMS: u32 = 32;
/// Flow-control window of one stream.
const STREAM_WINDOW: u32 = 128 << 10;
/// Flow-control window of the connection: streams that wait to be read never block another one.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Maximum number of streams that are reset before they are accepted, or that must be reset for an error. An honest
/// agent causes none; with more, the connection ends.
const MAX_RESETS: usize = 64;
/// Maximum number of bytes of a request head.
const MAX_HEAD: u32 = 8 << 10;
/// Bytes that are buffered in each stream for an agent that does not read.
const SEND_BUFFER: usize = 64 << 10;
/// Maximum number of bodies that are read at a time, model requests excepted.
const MAX_READS: usize = 4;
/// Maximum number of model requests that are read at a time: they are large.
const MAX_MODEL_READS: usize = 2;
/// Maximum number of bytes of model requests that were read and have no answer yet. A further request waits, and holds
/// its place among the readers.
const MAX_MODEL_BYTES: usize = 24 << 20;
/// Timeout for reading a body.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// What surrounds the arguments in a call, in bytes.
const CALL_OVERHEAD: usize = 4 << 10;
/// Maximum number of bytes of a report about a permit.
const MAX_REPORT: usize = 4 << 10;

/// The listening socket, before the agent has connected.
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
}

impl Door {
    /// Creates the socket. Must be called within a Tokio runtime.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(SOCKET_NAME);
        match std::fs::remove_file(&path) {
            // Left by a bridge that ran before in this container.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(&path)?;
        Ok(Self { listener, path })
    }

    /// Waits for the agent, and closes the door behind it.
    pub async fn accept_agent(self) -> io::Result<UnixStream> {
        let accepted = self.listener.accept().await;
        drop(self.listener);
        match std::fs::remove_file(&self.path) {
            Ok(()) => {}
            // The agent may have removed it: it can write to the directory as well.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(accepted?.0)
    }
}

/// Serves the agent until its connection is closed.
pub async fn serve(session: &Arc<Session>, agent: UnixStream) {
    let serving = Arc::new(DoorServer {
        session: Arc::clone(session),
        reads: Semaphore::new(MAX_READS),
        model_reads: Semaphore::new(MAX_MODEL_READS),
        model_bytes: Semaphore::new(MAX_MODEL_BYTES),
        answer_budget: AnswerBudget::default(),
    });
    let service = service_fn(move |request| {
        let serving = Arc::clone(&serving);
        async move { Ok::<_, std::convert::Infallible>(serving.answer(request).await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEAD)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .serve_connection(TokioIo::new(agent), service)
        .await;
    if let Err(error) = served {
        let error = sympozium_program::error_chain(&error);
        tracing::info!(error, "the agent's connection broke");
    }
}

struct DoorServer {
    session: Arc<Session>,
    reads: Semaphore,
    model_reads: Semaphore,
    model_bytes: Semaphore,
    answer_budget: AnswerBudget,
}

impl DoorServer {
    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<DoorAnswer> {
        let mut answer = match self.route(request).await {
            Ok(answer) => answer,
            Err(refusal) => {
                self.session.count_refusal(refusal.code);
                DoorAnswer::refusal(&refusal)
            }
        };
        let left = self.session.clock.work_time_left().as_millis();
        let left = HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX));
        answer.headers_mut().insert(REMAINING_HEADER, left);
        answer
    }

    async fn route(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<DoorAnswer>, Refusal> {
        let (head, body) = request.into_parts();
        if head.method != Method::POST || head.uri.query().is_some() {
            return Err(unknown_request());
        }
        match head.uri.path() {
            path::MODEL => self.handle_model(body).await,
            path::PROGRESS => {
                let progress: Progress = self.read_json(body, MAX_PROGRESS).await?;
                self.session.records.set_progress(to_receipt_text(&progress.text));
                Ok(DoorAnswer::no_content())
            }
            path::TRANSCRIPT => self.handle_transcript(body).await,
            path::RESULT => self.handle_result(body).await,
            other => {
                if let Some(tool) = other.strip_prefix(path::TOOLS) {
                    return self.handle_tool(tool, body).await;
                }
                let Some(permit) = other.strip_prefix(path::PERMITS) else {
                    return Err(unknown_request());
                };
                match permit.strip_suffix(path::REPORT) {
                    Some(permit) => self.handle_permit_report(permit, body).await,
                    None => self.handle_permit(permit, body).await,
                }
            }
        }
    }

    async fn handle_model(&self, body: Incoming) -> Result<Response<DoorAnswer>, Refusal> {
        let limit = self.session.plan.limits.model_request_bytes;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        // Before it is read: a request that waits for room is not buffered.
        self.session.wait_for_room().await?;
        let (body, _kept) = {
            let _read = self.model_reads.acquire().await;
            let body = read_body(body, limit).await?;
            let bytes = u32::try_from(body.len().min(MAX_MODEL_BYTES)).unwrap_or(u32::MAX);
            // Held until the answer begins. By then the provider has the request.
            let kept = self.model_bytes.acquire_many(bytes).await;
            (body, kept)
        };
        let (session, started) = (Arc::clone(&self.session), Instant::now());
        let exchange = session.begin_model_exchange();
        let ended = {
            let session = Arc::clone(&session);
            move |spent: crate::model::ExchangeStats| {
                session.records.add(Event::Model {
                    request: exchange.number(),
                    status: spent.status,
                    sent_bytes: spent.sent_bytes,
                    received_bytes: spent.received_bytes,
                    input_tokens: spent.input_tokens,
                    output_tokens: spent.output_tokens,
                    duration_ms: elapsed_ms(started),
                    error: spent.error.as_deref().map(to_receipt_text),
                });
            }
        };
        let answer = session.model.ask(body, ended).await?;
        Ok(answer.map(DoorAnswer::model))
    }

    async fn handle_tool(&self, name: &str, body: Incoming) -> Result<Response<DoorAnswer>, Refusal> {
        let body = self.read(&self.reads, body, self.call_limit()).await?;
        let (session, name) = (Arc::clone(&self.session), name.to_owned());
        let call = self.run_detached(|unwanted| async move { session.call(&name, &body, unwanted.wait()).await });
        match call.await {
            Ok((answer, slot)) => self.answer_budget.json(answer, Some(slot)).await,
            Err(refusal) => Ok(DoorAnswer::refusal(&refusal)),
        }
    }

    async fn handle_permit(&self, name: &str, body: Incoming) -> Result<Response<DoorAnswer>, Refusal> {
        let body = self.read(&self.reads, body, self.call_limit()).await?;
        let (session, name) = (Arc::clone(&self.session), name.to_owned());
        let permit =
            self.run_detached(|unwanted| async move { session.issue_permit(&name, &body, unwanted.wait()).await });
        match permit.await {
            Ok(permit) => self.answer_budget.json(permit, None).await,
            Err(refusal) => Ok(DoorAnswer::refusal(&refusal)),
        }
    }

    async fn handle_permit_report(&self, permit: &str, body: Incoming) -> Result<Response<DoorAnswer>, Refusal> {
        let number = permit.parse().map_err(|_| unknown_request())?;
        let report: PermitReport = self.read_json(body, MAX_REPORT).await?;
        self.session.report_permit(number, report)?;
        Ok(DoorAnswer::no_content())
    }

    async fn handle_transcript(&self, body: Incoming) -> Result<Response<DoorAnswer>, Refusal> {
        let body = self.read(&self.reads, body, MAX_TRANSCRIPT_CHUNK).await?;
        let unreadable = || refusal(RefusalCode::Request, "a transcript is lines of JSON");
        let text = std::str::from_utf8(&body).map_err(|_| unreadable())?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        for line in &lines {
            serde_json::from_str::<serde::de::IgnoredAny>(line).map_err(|_| unreadable())?;
        }
        match self.session.records.add_transcript(lines.into_iter()) {
            TranscriptOutcome::Stored => Ok(DoorAnswer::no_content()),
            TranscriptOutcome::Full => Err(refusal(RefusalCode::Busy, "earlier text has not been reported yet")),
            TranscriptOutcome::TooLarge => Err(refusal(RefusalCode::Size, "no more of the transcript is kept")),
        }
    }

    async fn handle_result(&self, body: Incoming) -> Result<Response<DoorAnswer>, Refusal> {
        let limit = self.session.plan.limits.result_bytes;
        let limit = usize::try_from(limit).map_or(MAX_RESULT, |limit| limit.min(MAX_RESULT));
        // JSON escaping can make a text six times as long.
        let body = self.read(&self.reads, body, limit.saturating_mul(6)).await?;
        let result: AgentResult = parse_json(&body)?;
        let (AgentResult::Answer { text } | AgentResult::Failure { error: text }) = &result;
        if text.len() > limit {
            let message = format!("the answer of a run may have {limit} bytes");
            return Err(refusal(RefusalCode::Size, &message));
        }
        if !self.session.set_result(result) {
            let message = "the run has its result already";
            return Err(refusal(RefusalCode::Request, message));
        }
        Ok(DoorAnswer::no_content())
    }

    async fn read_json<T: serde::de::DeserializeOwned>(&self, body: Incoming, limit: usize) -> Result<T, Refusal> {
        parse_json(&self.read(&self.reads, body, limit).await?)
    }

    /// Reads a body within its bounds. While it waits for its turn, HTTP/2 flow control holds the agent back.
    async fn read(&self, reads: &Semaphore, body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
        let _read = reads.acquire().await;
        read_body(body, limit).await
    }

    /// Runs a call in a task of its own, so that it is completed and recorded even if the agent no longer waits.
    /// Refusals are counted there as well, or an agent that does not wait could go on for ever.
    async fn run_detached<T, F, W>(&self, work: W) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
        W: FnOnce(CancelSignal) -> F,
    {
        let (wanted, unwanted) = oneshot::channel::<()>();
        let (session, work) = (Arc::clone(&self.session), work(CancelSignal(unwanted)));
        let done =
            tokio::spawn(async move { work.await.inspect_err(|refusal| session.count_refusal(refusal.code)) }).await;
        drop(wanted);
        done.unwrap_or_else(|_| Err(refusal(RefusalCode::Unknown, "the call broke off")))
    }

    fn call_limit(&self) -> usize {
        let tools = self.session.plan.tools.iter();
        let most = tools.map(|tool| tool.limits.argument_bytes).max();
        most.unwrap_or(0) as usize + CALL_OVERHEAD
    }
}

/// Reads a body within its bounds, directly into one buffer: collected first and joined then, a model request would be
/// in memory twice.
async fn read_body(mut body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let reading = async {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| refusal(RefusalCode::Request, "the request broke off"))?;
            let piece = frame.into_data().unwrap_or_default();
            if bytes.len() + piece.len() > limit {
                let message = format!("a request of this kind may have {limit} bytes");
                return Err(refusal(RefusalCode::Size, &message));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from(bytes))
    };
    let read = timeout(READ_TIMEOUT, reading).await;
    read.unwrap_or_else(|_| Err(refusal(RefusalCode::Request, "the request took too long")))
}

/// Resolves when the agent no longer waits for an answer.
struct CancelSignal(oneshot::Receiver<()>);

impl CancelSignal {
    async fn wait(self) {
        // Nothing is ever sent: the sender is dropped with the stream.
        let _ = self.0.await;
    }
}

fn parse_json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the request cannot be read: {error}");
        refusal(RefusalCode::Request, &to_receipt_text(&message))
    })
}

fn unknown_request() -> Refusal {
    refusal(RefusalCode::Request, "there is no such request at the door")
}
