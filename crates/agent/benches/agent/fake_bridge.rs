//! Bridge and model in one server that answers at once and records requests with their times.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sympozium_ipc::door::{PermitAnswer, REMAINING_HEADER, path};
use tokio::net::UnixListener;

use crate::process::Process;

/// The bridge's settings.
const STREAMS: u32 = 32;
const STREAM_WINDOW: u32 = 128 << 10;
/// Text of the last response.
const LAST: &str = "That is all.";

/// Requests of one agent.
#[derive(Debug, Default)]
pub struct Recording {
    pub requests: Vec<ModelRequest>,
    permits: u64,
}

#[derive(Debug)]
pub struct ModelRequest {
    /// When the whole request had arrived.
    pub arrived: Instant,
    /// When the response was handed over.
    pub responded: Instant,
    pub bytes: usize,
    /// The agent's process at that moment.
    pub process: Process,
}

impl Recording {
    /// From a response to the next request.
    pub fn turns(&self) -> Vec<Duration> {
        let pairs = self.requests.windows(2);
        pairs.map(|it| it[1].arrived - it[0].responded).collect()
    }

    /// Processor time of each turn.
    pub fn processor_times(&self) -> Vec<Duration> {
        let pairs = self.requests.windows(2);
        let worked = |it: &[ModelRequest]| it[1].process.processor - it[0].process.processor;
        pairs.map(worked).collect()
    }

    pub fn last(&self) -> &ModelRequest {
        self.requests.last().expect("a request")
    }

    /// Size of the last request in MiB.
    pub fn context(&self) -> f64 {
        self.last().bytes as f64 / f64::from(1 << 20)
    }
}

/// One call for each path, and then the final text.
pub fn answers(paths: &[String]) -> Arc<[Bytes]> {
    let call = |(index, path): (usize, &String)| {
        let arguments = json!({ "path": path }).to_string();
        let call = json!({
            "index": 0, "id": format!("call_{index}"), "type": "function",
            "function": { "name": "read_file", "arguments": arguments },
        });
        streamed(&json!({ "tool_calls": [call] }), "tool_calls")
    };
    let calls = paths.iter().enumerate().map(call);
    let last = streamed(&json!({ "content": LAST }), "stop");
    calls.chain([last]).collect()
}

fn streamed(delta: &Value, reason: &str) -> Bytes {
    let chunk = |delta: Value, reason: Option<&str>| {
        let choices = json!([{ "index": 0, "delta": delta, "finish_reason": reason }]);
        let chunk = json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices });
        format!("data: {chunk}\n\n")
    };
    let mut text = chunk(json!({ "role": "assistant", "content": null }), None);
    text.push_str(&chunk(delta.clone(), None));
    text.push_str(&chunk(json!({}), Some(reason)));
    text.push_str("data: [DONE]\n\n");
    text.into()
}

/// Serves one agent until it disconnects.
pub async fn serve(listener: UnixListener, answers: Arc<[Bytes]>) -> Recording {
    let (stream, _) = listener.accept().await.expect("an agent");
    let pid = stream.peer_cred().expect("an agent").pid();
    let pid = pid.expect("an agent's process");
    let recording = Arc::new(Mutex::new(Recording::default()));
    let service = service_fn(|request| {
        let (recording, answers) = (Arc::clone(&recording), Arc::clone(&answers));
        async move { Ok::<_, Infallible>(answer(request, pid, &recording, &answers).await) }
    });
    // Any end of the connection is the end of the agent.
    let _ = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAMS * STREAM_WINDOW)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    std::mem::take(&mut *recording.lock())
}

async fn answer(
    request: Request<Incoming>,
    pid: i32,
    recording: &Mutex<Recording>,
    answers: &[Bytes],
) -> Response<Full<Bytes>> {
    let (head, mut body) = request.into_parts();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        // An agent may disconnect at any time.
        let Ok(frame) = frame else { break };
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    let arrived = Instant::now();
    let mut recording = recording.lock();
    let body = match head.uri.path() {
        path::MODEL => {
            let body = answers[recording.requests.len()].clone();
            let process = Process::of(pid);
            recording.requests.push(ModelRequest { arrived, responded: Instant::now(), bytes, process });
            body
        }
        it if it.starts_with(path::PERMITS) && !it.ends_with(path::REPORT) => {
            recording.permits += 1;
            let permit = recording.permits;
            serde_json::to_vec(&PermitAnswer { permit }).expect("JSON").into()
        }
        _ => Bytes::new(),
    };
    let mut answer = Response::new(Full::new(body));
    let headers = answer.headers_mut();
    headers.insert(REMAINING_HEADER, HeaderValue::from_static("1200000"));
    if head.uri.path() == path::MODEL {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    }
    answer
}
