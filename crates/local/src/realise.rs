//! Realises a plan as processes, and tears everything down in the end.
//!
//! ```text
//! start ─► pre-run hooks ─► all sandboxes ─► agent starts ─► agent ends ─► bridge ends ─► skills end
//!       ─► post-run hooks ─► tear down ─► verify
//! ```
//!
//! Skills and bridge start as soon as their own sandbox is built; the agent when all sandboxes are, and meet the
//! isolation floor.

mod fallback;
mod handle;
mod inputs;
mod parts;
mod run_end;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sympozium_api::agent_run::{CostEstimate, TokenUsage};
use sympozium_gateway::run_api::RunApi;
use sympozium_gateway::run_api::local::{ApprovalQueue, NoScheduler, RecordStore};
use sympozium_gateway::settings::Loopback;
use sympozium_gateway::{Gateway, Settings};
use sympozium_ipc::run_api::{BridgePhase, Usage};
use sympozium_plan::prices::Prices;

use crate::control;
use crate::lazy_network::LazyNetwork;
use crate::leftovers;
use crate::prepared_run::PreparedRun;
use crate::record::{FORMAT, LocalRunRecord};
use crate::remove::remove_tree;
use crate::reporting::EmittingReporter;
use crate::sandbox_spec::GATEWAY_SOCKET;
use crate::state::{RunDirectory, RunLock, StateDirectory, replace_file};
use crate::volumes::{self, Volumes, make_directory};
use crate::{sandbox_spec, sockets};
use fallback::RunAssets;
pub use handle::RunHandle;
use sympozium_runs::Event;
use sympozium_runs::HintedError;
use sympozium_runs::RunEnd;
use sympozium_runs::time::{now_ms, to_timestamp};
use sympozium_runs::{EventLog, EventReader};

/// Characters of the task that are stored in the record.
const MAX_TASK_CHARS: usize = 2000;

/// A running run.
#[derive(Debug)]
pub struct LocalRun {
    pub directory: RunDirectory,
    pub handle: Arc<RunHandle>,
    /// Every event. The last one is [`Ended`](Event::Ended).
    pub events: EventReader,
}

/// Starts a run, which continues on this runtime until it is torn down; its last event reports that. If the start
/// fails, nothing of it is left.
pub async fn start(prepared: PreparedRun, state: &StateDirectory) -> Result<LocalRun, HintedError> {
    let directory = state.run_directory(prepared.plan.run.uid.as_str());
    let lock = directory.create().map_err(start_failure)?;
    match set_up(prepared, state, &directory, lock) {
        Ok(run) => Ok(run),
        Err(error) => {
            let _ = remove_tree(directory.path());
            Err(start_failure(error))
        }
    }
}

fn start_failure(error: anyhow::Error) -> HintedError {
    HintedError::new(
        error.context("the run cannot begin"),
        "the message says what is in the way; `sympozium doctor` looks at this machine",
    )
}

