//! A run with everything but the agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::names::{Digest, EnvName};
use sympozium_api::run_plan::{
    AgentView, Destination, Gate, ModelEndpoint, ModelKey, Root, SkillContents, SkillPlan, SkillSource, ToolPlan,
    WireFormat,
};
use sympozium_gateway::run_api::RunApi;
use sympozium_gateway::run_api::local::{
    ApprovalQueue, PendingQuestion, RecordStore, StoredReport, Vote, VoteRequest, Voter, files,
};
use sympozium_gateway::{Gateway, Settings};
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_ipc::receipt::{Event, verify};
use sympozium_ipc::run_api::{AgentEnd, RUN_CREDENTIAL};
use sympozium_plan::plan::agent_view;
use sympozium_testkit::command;
use sympozium_testkit::model_server::{Answer, ModelServer, ToolCall};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::bridge;
use crate::fakes::{FakeScheduler, Internet};
use crate::model_requests::ModelRequest;

const PLAN: &[u8] = include_bytes!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-runner");
pub const WIRES: [WireFormat; 2] = [WireFormat::OpenAi, WireFormat::Anthropic];
pub const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The model's host in the plan.
const MODEL_HOST: &str = "model.test";
pub const WEB_HOST: &str = "web.test";
pub const KEY: &str = "sk-test-0f6d2a9c41b7";
const UNLIMITED: u32 = 100_000;

/// A run, from its plan to its records.
pub struct Harness {
    pub plan: RunPlan,
    pub view: AgentView,
    pub digest: Digest,
    pub directory: TempDir,
    pub internet: Internet,
    pub approvals: ApprovalQueue,
    pub scheduler: FakeScheduler,
    pub records: RecordStore,
    pub model: ModelServer,
    pub bridge: Child,
    agents: Vec<Child>,
    serving: JoinHandle<()>,
}

/// The end of a run.
#[derive(Debug)]
pub struct End {
    /// The agent's exit code.
    pub code: Option<i32>,
    pub ending: AgentEnd,
    pub log: String,
}

impl End {
    #[track_caller]
    pub fn answer(&self) -> &str {
        match &self.ending {
            AgentEnd::Answered { text } if self.code == Some(0) => text,
            _ => panic!("no answer: {self:?}"),
        }
    }

    /// The error of a failed run.
    #[track_caller]
    pub fn failure(&self) -> &str {
        match &self.ending {
            AgentEnd::Failed { error } if self.code == Some(1) => error,
            _ => panic!("no failure: {self:?}"),
        }
    }
}

pub fn call(tool: &str, arguments: Value) -> ToolCall {
    ToolCall::new(tool, &arguments)
}

/// A response with a single call.
pub fn calling(tool: &str, arguments: Value) -> Answer {
    Answer::tools([call(tool, arguments)])
}

pub fn tool<'p>(plan: &'p mut RunPlan, name: &str, pack: Option<&str>) -> &'p mut ToolPlan {
    plan.tools.iter_mut().find(|tool| tool.name == name && tool.pack.as_deref() == pack).expect("a tool")
}

impl Harness {
    /// Starts everything but the agent, for the permissive plan.
    pub async fn new(wire: WireFormat) -> Self {
        Self::with(wire, |_| ()).await
    }

    /// As [`new`](Self::new), with changes of the plan.
    pub async fn with(wire: WireFormat, change: impl FnOnce(&mut RunPlan)) -> Self {
        let mut plan = permissive_plan(wire);
        change(&mut plan);
        let directory = tempfile::tempdir().expect("a directory");
        let digest = write_inputs(&plan, directory.path());
        let view = write_skills(&plan, directory.path());
        let internet = Internet::default();
        let model = ModelServer::start().expect("a model");
        internet.host(MODEL_HOST, model.address());
        let gateway = Gateway::new(keys(), Settings::default(), internet.clone());
        gateway.plans().add(&plan).expect("a plan");
        let (approvals, scheduler) = (ApprovalQueue::new(), FakeScheduler::default());
        let records = RecordStore::open(&directory.path().join("records")).expect("records");
        let api = RunApi {
            authenticator: gateway.credentials(),
            question_handler: approvals.clone(),
            report_store: records.clone(),
            scheduler: scheduler.clone(),
        };
        gateway.serve_run_api(api).expect("the first");
        let socket = directory.path().join("gateway.sock");
        let listener = UnixListener::bind(socket).expect("a socket");
        let serving = {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move {
                let _ = gateway.serve_unix(listener).await;
            })
        };
        let bridge = bridge::start(directory.path(), &digest);
        Self {
            plan,
            view,
            digest,
            directory,
            internet,
            approvals,
            scheduler,
            records,
            model,
            bridge,
            agents: Vec::new(),
            serving,
        }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A path in the workspace, for tool calls.
    pub fn path(&self, name: &str) -> String {
        self.at("workspace").join(name).display().to_string()
    }

