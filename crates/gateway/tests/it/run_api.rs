//! The run API with real clients: each request, each refusal, and what hostile ones get. This file is the gateway, the
//! runs and the client that they share.

mod events;
mod hostile;
mod program;
mod questions;
mod reports;
mod tasks;
mod tls;
mod tokens;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Serialize;
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::names::{Digest, NamespaceName, Uid};
use sympozium_gateway::resolve::ResolveError;
use sympozium_gateway::run_api::local::{ApprovalQueue, NoScheduler, RecordStore};
use sympozium_gateway::run_api::{QuestionHandler, ReportStore, Scheduler};
use sympozium_gateway::{Gateway, NetworkAccess, RunApi, Settings};
use sympozium_harness::credential::{keys, now, token_until};
use sympozium_harness::plan::stored_plan;
use sympozium_ipc::receipt::{Chain, Event};
use sympozium_ipc::run_api::{AgentEnd, BridgePhase, RUN_CREDENTIAL, Report, Usage, path};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{UnixListener, UnixStream};

use crate::harness::TIMEOUT;

/// The run of the stored plan, and another one.
const UID: &str = "3f2c1a90-77f4-4c62-9f0e-0123456789ab";
const OTHER: &str = "11111111-77f4-4c62-9f0e-0123456789ab";

/// A network without hosts.
struct Nowhere;

impl NetworkAccess for Nowhere {
    type Stream = DuplexStream;

    async fn resolve(&self, _: &str) -> Result<Vec<IpAddr>, ResolveError> {
        Err(ResolveError::NotFound)
    }

    async fn connect(&self, _: SocketAddr) -> io::Result<DuplexStream> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

/// A gateway with a desk, records and a run.
struct RunApiHarness {
    gateway: Arc<Gateway<Nowhere>>,
    desk: ApprovalQueue,
    directory: tempfile::TempDir,
    plan: RunPlan,
}

pub fn plan(uid: &str, change: impl FnOnce(&mut RunPlan)) -> RunPlan {
    let mut plan = stored_plan();
    plan.run.uid = Uid::new(uid);
    // The approver.
    plan.approval.approvers = None;
    change(&mut plan);
    plan
}

impl RunApiHarness {
    fn new(change: impl FnOnce(&mut RunPlan)) -> Self {
        Self::with_scheduler(change, NoScheduler)
    }

    fn with_scheduler(change: impl FnOnce(&mut RunPlan), scheduler: impl Scheduler) -> Self {
        let (desk, directory) = (ApprovalQueue::new(), tempfile::tempdir().expect("a directory"));
        let records = records(&directory);
        let gateway = gateway(desk.clone(), records, scheduler);
        let plan = plan(UID, change);
        gateway.plans().add(&plan).expect("a plan");
        Self { gateway, desk, directory, plan }
    }

    fn records(&self) -> RecordStore {
        records(&self.directory)
    }

    fn plan_digest(&self) -> Digest {
        RunPlan::digest_of(&self.plan.to_bytes().expect("JSON"))
    }

    /// A client of the run, over a pipe in memory.
    async fn client(&self) -> Client {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let gateway = Arc::clone(&self.gateway);
        tokio::spawn(async move { gateway.serve(theirs).await });
        Client::from_stream(ours, &token(UID, RUN_CREDENTIAL)).await
    }