fn set_up(
    prepared: PreparedRun,
    state: &StateDirectory,
    directory: &RunDirectory,
    lock: RunLock,
) -> anyhow::Result<LocalRun> {
    raise_open_file_limit();
    let plan = &prepared.plan;
    let uid = plan.run.uid.as_str().to_owned();
    let live = directory.live_directory();
    replace_file(&directory.join("plan.json"), &prepared.plan_bytes)?;

    // The gateway, which is the only egress, and the credentials for it. Its key exists in this process only.
    let mut key = [0; sympozium_ipc::credential::KEY_BYTES];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let keys = sympozium_ipc::credential::KeyRing::single("local", key)?;
    let (files, proxies) = inputs::build_inputs(&prepared, &keys)?;
    let settings = Settings { loopback: Loopback::AsPlanned, ..Settings::default() };
    let gateway = Gateway::new(keys, settings, LazyNetwork::default());
    gateway.plans().add(plan)?;
    let (desk, events) = (ApprovalQueue::new(), EventLog::default());
    let watched = EmittingReporter::new(RecordStore::open(&state.runs_directory())?, events.clone());
    gateway.serve_run_api(RunApi {
        authenticator: gateway.credentials(),
        question_handler: desk.clone(),
        report_store: watched.clone(),
        scheduler: NoScheduler,
    })?;
    let gateway_directory = live.join("gateway");
    make_directory(&gateway_directory)?;
    let listener = sockets::listen(&gateway_directory, GATEWAY_SOCKET)?;

    // The volumes and sandboxes of all parts.
    let workspace = make_workspace(&prepared, directory)?;
    let claims = |claim: &str| volumes::make_claim(state, plan.run.namespace.as_str(), claim);
    let volumes = Volumes::create(
        &prepared,
        &volumes::VolumeInputs { live: &live, workspace: &workspace, claims: &claims, inputs: &files },
    )?;
    let program = std::env::current_exe().context("this program cannot be found")?;
    let has_files = (plan.parts.iter()).any(|part| part.mounts.iter().any(|it| it.volume.0 == "workspace"));
    let workspace = has_files.then_some(workspace);
    let means = RunAssets { prepared, volumes, live, gateway: gateway_directory, program, proxies, workspace };
    let prepared = &means.prepared;
    let plan = &prepared.plan;
    let mut sandboxes = Vec::new();
    for part in &plan.parts {
        let sandbox = means.sandbox_inputs().part_spec(part);
        let sandbox = sandbox.with_context(|| format!("part {} cannot be made", part.name))?;
        sandboxes.push((part.clone(), sandbox));
    }

    let record = new_record(prepared, means.workspace.clone());
    directory.write_record(&record)?;
    let control_listener = control::listen(directory)?;
    let handle = Arc::new(RunHandle::new(uid.clone(), desk, events.clone()));
    events.emit(Event::Planned {
        run: record.name.clone(),
        uid: uid.clone(),
        agent: record.agent.clone(),
        model: record.model.clone(),
        skills: record.skills.clone(),
        origins: record.origins.clone(),
        plan: prepared.plan_digest.clone(),
        directory: Some(directory.path().to_owned()),
        workspace: record.workspace.clone(),
    });
    for text in &prepared.warnings {
        events.emit(Event::Warning { text: text.clone() });
    }
    let reader = events.reader();
    let serving = {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.serve_unix(listener).await })
    };
    let controlled = tokio::spawn(control::serve(control_listener, Arc::clone(&handle)));
    let asking = tokio::spawn(handle::watch_questions(Arc::clone(&handle), prepared.approve));
    let run = ActiveRun {
        part_specs: sandboxes,
        directory: directory.clone(),
        record,
        events,
        handle: Arc::clone(&handle),
        reporter: watched,
        prices: prepared.prices.clone(),
        model: (plan.model.provider.clone(), plan.model.model.clone()),
        deadlines: plan.deadlines.clone(),
        grace_seconds: plan.deadlines.grace_seconds,
        is_subreaper: false,
    };
    let directory_of_run = directory.clone();
    tokio::spawn(async move {
        let mut run = run;
        let outcome = run.run_to_end(&means).await;
        drop(means);
        if run.is_subreaper {
            fallback::kill_orphans().await;
        }
        // First of all, revoke: from here on no credential of the run opens anything.
        gateway.plans().end(&uid);
        gateway.shut_down();
        for task in [serving.abort_handle(), asking.abort_handle()] {
            task.abort();
        }
        run.tear_down(outcome);
        // Followers read the last event; this is bounded.
        let _ = controlled.await;
        drop(lock);
    });
    Ok(LocalRun { directory: directory_of_run, handle, events: reader })
}