    /// Writes a file in the workspace and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).expect("a file");
        path
    }

    pub fn volume(&self, pack: &str) -> PathBuf {
        self.at("ipc").join(pack)
    }

    /// Starts the agent with environment variables.
    pub fn start(&mut self, variables: &[(&str, &str)]) -> i32 {
        let view = serde_json::to_vec(&self.view).expect("JSON");
        fs::write(self.at("agent/agent.json"), view).expect("a file");
        self.spawn(variables)
    }

    /// Starts the agent before its input exists.
    pub fn start_without_input(&mut self) -> i32 {
        self.spawn(&[])
    }

    /// Starts another program with the agent's command line.
    pub fn start_program(&mut self, program: Command) -> i32 {
        let view = serde_json::to_vec(&self.view).expect("JSON");
        fs::write(self.at("agent/agent.json"), view).expect("a file");
        self.spawn_program(program, &[])
    }

    fn spawn(&mut self, variables: &[(&str, &str)]) -> i32 {
        self.spawn_program(command(PROGRAM), variables)
    }

    fn spawn_program(&mut self, mut program: Command, variables: &[(&str, &str)]) -> i32 {
        let log = fs::File::create(self.at("agent.log")).expect("a log");
        let child = program
            .arg(format!("--input={}", self.at("agent").display()))
            .arg(format!("--door={}", self.at("door").display()))
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .expect("it starts");
        let pid = i32::try_from(child.id()).expect("a pid");
        self.agents.push(child);
        pid
    }

    /// From the agent's start to the last report.
    pub async fn run(&mut self, variables: &[(&str, &str)]) -> End {
        self.start(variables);
        self.wait_for_end().await
    }

    /// Waits for the agent and the bridge. Also checks the invariants of all requests and receipts.
    pub async fn wait_for_end(&mut self) -> End {
        let code = self.wait_for_agent().await;
        let bridge = wait_for_exit(&mut self.bridge).await;
        let bridge = bridge.unwrap_or_else(|| panic!("the bridge does not end: {}", self.logs()));
        assert_eq!(bridge, Some(0), "{}", self.logs());
        for request in self.model.requests() {
            ModelRequest::of(&request).check();
        }
        self.events();
        let ending = self.report().ending.expect("an ending");
        End { code, ending, log: self.log() }
    }

    /// Returns the agent's exit code.
    pub async fn wait_for_agent(&mut self) -> Option<i32> {
        let mut agent = self.agents.pop().expect("an agent");
        let code = wait_for_exit(&mut agent).await;
        if code.is_none() {
            self.agents.push(agent);
        }
        code.unwrap_or_else(|| panic!("the agent does not end: {}", self.logs()))
    }

    pub async fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let waited = timeout(TIMEOUT, async {
            while !condition() {
                sleep(POLL_INTERVAL).await;
            }
        });
        assert!(waited.await.is_ok(), "never: {what}; {}", self.logs());
    }

    /// Waits for this many requests to the model.
    pub async fn requests(&self, count: u64) -> Vec<ModelRequest> {
        self.wait_until("so many requests", || self.model.request_count() >= count).await;
        self.model_requests()
    }

    pub fn model_requests(&self) -> Vec<ModelRequest> {
        self.model.requests().iter().map(|it| ModelRequest::of(it)).collect()
    }

    pub fn last(&self) -> ModelRequest {
        self.model_requests().pop().expect("a request")
    }

    pub fn report(&self) -> StoredReport {
        let report = self.records.read_report(self.plan.run.uid.as_str());
        report.expect("readable").expect("a report")
    }

    /// Events of the receipts, verified against the plan and the last head.
    pub fn events(&self) -> Vec<Event> {
        // The report first, and only what it counts: more receipts may arrive while the run goes on.
        let report = self.report();
        let path = self.records.path(self.plan.run.uid.as_str());
        let bytes = fs::read(path.join(files::RECEIPTS)).expect("receipts");
        let counted = usize::try_from(report.receipts_bytes).expect("a size");
        assert!(report.ending.is_none() || bytes.len() == counted, "{report:?}");
        let text = std::str::from_utf8(&bytes[..counted]).expect("text");
        let verified = verify(text.lines(), &self.digest, Some(&report.head)).expect("a chain");
        verified.receipts.into_iter().map(|it| it.event).collect()
    }

    /// A line for each event, without model requests.
    pub fn receipts(&self) -> Vec<String> {
        let events = self.events();
        let events = events.iter().filter(|it| !matches!(it, Event::Model { .. }));
        events.map(short).collect()
    }

    pub fn transcript(&self) -> Vec<Value> {
        let path = self.records.path(self.plan.run.uid.as_str());
        let text = fs::read_to_string(path.join(files::TRANSCRIPT)).unwrap_or_default();
        let read = |line: &str| serde_json::from_str(line).expect("a line is JSON");
        text.lines().map(read).collect()
    }

    pub async fn pending_question(&self) -> PendingQuestion {
        self.wait_until("a question is pending", || !self.approvals.pending().is_empty()).await;
        self.approvals.pending().remove(0)
    }

    /// Votes on a question.
    pub fn vote(&self, pending: &PendingQuestion, says: Vote) {
        let by = Voter { name: "ada".to_owned(), groups: vec!["sre".to_owned()], is_author: false };
        let verdict = VoteRequest {
            run: self.plan.run.uid.as_str(),
            approval: &pending.request.approval,
            action: &pending.request.action,
            vote: says,
            by: &by,
            reason: None,
        };
        self.approvals.vote(&verdict).expect("it counts");
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.at("agent.log")).unwrap_or_default()
    }

    fn logs(&self) -> String {
        let bridge = fs::read_to_string(self.at("bridge.log")).unwrap_or_default();
        format!("agent:\n{}\nbridge:\n{bridge}", self.log())
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().chain([&mut self.bridge]) {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.serving.abort();
    }
}