    /// Its address in the file system, served.
    fn socket(&self) -> std::path::PathBuf {
        let path = self.directory.path().join("gateway.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let gateway = Arc::clone(&self.gateway);
        tokio::spawn(async move { gateway.serve_unix(listener).await });
        path
    }

    async fn unix_client(&self, path: &std::path::Path) -> Client {
        let stream = UnixStream::connect(path).await.expect("it listens");
        Client::from_stream(stream, &token(UID, RUN_CREDENTIAL)).await
    }

    fn reports(&self) -> Reporting {
        Reporting { chain: Chain::new(self.plan_digest()), number: 0 }
    }

    async fn pending(&self, count: usize) {
        let mut changes = self.desk.changes();
        let waiting = async {
            while self.desk.pending().len() != count {
                changes.changed().await.expect("the desk is there");
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, waiting).await;
        assert!(waited.is_ok(), "{} wait", self.desk.pending().len());
    }

    /// The events so far, as they are written, without times.
    fn events(&self, from: u64, run: Option<&str>) -> Vec<Value> {
        let watcher = self.gateway.events().subscribe(from);
        let mut watcher = match run {
            Some(run) => watcher.for_run(run),
            None => watcher,
        };
        let mut events = Vec::new();
        while let Some(event) = watcher.try_next() {
            let event = event.expect("none was missed");
            let mut value = serde_json::to_value(&*event).expect("JSON");
            value.as_object_mut().expect("an object").remove("atMilliseconds");
            events.push(value);
        }
        events
    }

    /// The words of the events so far.
    fn outcomes(&self) -> Vec<String> {
        let word = |it: &Value| it["outcome"].as_str().expect("a word").to_owned();
        self.events(1, None).iter().map(word).collect()
    }
}

fn records(directory: &tempfile::TempDir) -> RecordStore {
    RecordStore::open(&directory.path().join("records")).expect("a directory")
}

fn gateway(
    decider: impl QuestionHandler,
    reporter: impl ReportStore,
    scheduler: impl Scheduler,
) -> Arc<Gateway<Nowhere>> {
    gateway_with(Settings::default(), decider, reporter, scheduler)
}

fn gateway_with(
    settings: Settings,
    decider: impl QuestionHandler,
    reporter: impl ReportStore,
    scheduler: impl Scheduler,
) -> Arc<Gateway<Nowhere>> {
    let gateway = Gateway::new(keys(), settings, Nowhere);
    let api =
        RunApi { authenticator: gateway.credentials(), question_handler: decider, report_store: reporter, scheduler };
    gateway.serve_run_api(api).expect("the first");
    gateway
}

fn token(run: &str, name: &str) -> String {
    token_until(run, name, now() + 600)
}

/// Makes the reports of a run.
#[derive(Clone)]
pub struct Reporting {
    pub chain: Chain,
    pub number: u64,
}

impl Reporting {
    pub fn next(&mut self, receipts: u64) -> Report {
        let first_receipt = self.chain.len();
        let line = |number| {
            let event = Event::Started { run: UID.to_owned(), by: format!("test {number}") };
            self.chain.add(number, event).expect("it fits").text
        };
        let receipts = (0..receipts).map(line).collect();
        self.number += 1;
        Report {
            number: self.number - 1,
            phase: BridgePhase::Working,
            first_receipt,
            receipts,
            head: self.chain.head().clone(),
            progress: None,
            transcript: Vec::new(),
            usage: Usage::default(),
            ending: None,
        }
    }

    pub fn last(&mut self) -> Report {
        let ending = AgentEnd::Answered { text: "the answer".to_owned() };
        Report { phase: BridgePhase::Ended, ending: Some(ending), ..self.next(1) }
    }
}

/// A client of HTTP/2 with a token.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    token: String,
    /// Ends the connection when the last clone is dropped.
    _connection: Arc<Connection>,
}

struct Connection(tokio::task::AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    pub async fn from_stream(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, token: &str) -> Self {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("a handshake");
        let connection = tokio::spawn(connection);
        Self { sender, token: token.to_owned(), _connection: Arc::new(Connection(connection.abort_handle())) }
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// Status and body of the answer.
    pub async fn post(&self, path: &str, body: &impl Serialize) -> (u16, Value) {
        let body = serde_json::to_vec(body).expect("JSON");
        self.send(path, body).await.expect("an answer")
    }

    pub async fn send(&self, path: &str, body: Vec<u8>) -> hyper::Result<(u16, Value)> {
        let request = http::Request::post(format!("http://gateway{path}"))
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::new(Bytes::from(body)))
            .expect("a request");
        let answer = self.sender.clone().send_request(request).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        let body = serde_json::from_slice(&body).expect("JSON");
        Ok((status, body))
    }

    /// Of a report: how many receipts are kept, or the code of the refusal.
    pub async fn report(&self, report: &Report) -> Result<u64, String> {
        let (status, body) = self.post(path::REPORTS, report).await;
        match status {
            200 => Ok(body["receipts"].as_u64().expect("a number")),
            _ => Err(code(&body)),
        }
    }
}

pub fn code(body: &Value) -> String {
    body["code"].as_str().expect("a code").to_owned()
}

pub fn question(name: &str) -> Value {
    json!({
        "approval": name, "tool": "execute_command", "pack": "cluster",
        "action": hash("0"), "shown": "shell: ls", "waitSeconds": 300,
    })
}

pub fn hash(digit: &str) -> String {
    format!("sha256:{}", digit.repeat(64))
}
