//! A run, from its plan to its records.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::{
    ApprovalQueue, NoScheduler, PendingQuestion, RecordStore, StoredReport, Vote, VoteRequest, Voter, files,
};
use sympozium_gateway::run_api::{RunApi, Scheduler};
use sympozium_gateway::{Gateway, Settings};
use sympozium_ipc::receipt::{Event, Receipt, verify};
use sympozium_ipc::run_api::{AgentEnd, RUN_CREDENTIAL};
use sympozium_testkit::command;
use sympozium_testkit::model_server::ModelServer;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::credential::{keys, token};
use crate::plan::{MODEL_HOST, MODEL_PORT};
use crate::{Agent, Internet, wait_until};

/// The provider's key.
pub const KEY: &str = "sk-test-0f6d2a9c41b7";
/// The directories of a run.
const DIRECTORIES: [&str; 6] = ["input", "door", "ipc", "agent", "workspace", "tmp"];

/// A run whose directories are there, and whose bridge is not started yet.
pub struct Setup<S = NoScheduler> {
    plan: RunPlan,
    digest: Digest,
    directory: TempDir,
    scheduler: S,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A run: everything but the agent and the sidecars. All of it ends when this is dropped.
pub struct RunHarness {
    pub plan: RunPlan,
    pub digest: Digest,
    pub directory: TempDir,
    pub gateway: Arc<Gateway<Internet>>,
    pub internet: Internet,
    pub approvals: ApprovalQueue,
    pub records: RecordStore,
    /// Where the plan of [`open_plan`](crate::plan::open_plan) has its model.
    pub model: ModelServer,
    pub bridge: Child,
    serving: JoinHandle<()>,
}

/// Makes the directories of a run.
pub fn make_directories(directory: &Path, plan: &RunPlan) {
    for name in DIRECTORIES {
        fs::create_dir(directory.join(name)).expect("a directory");
    }
    for pack in plan.parts.iter().filter_map(|part| part.role.pack()) {
        fs::create_dir(directory.join("ipc").join(pack)).expect("a volume");
    }
}

/// Writes what the bridge reads, into directories that are there, and returns the plan's digest.
pub fn write_inputs(directory: &Path, plan: &RunPlan) -> Digest {
    let bytes = plan.to_bytes().expect("JSON");
    let (run, input) = (plan.run.uid.as_str(), directory.join("input"));
    fs::write(input.join("plan.json"), &bytes).expect("a file");
    fs::write(input.join("token"), token(run, RUN_CREDENTIAL)).expect("a file");
    for credential in &plan.credentials {
        let file = input.join(format!("credential-{}", credential.name));
        fs::write(file, token(run, &credential.name)).expect("a file");
    }
    RunPlan::digest_of(&bytes)
}

impl RunHarness {
    /// Sets up a run with the key of its model, and without a scheduler.
    pub fn setup(plan: RunPlan) -> Setup {
        Self::setup_in(tempfile::tempdir().expect("a directory"), plan)
    }

    /// As [`setup`](Self::setup), in a directory of the test's choice.
    pub fn setup_in(directory: TempDir, plan: RunPlan) -> Setup {
        make_directories(directory.path(), &plan);
        let digest = write_inputs(directory.path(), &plan);
        let environment = plan.model.keys.first().map(|key| (key.variable.to_string(), KEY.to_owned()));
        Setup {
            plan,
            digest,
            directory,
            scheduler: NoScheduler,
            arguments: Vec::new(),
            environment: environment.into_iter().collect(),
        }
    }

    /// A path in the run's directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The volume of a skill.
    pub fn volume(&self, pack: &str) -> PathBuf {
        self.at("ipc").join(pack)
    }

    /// Connects an agent to the door.
    pub async fn agent(&self) -> Agent {
        Agent::connect(&self.at("door")).await
    }

    /// Waits for a condition.
    ///
    /// # Panics
    ///
    /// When it does not hold in time.
    pub async fn wait_until(&self, what: &str, condition: impl FnMut() -> bool) {
        assert!(wait_until(condition).await, "never: {what}\n{}", self.logs());
    }

    /// Waits until the bridge has ended by itself, and returns its exit code.
    pub async fn wait_exit(&mut self) -> i32 {
        let mut status = None;
        let ended = wait_until(|| {
            status = self.bridge.try_wait().expect("a child");
            status.is_some()
        });
        assert!(ended.await, "the bridge does not end\n{}", self.logs());
        status.and_then(|status| status.code()).unwrap_or(-1)
    }

    /// How the run ended, as it was reported. The chain of receipts holds up to the reported head.
    pub fn ending(&self) -> AgentEnd {
        let report = self.report();
        self.receipts();
        report.ending.expect("an ending")
    }

    /// The last report.
    pub fn report(&self) -> StoredReport {
        self.records.read_report(self.plan.run.uid.as_str()).expect("readable").expect("a report")
    }

