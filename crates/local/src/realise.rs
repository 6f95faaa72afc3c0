//! Realises a plan as processes, and tears everything down in the end.
//!
//! ```text
//! start ─► pre-run hooks ─► all sandboxes ─► agent starts ─► agent ends ─► bridge ends ─► skills end
//!       ─► post-run hooks ─► tear down ─► verify
//! ```
//!
//! Skills and bridge start as soon as their own sandbox is built; the agent when all sandboxes are, and meet the
//! isolation floor.

mod assets;
mod fallback;
mod gateway;
mod handle;
mod inputs;
mod parts;
mod run_end;

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sympozium_api::agent_run::{CostEstimate, TokenUsage};
use sympozium_api::run_plan::{Deadlines, Part};
use sympozium_ipc::run_api::{BridgePhase, Usage};
use sympozium_plan::prices::Prices;
use tokio::net::UnixListener;

use crate::control;
use crate::leftovers;
use crate::prepared_run::PreparedRun;
use crate::record::LocalRunRecord;
use crate::remove::remove_tree;
use crate::reporting::EmittingReporter;
use crate::sandbox_spec::{MAX_OPEN_FILES, PartSpec};
use crate::state::{RunDirectory, RunLock, StateDirectory, replace_file};
use assets::RunAssets;
use gateway::RunGateway;
pub use handle::RunHandle;
use sympozium_runs::Event;
use sympozium_runs::HintedError;
use sympozium_runs::RunEnd;
use sympozium_runs::time::{now_ms, to_timestamp};
use sympozium_runs::{EventLog, EventReader};

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
        error.context("the run cannot start"),
        "the message names the cause; `sympozium doctor` checks this machine",
    )
}

/// Prepares everything, and spawns the task that realises the run.
fn set_up(
    prepared: PreparedRun,
    state: &StateDirectory,
    directory: &RunDirectory,
    lock: RunLock,
) -> anyhow::Result<LocalRun> {
    raise_open_file_limit();
    replace_file(&directory.join("plan.json"), &prepared.plan_bytes)?;
    let keys = gateway::new_keys()?;
    let inputs = inputs::build_inputs(&prepared, &keys)?;
    let events = EventLog::default();
    let gateway = RunGateway::open(&prepared.plan, keys, directory, state, &events)?;
    let assets = RunAssets::create(prepared, inputs, directory, state)?;
    let part_specs = assets.part_specs()?;
    let prepared = &assets.prepared;
    let plan = &prepared.plan;
    let record = LocalRunRecord::new(prepared, assets.workspace.clone());
    directory.write_record(&record)?;
    let control = control::listen(directory)?;
    let uid = plan.run.uid.as_str().to_owned();
    let handle = Arc::new(RunHandle::new(uid, gateway.approval_queue.clone(), events.clone()));
    emit_planned(&events, prepared, &record, directory);
    let reader = events.reader();
    let run = ActiveRun {
        part_specs,
        directory: directory.clone(),
        record,
        events,
        handle: Arc::clone(&handle),
        reporter: gateway.reporter.clone(),
        prices: prepared.prices.clone(),
        model: (plan.model.provider.clone(), plan.model.model.clone()),
        deadlines: plan.deadlines.clone(),
        is_subreaper: false,
    };
    tokio::spawn(run.realise(assets, gateway, control, lock));
    Ok(LocalRun { directory: directory.clone(), handle, events: reader })
}

/// Raises the limit of open files to that of the parts, as far as the hard limit permits: building sandboxes takes
/// sockets.
fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.unwrap_or(MAX_OPEN_FILES);
    let wanted = most.min(MAX_OPEN_FILES);
    if now.current.is_some_and(|current| current < wanted) {
        let limit = Rlimit { current: Some(wanted), maximum: now.maximum };
        // Fewer are enough in most cases.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn emit_planned(events: &EventLog, prepared: &PreparedRun, record: &LocalRunRecord, directory: &RunDirectory) {
    events.emit(Event::Planned {
        run: record.name.clone(),
        uid: record.uid.clone(),
        agent: record.agent.clone(),
        model: record.model.clone(),
        skills: record.skills.clone(),
        origins: record.origins.clone(),
        plan: record.plan.clone(),
        directory: Some(directory.path().to_owned()),
        workspace: record.workspace.clone(),
    });
    for text in &prepared.warnings {
        events.emit(Event::Warning { text: text.clone() });
    }
}

struct ActiveRun {
    part_specs: Vec<(Part, PartSpec)>,
    directory: RunDirectory,
    record: LocalRunRecord,
    events: EventLog,
    handle: Arc<RunHandle>,
    reporter: EmittingReporter,
    prices: Option<Prices>,
    /// Provider and model, as the price table names them.
    model: (String, String),
    deadlines: Deadlines,
    /// Whether this process is a subreaper, and gets the orphans of killed sandboxes.
    is_subreaper: bool,
}

impl ActiveRun {
    /// Runs all parts to the end of the last one, then revokes, tears down and verifies.
    async fn realise(mut self, assets: RunAssets, gateway: RunGateway, control: UnixListener, lock: RunLock) {
        let RunGateway { gateway, listener, .. } = gateway;
        let server = Arc::clone(&gateway);
        let serving = tokio::spawn(async move { server.serve_unix(listener).await });
        let control = tokio::spawn(control::serve(control, Arc::clone(&self.handle)));
        let questions = tokio::spawn(handle::watch_questions(Arc::clone(&self.handle), assets.prepared.approve));
        let outcome = self.run_to_end(&assets).await;
        drop(assets);
        if self.is_subreaper {
            fallback::kill_orphans().await;
        }
        // First of all, revoke: from here on no credential of the run opens anything.
        gateway.plans().end(&self.record.uid);
        gateway.shut_down();
        serving.abort();
        questions.abort();
        self.tear_down(outcome);
        // Followers read the last event; this is bounded.
        let _ = control.await;
        drop(lock);
    }

    /// Writes the record. A failure, such as a full disk, is a warning and does not end the run.
    fn write_record(&self) {
        if let Err(error) = self.directory.write_record(&self.record) {
            let text = format!("cannot write the record of the run: {error:#}");
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