/// Raises the limit of open files to that of the parts, as far as the hard limit permits: building sandboxes takes
/// sockets.
fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.unwrap_or(sandbox_spec::MAX_OPEN_FILES);
    let wanted = most.min(sandbox_spec::MAX_OPEN_FILES);
    if now.current.is_some_and(|current| current < wanted) {
        let limit = Rlimit { current: Some(wanted), maximum: now.maximum };
        // Fewer are enough in most cases.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// The workspace: the user's directory, or a fresh one, which is kept after the run.
fn make_workspace(prepared: &PreparedRun, directory: &RunDirectory) -> anyhow::Result<PathBuf> {
    if let Some(workspace) = &prepared.workspace {
        return Ok(workspace.clone());
    }
    let workspace = directory.join("workspace");
    make_directory(&workspace)?;
    Ok(workspace)
}

fn new_record(prepared: &PreparedRun, workspace: Option<PathBuf>) -> LocalRunRecord {
    let plan = &prepared.plan;
    let task = match &plan.task.task {
        Some(task) => serde_json::to_value(task).unwrap_or_default(),
        None => serde_json::Value::Null,
    };
    let task = match task {
        serde_json::Value::String(text) => text,
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut skills: Vec<String> = prepared.skill_texts.keys().cloned().collect();
    for part in &plan.parts {
        if let Some(pack) = part.role.pack().filter(|pack| !skills.iter().any(|it| it == pack)) {
            skills.push(pack.to_owned());
        }
    }
    LocalRunRecord {
        format: FORMAT,
        uid: plan.run.uid.as_str().to_owned(),
        name: plan.run.name.as_str().to_owned(),
        namespace: plan.run.namespace.as_str().to_owned(),
        agent: plan.run.agent.as_str().to_owned(),
        task: task.chars().take(MAX_TASK_CHARS).collect(),
        model: format!("{}/{}", plan.model.provider, plan.model.model),
        skills,
        origins: prepared.origins.clone(),
        plan: prepared.plan_digest.clone(),
        pid: std::process::id(),
        started_ms: now_ms(),
        ended_ms: None,
        phase: BridgePhase::Starting,
        workspace,
        usage: Usage::default(),
        cost: None,
        outcome: None,
        isolation: std::collections::BTreeMap::new(),
        leftovers: None,
    }
}

struct ActiveRun {
    part_specs: Vec<(sympozium_api::run_plan::Part, sandbox_spec::PartSpec)>,
    directory: RunDirectory,
    record: LocalRunRecord,
    events: EventLog,
    handle: Arc<RunHandle>,
    reporter: EmittingReporter,
    prices: Option<Prices>,
    /// Provider and model, as the price table names them.
    model: (String, String),
    deadlines: sympozium_api::run_plan::Deadlines,
    grace_seconds: u64,
    /// Whether this process is a subreaper, and gets the orphans of killed sandboxes.
    is_subreaper: bool,
}

impl ActiveRun {
    /// Writes the record. A failure, such as a full disk, is a warning and does not end the run.
    fn write_record(&self) {
        if let Err(error) = self.directory.write_record(&self.record) {
            let text = format!("the run's record cannot be written: {error:#}");
            self.events.emit(Event::Warning { text });
        }
    }

    /// Tears down what is left of the run, verifies that, writes the record and emits the last event.
    fn tear_down(mut self, outcome: RunEnd) {
        let removed = remove_tree(&self.directory.live_directory());
        let _ = std::fs::remove_file(self.directory.control_socket());
        let mut leftovers = leftovers::find_leftovers(&self.directory);
        if let Err(error) = removed {
            leftovers.push(format!("{error:#}"));
        }
        let (_, usage) = *self.reporter.latest.borrow();
        self.record.phase = BridgePhase::Ended;
        self.record.usage = usage;
        let ended_ms = now_ms();
        self.record.ended_ms = Some(ended_ms);
        self.record.cost = self.estimate_cost(usage, ended_ms);
        self.record.outcome = Some(outcome.clone());
        self.record.leftovers = Some(leftovers.clone());
        self.write_record();
        self.events.emit(Event::Ended { outcome, usage, leftovers });
    }

    /// The cost of the usage, if the model has a price.
    fn estimate_cost(&self, usage: Usage, now_ms: u64) -> Option<CostEstimate> {
        let (provider, model) = &self.model;
        let tokens = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let usage = TokenUsage {
            input_tokens: tokens(usage.input_tokens),
            output_tokens: tokens(usage.output_tokens),
            ..TokenUsage::default()
        };
        let prices = self.prices.as_ref()?;
        prices.estimate(provider, model, &usage, Time(to_timestamp(now_ms)))
    }
}