    /// Waits until receipts have left the run.
    pub async fn first_report(&self) {
        let (uid, receipts) = (self.plan.run.uid.as_str(), self.record(files::RECEIPTS));
        let has_report = || receipts.is_file() && matches!(self.records.read_report(uid), Ok(Some(_)));
        self.wait_until("a report", has_report).await;
    }

    /// A file of the run's records.
    pub fn record(&self, name: &str) -> PathBuf {
        self.records.path(self.plan.run.uid.as_str()).join(name)
    }

    /// The lines of receipts as they are at this moment, while more may be on their way.
    pub fn lines_so_far(&self) -> Vec<String> {
        let text = fs::read_to_string(self.record(files::RECEIPTS)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// All receipts, verified against the plan and the last head.
    pub fn receipts(&self) -> Vec<Receipt> {
        // The report first, and only what it counts: while the run goes on, more receipts may be on their way.
        let report = self.report();
        let bytes = fs::read(self.record(files::RECEIPTS)).expect("receipts");
        let counted = usize::try_from(report.receipts_bytes).expect("a size");
        assert!(report.ending.is_none() || bytes.len() == counted, "{report:?}");
        let text = std::str::from_utf8(&bytes[..counted]).expect("text");
        verify(text.lines(), &self.digest, Some(&report.head)).expect("a chain").receipts
    }

    /// The events of all receipts.
    pub fn events(&self) -> Vec<Event> {
        self.receipts().into_iter().map(|receipt| receipt.event).collect()
    }

    /// Waits for a question.
    pub async fn pending_question(&self) -> PendingQuestion {
        self.wait_until("a question is pending", || !self.approvals.pending().is_empty()).await;
        self.approvals.pending().remove(0)
    }

    /// Votes on a question.
    pub fn vote(&self, pending: &PendingQuestion, vote: Vote) {
        let by = Voter { name: "ada".to_owned(), groups: vec!["sre".to_owned()], is_author: false };
        let request = VoteRequest {
            run: self.plan.run.uid.as_str(),
            approval: &pending.request.approval,
            action: &pending.request.action,
            vote,
            by: &by,
            reason: None,
        };
        self.approvals.vote(&request).expect("it counts");
    }

    /// What the bridge logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.at("bridge.log")).unwrap_or_default()
    }

    /// The logs of all parts, for failures.
    pub fn logs(&self) -> String {
        let paths = fs::read_dir(self.directory.path()).expect("a directory").flatten().map(|entry| entry.path());
        let logs = paths.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.map(|path| format!("{}:\n{}\n", path.display(), fs::read_to_string(&path).unwrap_or_default())).collect()
    }
}

impl Drop for RunHarness {
    fn drop(&mut self) {
        let _ = self.bridge.kill();
        let _ = self.bridge.wait();
        self.serving.abort();
    }
}

impl<S: Scheduler> Setup<S> {
    /// A path in the run's directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// With a scheduler behind the gateway.
    #[must_use]
    pub fn scheduler<T>(self, scheduler: T) -> Setup<T> {
        let Self { plan, digest, directory, scheduler: _, arguments, environment } = self;
        Setup { plan, digest, directory, scheduler, arguments, environment }
    }

    /// With one more argument for the bridge.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// With one more variable for the bridge, or another value of one.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the gateway, the model server, and this program as the bridge. To be called in a runtime, in which the gateway
    /// runs.
    pub fn start(self, bridge: impl AsRef<Path>) -> RunHarness {
        let at = |name: &str| self.directory.path().join(name);
        let internet = Internet::default();
        let model = ModelServer::start().expect("a model");
        internet.host(MODEL_HOST, MODEL_PORT, model.address());
        let gateway = Gateway::new(keys(), Settings::default(), internet.clone());
        gateway.plans().add(&self.plan).expect("a plan");
        let approvals = ApprovalQueue::new();
        let records = RecordStore::open(&at("records")).expect("records");
        let api = RunApi {
            authenticator: gateway.credentials(),
            question_handler: approvals.clone(),
            report_store: records.clone(),
            scheduler: self.scheduler,
        };
        gateway.serve_run_api(api).expect("the first");
        let listener = UnixListener::bind(at("gateway.sock")).expect("a socket");
        let serving = tokio::spawn({
            let gateway = Arc::clone(&gateway);
            async move {
                let _ = gateway.serve_unix(listener).await;
            }
        });
        let bridge = command(bridge.as_ref())
            .arg(format!("--plan-digest={}", self.digest))
            .arg(format!("--gateway=unix:{}", at("gateway.sock").display()))
            .args(["input", "door", "ipc", "headers", "script"].map(|name| format!("--{name}={}", at(name).display())))
            .args(self.arguments)
            .env_clear()
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(at("bridge.log")).expect("a log"))
            .spawn()
            .expect("it starts");
        let Self { plan, digest, directory, .. } = self;
        RunHarness { plan, digest, directory, gateway, internet, approvals, records, model, bridge, serving }
    }
}