/// Sends SIGTERM.
pub fn terminate(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a process");
    kill_process(pid, Signal::TERM).expect("a signal");
}

/// Peak memory of a process in bytes.
pub fn peak_bytes(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    number.expect("VmHWM").parse::<u64>().expect("a number") * 1024
}

/// `None` if the process does not exit in time.
async fn wait_for_exit(child: &mut Child) -> Option<Option<i32>> {
    let waited = timeout(TIMEOUT, async {
        loop {
            match child.try_wait().expect("a child") {
                Some(status) => return status.code(),
                None => sleep(POLL_INTERVAL).await,
            }
        }
    });
    waited.await.ok()
}

/// The stored plan with every tool allowed, no rate limits, and the test's model server.
fn permissive_plan(wire: WireFormat) -> RunPlan {
    let mut plan = RunPlan::read(PLAN).expect("a plan");
    for tool in &mut plan.tools {
        tool.gate = Gate::Allow;
        tool.limits.per_minute = UNLIMITED;
    }
    plan.limits.model_requests = UNLIMITED;
    plan.limits.model_requests_per_minute = UNLIMITED;
    let (provider, path, variable) = match wire {
        WireFormat::OpenAi => ("openai", "/v1/chat/completions", "OPENAI_API_KEY"),
        WireFormat::Anthropic => ("anthropic", "/v1/messages", "ANTHROPIC_API_KEY"),
    };
    plan.model.provider = provider.to_owned();
    plan.model.model = "test-model".to_owned();
    plan.model.wire = wire;
    plan.model.endpoint =
        Some(ModelEndpoint { encrypted: false, host: MODEL_HOST.to_owned(), port: 8080, path: path.to_owned() });
    let secret = plan.model.keys[0].secret.clone();
    plan.model.keys = vec![ModelKey { variable: EnvName::new(variable), secret }];
    for credential in &mut plan.credentials {
        let (host, port) = match credential.name.as_str() {
            "model" => (MODEL_HOST, 8080),
            "web" => (WEB_HOST, 80),
            _ => continue,
        };
        credential.reach.public = false;
        credential.reach.destinations = vec![Destination { host: host.to_owned(), port: Some(port) }];
    }
    plan.approval.approvers = None;
    plan.approval.required = 1;
    plan.deadlines.grace_seconds = 2;
    plan
}

