//! Everything around a bridge.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{Destination, Gate, ModelEndpoint, ModelKey, ToolPlan, WireFormat};
use sympozium_gateway::run_api::RunApi;
use sympozium_gateway::run_api::local::{
    ApprovalQueue, PendingQuestion, RecordStore, StoredReport, Vote, VoteRequest, Voter,
};
use sympozium_gateway::{Gateway, Settings};
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_ipc::receipt::{Event, Receipt, verify};
use sympozium_ipc::run_api::{AgentEnd, RUN_CREDENTIAL};
use sympozium_testkit::command;
use sympozium_testkit::model_server::ModelServer;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::acting::RecordingScheduler;
use super::agent::{Agent, TIMEOUT};
use crate::support::Internet;

const PLAN: &[u8] = include_bytes!("../../../../plan/src/plan/tests/fixtures/plan-v1.json");
const PROGRAM: &str = env!("CARGO_BIN_EXE_ipc-bridge");
/// The provider's key.
pub const KEY: &str = "sk-test-0f6d2a9c41b7";
/// Packs of the plan.
pub const PACKS: [&str; 2] = ["cluster", "tickets"];
/// Where the model is, as the plan has it.
const MODEL_HOST: &str = "model.test";
/// How long to wait between two looks.
pub const PAUSE: Duration = Duration::from_millis(5);

/// A run, from its plan to its records.
pub struct RunHarness {
    pub plan: RunPlan,
    pub digest: Digest,
    pub directory: TempDir,
    pub gateway: Arc<Gateway<Internet>>,
    pub internet: Internet,
    pub desk: ApprovalQueue,
    pub doing: RecordingScheduler,
    pub records: RecordStore,
    pub model: ModelServer,
    pub bridge: Child,
    serving: JoinHandle<()>,
}

/// The stored plan, made open: every tool allowed, the model at the server of the test, in the OpenAI format.
pub fn open_plan() -> RunPlan {
    let mut plan = RunPlan::read(PLAN).expect("a plan");
    for tool in &mut plan.tools {
        tool.gate = Gate::Allow;
    }
    plan.model.provider = "openai".to_owned();
    plan.model.model = "test-model".to_owned();
    plan.model.wire = WireFormat::OpenAi;
    plan.model.endpoint = Some(ModelEndpoint {
        encrypted: false,
        host: MODEL_HOST.to_owned(),
        port: 8080,
        path: "/v1/chat/completions".to_owned(),
    });
    let secret = plan.model.keys[0].secret.clone();
    plan.model.keys = vec![ModelKey { variable: sympozium_api::names::EnvName::new("OPENAI_API_KEY"), secret }];
    for credential in &mut plan.credentials {
        if credential.name == "model" {
            credential.reach.public = false;
            credential.reach.destinations = vec![Destination { host: MODEL_HOST.to_owned(), port: Some(8080) }];
        }
    }
    plan.deadlines.grace_seconds = 2;
    plan
}

/// The tool of this name, of this pack where it has one.
pub fn tool<'p>(plan: &'p mut RunPlan, name: &str, pack: Option<&str>) -> &'p mut ToolPlan {
    plan.tools.iter_mut().find(|tool| tool.name == name && tool.pack.as_deref() == pack).expect("a tool")
}

impl RunHarness {
    /// Starts a bridge for the open plan with changes.
    pub async fn start(change: impl FnOnce(&mut RunPlan)) -> Self {
        let mut plan = open_plan();
        change(&mut plan);
        Self::of(plan, &[("OPENAI_API_KEY", KEY)]).await
    }

