//! An agent at the door that sends whatever a test wants.

use std::path::Path;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_ipc::door::{PermitAnswer, REFUSED_HEADER, Refusal, RefusalCode, SOCKET_NAME, ToolAnswer, path};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::{POLL_INTERVAL, TIMEOUT};

/// An agent at the door.
pub struct Agent {
    requests: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
}

/// What the bridge answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Whether the bridge itself refuses.
    pub refused: bool,
    pub body: Bytes,
}

impl Agent {
    /// Connects as soon as there is a door.
    pub async fn connect(door: &Path) -> Self {
        let socket = door.join(SOCKET_NAME);
        let connected = timeout(TIMEOUT, async {
            loop {
                match UnixStream::connect(&socket).await {
                    Ok(stream) => return stream,
                    Err(_) => sleep(POLL_INTERVAL).await,
                }
            }
        });
        Self::from_stream(connected.await.expect("a door")).await
    }

    /// Uses a connection that is open.
    pub async fn from_stream(stream: UnixStream) -> Self {
        let (requests, connection) =
            http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.expect("HTTP/2");
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { requests, connection }
    }

    /// Sends a request, and gives the head of the answer as it comes.
    pub async fn send(&self, path: &str, body: impl Into<Bytes>) -> hyper::Result<Response<Incoming>> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().expect("a path");
        let mut requests = self.requests.clone();
        requests.ready().await?;
        requests.send_request(request).await
    }

    /// Sends a request, and reads the answer.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> hyper::Result<Reply> {
        let answer = timeout(TIMEOUT, self.send(path, body)).await.expect("an answer")?;
        let (head, body) = answer.into_parts();
        Ok(Reply {
            status: head.status.as_u16(),
            refused: head.headers.contains_key(REFUSED_HEADER),
            body: body.collect().await?.to_bytes(),
        })
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<ToolAnswer, Refusal> {
        self.ask(&format!("{}{tool}", path::TOOLS), arguments).await
    }

    /// Runs a line in the shell of a pack.
    pub async fn execute(&self, pack: &str, line: &str) -> Result<ToolAnswer, Refusal> {
        self.call("execute_command", json!({ "target": pack, "command": line })).await
    }

    /// Asks for a permit.
    pub async fn permit(&self, tool: &str, arguments: Value) -> Result<u64, Refusal> {
        let answer: PermitAnswer = self.ask(&format!("{}{tool}", path::PERMITS), arguments).await?;
        Ok(answer.permit)
    }

    /// Reports on a permit.
    pub async fn report(&self, permit: u64) -> Reply {
        let body = json!({ "outcome": { "is": "done" }, "bytes": 7, "durationMs": 1 });
        let path = format!("{}{permit}{}", path::PERMITS, path::REPORT);
        self.post(&path, body.to_string()).await.expect("an answer")
    }

    /// Ends the run with an answer.
    pub async fn finish(&self, text: &str) -> Reply {
        let body = json!({ "is": "answer", "text": text });
        self.post(path::RESULT, body.to_string()).await.expect("an answer")
    }

    /// Disconnects without a result.
    pub fn leave(self) {
        self.connection.abort();
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, arguments: Value) -> Result<T, Refusal> {
        let body = json!({ "id": "call-1", "arguments": arguments });
        let reply = self.post(path, body.to_string()).await;
        let reply = reply.map_err(|error| Refusal {
            code: RefusalCode::Unknown,
            message: error.to_string(),
            retry_after_ms: None,
        })?;
        if reply.refused {
            return Err(serde_json::from_slice(&reply.body).expect("a refusal"));
        }
        Ok(serde_json::from_slice(&reply.body).expect("an answer"))
    }
}
