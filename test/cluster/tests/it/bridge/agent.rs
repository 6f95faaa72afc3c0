//! An agent whose words come from the test: its container has a program that passes them on to the door.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use sympozium_api::run_plan::paths;
use sympozium_ipc::door::{SOCKET_NAME, ToolAnswer, path};
use sympozium_testkit::cluster::Kubectl;
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// An agent at the door.
pub struct Agent {
    /// Ended with the agent, and with it the connection to the door.
    _relay: Child,
    requests: SendRequest<Full<Bytes>>,
    runtime: Runtime,
}

impl Agent {
    /// Goes to the door, once it is open.
    pub fn connect(kubectl: &Kubectl, pod: &str) -> Result<Self> {
        let socket = format!("{}/{SOCKET_NAME}", paths::DOOR);
        let relay = ["exec", "-i", pod, "-c", "agent", "--", "cluster-probe", "relay-socket", &socket];
        let mut relay = Command::from(kubectl.command(&relay));
        relay.stdin(Stdio::piped()).stdout(Stdio::piped());
        relay.kill_on_drop(true);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (requests, relay) = runtime.block_on(async {
            let mut relay = relay.spawn()?;
            let said = relay.stdout.take().context("an output")?;
            let heard = relay.stdin.take().context("an input")?;
            let stream = TokioIo::new(tokio::io::join(said, heard));
            let handshake = http2::Builder::new(TokioExecutor::new()).handshake(stream);
            let (requests, connection) = tokio::time::timeout(PATIENCE, handshake).await??;
            tokio::spawn(connection);
            anyhow::Ok((requests, relay))
        })?;
        Ok(Self { _relay: relay, requests, runtime })
    }

    /// Has a shell of a pack run a line.
    pub fn execute(&self, pack: &str, line: &str) -> Result<ToolAnswer> {
        let arguments = json!({ "target": pack, "command": line, "timeout": 120 });
        let body = json!({ "id": "call-1", "arguments": arguments });
        let answer = self.post(&format!("{}execute_command", path::TOOLS), &body)?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Says how it ended, with an answer.
    pub fn finish(self, text: &str) -> Result<()> {
        let body = json!({ "is": "answer", "text": text });
        self.post(path::RESULT, &body).map(drop)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Bytes> {
        let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse()?;
        let mut requests = self.requests.clone();
        let answer = async {
            requests.ready().await?;
            let answer = requests.send_request(request).await?;
            let (head, body) = answer.into_parts();
            anyhow::Ok((head.status, body.collect().await?.to_bytes()))
        };
        let (status, body) = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await })??;
        let said = String::from_utf8_lossy(&body);
        ensure!(status.is_success(), "{path}: {status}: {said}");
        Ok(body)
    }
}