    /// Starts a bridge with a scripted model.
    pub async fn with_script(plan: RunPlan, script: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("script")).expect("a directory");
        fs::write(directory.path().join("script/turns.yaml"), script).expect("a file");
        Self::within(directory, plan, &[], |_| ()).await
    }

    /// Starts a bridge for a plan.
    pub async fn of(plan: RunPlan, environment: &[(&str, &str)]) -> Self {
        Self::prepared(plan, environment, |_| ()).await
    }

    /// As [`of`](Self::of), with something done to the run's directory before the bridge is started.
    pub async fn prepared(plan: RunPlan, environment: &[(&str, &str)], prepare: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self::within(directory, plan, environment, prepare).await
    }

    /// As [`of`](Self::of), with more arguments for the bridge.
    pub async fn with_arguments(plan: RunPlan, environment: &[(&str, &str)], arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self::started(directory, plan, environment, arguments, |_| ()).await
    }

    /// As [`prepared`](Self::prepared), in a directory of the test's choice.
    pub async fn within(
        directory: TempDir,
        plan: RunPlan,
        environment: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        Self::started(directory, plan, environment, &[], prepare).await
    }

    async fn started(
        directory: TempDir,
        plan: RunPlan,
        environment: &[(&str, &str)],
        arguments: &[&str],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let bytes = plan.to_bytes().expect("bytes");
        let digest = RunPlan::digest_of(&bytes);
        let at = |name: &str| directory.path().join(name);
        for name in ["input", "door", "ipc"] {
            fs::create_dir(at(name)).expect("a directory");
        }
        for part in &plan.parts {
            if let Some(pack) = part.role.pack() {
                fs::create_dir(at("ipc").join(pack)).expect("a volume");
            }
        }
        fs::write(at("input").join("plan.json"), &bytes).expect("a file");
        let names = plan.credentials.iter().map(|it| it.name.clone());
        for name in names.chain([RUN_CREDENTIAL.to_owned()]) {
            let file = match name.as_str() {
                RUN_CREDENTIAL => "token".to_owned(),
                name => format!("credential-{name}"),
            };
            let credential = signed(plan.run.uid.as_str(), &name);
            fs::write(at("input").join(file), credential).expect("a file");
        }
        let internet = Internet::default();
        let model = ModelServer::start().expect("a model");
        internet.host_at(MODEL_HOST, 8080, model.address());
        let gateway = Gateway::new(keys(), Settings::default(), internet.clone());
        gateway.plans().add(&plan).expect("a plan");
        let desk = ApprovalQueue::new();
        let doing = RecordingScheduler::default();
        let records = RecordStore::open(&at("records")).expect("records");
        let api = RunApi {
            authenticator: gateway.credentials(),
            question_handler: desk.clone(),
            report_store: records.clone(),
            scheduler: doing.clone(),
        };
        gateway.serve_run_api(api).expect("the first");
        let listener = UnixListener::bind(at("gateway.sock")).expect("a socket");
        let serving = {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move {
                let _ = gateway.serve_unix(listener).await;
            })
        };
        prepare(directory.path());
        let log = fs::File::create(at("log")).expect("a log");
        let place = |name: &str| format!("--{name}={}", at(name).display());
        let bridge = command(PROGRAM)
            .arg(format!("--plan-digest={digest}"))
            .arg(format!("--gateway=unix:{}", at("gateway.sock").display()))
            .args(["input", "door", "ipc", "headers", "script"].map(place))
            .args(arguments)
            .env_clear()
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .expect("it starts");
        Self { plan, digest, directory, gateway, internet, desk, doing, records, model, bridge, serving }
    }

    /// A path in the run's directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The volume of a skill.
    pub fn volume(&self, pack: &str) -> PathBuf {
        self.at("ipc").join(pack)
    }

    /// The agent, at the door.
    pub async fn agent(&self) -> Agent {
        Agent::connect(&self.at("door")).await
    }

    /// Waits until the bridge has ended by itself, and gives its exit code.
    pub async fn wait_exit(&mut self) -> i32 {
        let waited = timeout(TIMEOUT, async {
            loop {
                match self.bridge.try_wait().expect("a child") {
                    Some(status) => return status.code().unwrap_or(-1),
                    None => sleep(PAUSE).await,
                }
            }
        });
        match waited.await {
            Ok(code) => code,
            Err(_) => panic!("the bridge does not end:\n{}", self.log()),
        }
    }

    /// How the run ended, as it was reported. The chain of receipts holds up to the reported head.
    pub fn ending(&self) -> AgentEnd {
        let report = self.report();
        self.receipts();
        report.ending.expect("an ending")
    }

    /// The last report.
    pub fn report(&self) -> StoredReport {
        let report = self.records.read_report(self.plan.run.uid.as_str());
        report.expect("readable").expect("a report")
    }

    /// Waits until receipts have left the run.
    pub async fn first_report(&self) {
        let uid = self.plan.run.uid.as_str();
        let receipts = self.records.path(uid).join("receipts.jsonl");
        let waited = timeout(TIMEOUT, async {
            while !is_file(&receipts) || !matches!(self.records.read_report(uid), Ok(Some(_))) {
                sleep(PAUSE).await;
            }
        });
        assert!(waited.await.is_ok(), "nothing is reported:\n{}", self.log());
    }

    /// The lines of receipts as they are at this moment, while more may be on their way.
    pub fn lines_so_far(&self) -> Vec<String> {
        let path = self.records.path(self.plan.run.uid.as_str());
        let text = fs::read_to_string(path.join("receipts.jsonl")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// All receipts, verified against the plan and the last head.
    pub fn receipts(&self) -> Vec<Receipt> {
        // The report first, and only what it counts: while the run goes on, more receipts may be on their way.
        let report = self.report();
        let path = self.records.path(self.plan.run.uid.as_str()).join("receipts.jsonl");
        let bytes = fs::read(path).expect("receipts");
        let counted = usize::try_from(report.receipts_bytes).expect("a size");
        assert!(report.ending.is_none() || bytes.len() == counted, "{report:?}");
        let text = std::str::from_utf8(&bytes[..counted]).expect("text");
        verify(text.lines(), &self.digest, Some(&report.head)).expect("a chain").receipts
    }

    /// What happened.
    pub fn events(&self) -> Vec<Event> {
        self.receipts().into_iter().map(|it| it.event).collect()
    }

    /// Waits until a person is asked.
    pub async fn asked(&self) -> PendingQuestion {
        let waited = timeout(TIMEOUT, async {
            loop {
                match self.desk.pending().into_iter().next() {
                    Some(pending) => return pending,
                    None => sleep(PAUSE).await,
                }
            }
        });
        match waited.await {
            Ok(pending) => pending,
            Err(_) => panic!("no question was asked:\n{}", self.log()),
        }
    }

    /// A person says something about a question.
    pub fn say(&self, pending: &PendingQuestion, says: Vote) {
        let by = Voter { name: "ada".to_owned(), groups: vec!["sre".to_owned()], is_author: false };
        let verdict = VoteRequest {
            run: self.plan.run.uid.as_str(),
            approval: &pending.request.approval,
            action: &pending.request.action,
            vote: says,
            by: &by,
            reason: None,
        };
        self.desk.vote(&verdict).expect("it counts");
    }

    /// What the bridge logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap_or_default()
    }
}

impl Drop for RunHarness {
    fn drop(&mut self) {
        let _ = self.bridge.kill();
        let _ = self.bridge.wait();
        self.serving.abort();
    }
}

fn keys() -> KeyRing {
    KeyRing::parse(&format!("k1 {}\n", "5a".repeat(KEY_BYTES))).expect("keys")
}

/// A credential of a run, as its file has it.
pub fn signed(run: &str, name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let claims = Claims { run: run.to_owned(), name: name.to_owned(), expires: now.as_secs() + 3600 };
    let credential = keys().sign(&claims).expect("a credential");
    format!("{}:{}", credential.user, *credential.password)
}

/// Whether something is there, and a plain file.
pub fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_file())
}