/// Writes the bridge's inputs and returns the plan's digest.
fn write_inputs(plan: &RunPlan, directory: &Path) -> Digest {
    let bytes = plan.to_bytes().expect("bytes");
    for name in ["input", "door", "ipc", "agent", "workspace", "tmp"] {
        fs::create_dir(directory.join(name)).expect("a directory");
    }
    for pack in plan.parts.iter().filter_map(|part| part.role.pack()) {
        fs::create_dir(directory.join("ipc").join(pack)).expect("a volume");
    }
    let input = directory.join("input");
    fs::write(input.join("plan.json"), &bytes).expect("a file");
    fs::write(input.join("token"), signed(plan, RUN_CREDENTIAL)).expect("a file");
    for credential in &plan.credentials {
        let name = &credential.name;
        let path = input.join(format!("credential-{name}"));
        fs::write(path, signed(plan, name)).expect("a file");
    }
    RunPlan::digest_of(&bytes)
}

/// Writes the skills, and returns the agent's view with its directories below `directory`.
fn write_skills(plan: &RunPlan, directory: &Path) -> AgentView {
    let mut view = agent_view(plan);
    let moved = |path: &str| format!("{}{path}", directory.display());
    for skill in &mut view.skills {
        skill.directory = moved(&skill.directory);
        fs::create_dir_all(&skill.directory).expect("a directory");
        write_skill(skill);
    }
    view.roots =
        ["/workspace", "/tmp", "/skills"].map(|path| Root { path: moved(path), writable: path != "/skills" }).into();
    view
}

/// Writes a skill as if the run was planned with it.
fn write_skill(skill: &mut SkillPlan) {
    const TEXT: &[u8] = b"# Look\nFirst look, then act.\n";
    let directory = Path::new(&skill.directory);
    fs::write(directory.join(SkillPlan::TEXT_FILE), TEXT).expect("a text");
    let mut contents = SkillContents::new(TEXT);
    for file in &skill.files {
        let path = directory.join(file.path.as_str());
        fs::create_dir_all(path.parent().expect("it is below")).expect("a directory");
        let content = vec![b'#'; usize::try_from(file.bytes).expect("few bytes")];
        fs::write(path, &content).expect("a file");
        contents.add(&file.path, file.executable, &content);
    }
    if let SkillSource::Pack { digest, bytes, .. } = &mut skill.source {
        *bytes = TEXT.len() as u64;
        *digest = contents.digest().expect("it has JSON");
    }
}

fn keys() -> KeyRing {
    KeyRing::parse(&format!("k1 {}\n", "5a".repeat(KEY_BYTES))).expect("keys")
}

fn signed(plan: &RunPlan, name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let claims = Claims { run: plan.run.uid.as_str().to_owned(), name: name.to_owned(), expires: now.as_secs() + 3600 };
    let credential = keys().sign(&claims).expect("a credential");
    format!("{}:{}", credential.user, *credential.password)
}

fn short(event: &Event) -> String {
    match event {
        Event::Started { .. } => "started".to_owned(),
        Event::Called { tool, pack, decided, .. } => format!("{tool} {} {decided:?}", pack.as_deref().unwrap_or("-")),
        Event::Asked { .. } => "asked".to_owned(),
        Event::Answered { decided, by, .. } => {
            format!("answered {decided:?} by {}", by.as_deref().unwrap_or("-"))
        }
        Event::Acted { by, outcome, .. } => format!("{by:?} {outcome:?}"),
        Event::Model { request, status, .. } => format!("model {request} {status:?}"),
        Event::Foreign { pack, what, .. } => format!("foreign {what:?} of {pack}"),
        Event::Ended { outcome, .. } => format!("ended {outcome:?}"),
    }
}
