//! A run of manifests, with a given scheduler and agent program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;
use sympozium_api::names::{Digest, SkillPackName};
use sympozium_api::run_plan::{Destination, ModelEndpoint, Root};
use sympozium_api::{Agent, AgentRun, RunPlan, SkillPack, SympoziumPolicy};
use sympozium_gateway::run_api::local::{NoApprover, RecordStore, files};
use sympozium_gateway::run_api::{RunApi, Scheduler};
use sympozium_gateway::{Gateway, Settings};
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_ipc::receipt::{Event, verify};
use sympozium_ipc::run_api::{AgentEnd, RUN_CREDENTIAL};
use sympozium_plan::admit::{
    Agents, Candidates, Decision, Facts, Input, NO_RUNTIME_CLASSES, PackCandidates, PackObject, Services, admit,
};
use sympozium_plan::plan::{PlanSettings, agent_view, plan};
use sympozium_testkit::command;
use sympozium_testkit::model_server::ModelServer;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::bridge;
use crate::fakes::Internet;
use crate::model_requests::ModelRequest;

pub const RUNNER: &str = env!("CARGO_BIN_EXE_agent-runner");
const FLOOR: &str = include_str!("../../../../../config/policies/floor.yaml");
const NAMESPACE: &str = "default";
const UID: &str = "7c0e5d52-4b1f-4d0e-9a57-3f0f6a1c2b9d";
/// The model's address in the plan of [`planned`].
const MODEL: (&str, u16) = ("model.test", 8080);
const TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The plan of the run in these manifests, with the test's model endpoint.
pub fn planned(manifests: &str) -> RunPlan {
    let (mut run, mut agent, mut policy) = (None, None, None);
    let mut packs: Vec<SkillPack> = Vec::new();
    for document in manifests.split("---\n") {
        let object: Value = serde_saphyr::from_str(document).expect("YAML");
        match object["kind"].as_str() {
            Some("AgentRun") => run = Some(read::<AgentRun>(object)),
            Some("Agent") => agent = Some(read::<Agent>(object)),
            Some("SkillPack") => packs.push(read(object)),
            Some("SympoziumPolicy") => policy = Some(read::<SympoziumPolicy>(object)),
            other => panic!("no kind for a run: {other:?}"),
        }
    }
    let mut run = run.expect("a run");
    run.metadata.uid = Some(UID.to_owned());
    let floor: SympoziumPolicy = read(serde_saphyr::from_str(FLOOR).expect("YAML"));
    let candidate = |pack| PackCandidates { own: Some(PackObject { pack, author: None }), system: None };
    let name = |pack: &SkillPack| SkillPackName::new(pack.metadata.name.clone().expect("a name"));
    let packs: BTreeMap<_, _> = packs.iter().map(|it| (name(it), candidate(it))).collect();
    // The guide's gateway serves these.
    let settings = sympozium_plan::admit::Settings {
        services: Services { channels: true, schedules: true, subagents: true, ..Services::default() },
        ..sympozium_plan::admit::Settings::default()
    };
    let input = Input {
        run: &run,
        namespace: NAMESPACE,
        agents: Agents { agent: agent.as_ref(), instance: None, author: None },
        packs: &packs,
        policies: Candidates { own: policy.as_ref(), system: None },
        floor: Some(&floor.spec),
        models: Candidates::default(),
        author: None,
        runtime_classes: &NO_RUNTIME_CLASSES,
        facts: Facts::default(),
        settings: &settings,
    };
    let mut plan = match admit(&input) {
        Decision::Admitted(admitted) => {
            let planned = plan(&input, &admitted, &PlanSettings::default());
            planned.expect("a plan").plan
        }
        Decision::Denied(denied) => panic!("denied: {:?}", denied.violations),
    };
    let (host, port) = MODEL;
    let host = host.to_owned();
    for credential in plan.credentials.iter_mut().filter(|it| it.name == "model") {
        credential.reach.destinations = vec![Destination { host: host.clone(), port: Some(port) }];
    }
    plan.model.endpoint = Some(ModelEndpoint { encrypted: false, host, port, path: "/v1/chat/completions".to_owned() });
    plan
}

fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).expect("an object of its kind")
}

/// Everything of a run but its agent and its sidecars.
pub struct Run {
    pub plan: RunPlan,
    pub model: ModelServer,
    directory: TempDir,
    digest: Digest,
    records: RecordStore,
    bridge: Child,
    serving: JoinHandle<()>,
}

impl Run {
    /// Starts gateway and bridge, with `scheduler` behind them.
    pub fn new(plan: RunPlan, scheduler: impl Scheduler) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in ["input", "door", "ipc", "agent", "workspace"] {
            fs::create_dir(at(name)).expect("a directory");
        }
        for pack in plan.parts.iter().filter_map(|part| part.role.pack()) {
            fs::create_dir(at("ipc").join(pack)).expect("a volume");
        }
        let bytes = plan.to_bytes().expect("bytes");
        fs::write(at("input/plan.json"), &bytes).expect("a plan");
        fs::write(at("input/token"), signed(RUN_CREDENTIAL)).expect("a token");
        for credential in &plan.credentials {
            let file = at("input").join(format!("credential-{}", credential.name));
            fs::write(file, signed(&credential.name)).expect("a credential");
        }
        let internet = Internet::default();
        let model = ModelServer::start().expect("a model");
        internet.host(MODEL.0, model.address());
        let gateway = Gateway::new(keys(), Settings::default(), internet);
        gateway.plans().add(&plan).expect("a plan");
        let records = RecordStore::open(&at("records")).expect("records");
        let api = RunApi {
            authenticator: gateway.credentials(),
            question_handler: NoApprover,
            report_store: records.clone(),
            scheduler,
        };
        gateway.serve_run_api(api).expect("the first");
        let listener = UnixListener::bind(at("gateway.sock")).expect("a socket");
        let serving = tokio::spawn(async move {
            let gateway = Arc::clone(&gateway);
            let _ = gateway.serve_unix(listener).await;
        });
        let digest = RunPlan::digest_of(&bytes);
        let bridge = bridge::start(directory.path(), &digest);
        Self { plan, model, directory, digest, records, bridge, serving }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs this program as the agent and returns the answer.
    pub async fn answer(&mut self, program: impl AsRef<Path>) -> String {
        let mut view = agent_view(&self.plan);
        let workspace = self.at("workspace").display().to_string();
        view.roots = vec![Root { path: workspace, writable: true }];
        let view = serde_json::to_vec(&view).expect("JSON");
        fs::write(self.at("agent/agent.json"), view).expect("a file");
        let log = fs::File::create(self.at("agent.log")).expect("a log");
        let mut agent = command(program.as_ref())
            .arg(format!("--input={}", self.at("agent").display()))
            .arg(format!("--door={}", self.at("door").display()))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        let agent_code = wait_for_exit(&mut agent).await;
        let bridge = wait_for_exit(&mut self.bridge).await;
        assert_eq!((agent_code, bridge), (Some(0), Some(0)), "{}", self.logs());
        let report = self.records.read_report(UID).expect("readable");
        match report.and_then(|it| it.ending) {
            Some(AgentEnd::Answered { text }) => text,
            other => panic!("no answer: {other:?}\n{}", self.logs()),
        }
    }

    pub fn offered(&self) -> Vec<String> {
        let first = self.model_requests().remove(0);
        first.tools().into_iter().map(str::to_owned).collect()
    }

    pub fn result_texts(&self) -> Vec<String> {
        self.model_requests().pop().expect("a request").result_texts()
    }

    fn model_requests(&self) -> Vec<ModelRequest> {
        let requests = self.model.requests();
        requests.iter().map(|it| ModelRequest::of(it)).collect()
    }

    /// Events of calls and actions, verified against the plan and the last head.
    pub fn events(&self) -> Vec<Event> {
        let lines = fs::read_to_string(self.records.path(UID).join(files::RECEIPTS));
        let report = self.records.read_report(UID).expect("readable");
        let head = report.expect("a report").head;
        let verified = verify(lines.expect("receipts").lines(), &self.digest, Some(&head));
        let receipts = verified.expect("a chain").receipts.into_iter();
        let of_calls = |it: &Event| matches!(it, Event::Called { .. } | Event::Acted { .. });
        receipts.map(|it| it.event).filter(of_calls).collect()
    }

    pub fn receipts(&self) -> Vec<String> {
        self.events().iter().map(short).collect()
    }

    fn logs(&self) -> String {
        let log = |name| fs::read_to_string(self.at(name)).unwrap_or_default();
        let (agent, bridge) = (log("agent.log"), log("bridge.log"));
        format!("agent:\n{agent}\nbridge:\n{bridge}")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.bridge.kill();
        let _ = self.bridge.wait();
        self.serving.abort();
    }
}

fn short(event: &Event) -> String {
    match event {
        Event::Called { tool, decided, .. } => format!("{tool}: {decided:?}"),
        Event::Acted { by, outcome, .. } => format!("by {by:?}: {outcome:?}"),
        other => format!("{other:?}"),
    }
}

/// Waits for a process, and kills it after a timeout.
async fn wait_for_exit(child: &mut Child) -> Option<i32> {
    let waited = timeout(TIMEOUT, async {
        loop {
            match child.try_wait().expect("a child") {
                Some(status) => return status.code(),
                None => sleep(POLL_INTERVAL).await,
            }
        }
    });
    let code = waited.await.ok().flatten();
    let _ = child.kill();
    let _ = child.wait();
    code
}

fn keys() -> KeyRing {
    KeyRing::parse(&format!("k1 {}\n", "5a".repeat(KEY_BYTES))).expect("keys")
}

fn signed(name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let claims =
        Claims { run: UID.to_owned(), name: name.to_owned(), expires: now.expect("after 1970").as_secs() + 3600 };
    let credential = keys().sign(&claims).expect("a credential");
    format!("{}:{}", credential.user, *credential.password)
}
