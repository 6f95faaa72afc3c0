//! Starts the parts of a run, supervises them, and ends them in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sympozium_api::run_plan::{Part, Role};
use sympozium_exec::executor::StartError;
use sympozium_exec::{Cancel, Executor};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::ActiveRun;
use super::assets::RunAssets;
use super::run_end::PartEnds;
use crate::sandbox_spec::PartSpec;
use crate::supervise::{self, BuiltSandbox, PartEnd, PartLog, PartTask, PartTermination, RestartPolicy, StartBarrier};
use sympozium_runs::Event;
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;

/// Time for the bridge to report the run end, beyond its grace period.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for skills to exit after the bridge.
const SKILLS_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

struct StartedPart {
    cancel: Cancel,
    executor: Weak<Executor>,
}

/// The parts that have not ended.
#[derive(Default)]
struct LiveParts {
    parts: BTreeMap<String, StartedPart>,
}

impl LiveParts {
    fn cancel(&self, part: &str) {
        if let Some(part) = self.parts.get(part) {
            part.cancel.cancel();
        }
    }

    /// Kills every part.
    fn kill(&self) {
        for part in self.parts.values() {
            part.cancel.cancel();
            if let Some(executor) = part.executor.upgrade() {
                executor.kill();
            }
        }
    }
}

/// Why a part was not started.
pub(super) enum PartStartError {
    /// User namespaces are blocked.
    NamespacesBlocked(StartError),
    /// The run ends because of it.
    RunEnded(RunEnd),
}

impl From<RunEnd> for PartStartError {
    fn from(outcome: RunEnd) -> Self {
        Self::RunEnded(outcome)
    }
}

impl PartStartError {
    /// The run end, if there is no fallback.
    pub(super) fn into_run_end(self) -> RunEnd {
        match self {
            Self::RunEnded(outcome) => outcome,
            Self::NamespacesBlocked(error) => RunEnd::Refused {
                why: match error.hint() {
                    Some(hint) => format!("{error}\nhint: {hint}"),
                    None => error.to_string(),
                },
            },
        }
    }
}

/// Turns the end of a hook into that of the run, unless the hook succeeded.
pub(super) fn check_hook(end: PartEnd) -> Result<(), RunEnd> {
    match end {
        end if end.is_success() => Ok(()),
        PartEnd { termination: PartTermination::Cancelled, .. } => Err(RunEnd::Cancelled),
        end => Err(RunEnd::Failed { why: format!("hook {}", end.describe()) }),
    }
}

impl ActiveRun {
    /// Runs everything, from the first hook to the end of the last part.
    pub(super) async fn run_to_end(&mut self, assets: &RunAssets) -> RunEnd {
        let sandboxes = std::mem::take(&mut self.part_specs);
        match self.run_in_sandboxes(sandboxes).await {
            Ok(outcome) => outcome,
            Err(error) => self.run_without_namespaces(assets, error).await,
        }
    }

    /// Runs everything in these sandboxes. An error assets that user namespaces are blocked; then nothing has run.
    pub(super) async fn run_in_sandboxes(&mut self, all: Vec<(Part, PartSpec)>) -> Result<RunEnd, StartError> {
        let (mut before, mut after, mut during) = (Vec::new(), Vec::new(), Vec::new());
        for (part, sandbox) in all {
            match part.role {
                Role::PreRun { .. } => before.push((part, sandbox)),
                Role::PostRun { .. } => after.push((part, sandbox)),
                _ => during.push((part, sandbox)),
            }
        }
        for (part, sandbox) in before {
            match self.run_required_hook(&part, sandbox).await {
                Ok(()) => {}
                Err(PartStartError::RunEnded(outcome)) => return Ok(outcome),
                Err(PartStartError::NamespacesBlocked(error)) => return Err(error),
            }
        }
        let outcome = self.run_parts(during).await?;
        Ok(self.run_post_hooks(after, outcome).await)
    }

    /// Runs a hook that must succeed.
    async fn run_required_hook(&mut self, part: &Part, sandbox: PartSpec) -> Result<(), PartStartError> {
        let end = self.run_hook(part, sandbox).await?;
        Ok(check_hook(end)?)
    }

    /// Runs a hook until it ends.
    pub(super) async fn run_hook(&mut self, part: &Part, sandbox: PartSpec) -> Result<PartEnd, PartStartError> {
        let name = part.name.0.clone();
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut living = LiveParts::default();
        let mut stopping = self.handle.watch_stop_level();
        // Consider a request from before this point, too.
        stopping.mark_changed();
        let built = self.spawn(part, sandbox, RestartPolicy::Never, None, &mut living, &ended)?;
        drop(ended);
        self.wait_for_sandbox(&name, built, &mut living).await?;
        loop {
            tokio::select! {
                end = ends.recv() => return end.ok_or_else(|| {
                    RunEnd::Failed { why: format!("the thread of hook {name} has ended") }.into()
                }),
                _ = stopping.changed() => match *stopping.borrow_and_update() {
                    StopLevel::None => {}
                    StopLevel::Gently => living.cancel(&name),
                    StopLevel::Now => living.kill(),
                },
            }
        }
    }

    /// Starts a part on its own thread.
    fn spawn(
        &self,
        part: &Part,
        sandbox: PartSpec,
        restart: RestartPolicy,
        gate: Option<Arc<StartBarrier>>,
        living: &mut LiveParts,
        ended: &mpsc::UnboundedSender<PartEnd>,
    ) -> Result<oneshot::Receiver<Result<BuiltSandbox, StartError>>, RunEnd> {
        let refused =
            |error: anyhow::Error| RunEnd::Refused { why: format!("cannot start part {}: {error:#}", part.name) };
        let cancel = Cancel::new().map_err(|error| refused(error.into()))?;
        let log = self.directory.logs_directory().join(format!("{}.log", part.name));
        let task = PartTask {
            part: part.name.0.clone(),
            spec: sandbox,
            restart,
            barrier: gate,
            cancel: cancel.clone(),
            log: PartLog::create(&log).map_err(refused)?,
        };
        let (built, when_built) = oneshot::channel();
        supervise::spawn_part(task, built, ended.clone()).map_err(|error| refused(error.into()))?;
        let executor = Weak::new();
        living.parts.insert(part.name.0.clone(), StartedPart { cancel, executor });
        Ok(when_built)
    }

    /// Waits until a sandbox is built, and emits its isolation report.
    async fn wait_for_sandbox(
        &mut self,
        part: &str,
        built: oneshot::Receiver<Result<BuiltSandbox, StartError>>,
        living: &mut LiveParts,
    ) -> Result<(), PartStartError> {
        let refused = |why: String| RunEnd::Refused { why: format!("cannot build the sandbox of part {part}: {why}") };
        let built = match built.await {
            Ok(Ok(built)) => built,
            // If another sandbox was built, namespaces are not blocked: this was a temporary shortage.
            Ok(Err(error)) if error.is_blocked_namespaces() && self.record.isolation.is_empty() => {
                return Err(PartStartError::NamespacesBlocked(error));
            }
            Ok(Err(error)) => {
                let hint = error.hint().map(|hint| format!("\nhint: {hint}"));
                let why = sympozium_program::error_chain(&error);
                return Err(refused(format!("{why}{}", hint.unwrap_or_default())).into());
            }
            Err(_) => return Err(refused("its thread has ended".to_owned()).into()),
        };
        if let Some(started) = living.parts.get_mut(part) {
            started.executor = built.executor;
        }
        let mut report = (*built.report).clone();
        if !report.profile.is_host() {
            report = report.without_pod();
        }
        self.record.isolation.insert(part.to_owned(), report.clone());
        self.events.emit(Event::Isolated { part: part.to_owned(), report: Box::new(report) });
        Ok(())
    }

    /// Runs agent, bridge and skills, from their sandboxes to the end of the last one.
    async fn run_parts(&mut self, parts: Vec<(Part, PartSpec)>) -> Result<RunEnd, StartError> {
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut living = LiveParts::default();
        let gate = Arc::new(StartBarrier::default());
        let mut built = Vec::new();
        let mut roles = BTreeMap::new();
        let (mut refused, mut blocked) = (None, None);
        // The agent last: it waits for all others, and its sandbox is the cheapest.
        let (agent, others): (Vec<_>, Vec<_>) = (parts.into_iter()).partition(|(part, _)| part.role == Role::Agent);
        for (part, sandbox) in others.into_iter().chain(agent) {
            let restart = match part.role {
                Role::Skill { .. } | Role::Sandbox => RestartPolicy::OnFailure,
                _ => RestartPolicy::Never,
            };
            let waits = (part.role == Role::Agent).then(|| Arc::clone(&gate));
            match self.spawn(&part, sandbox, restart, waits, &mut living, &ended) {
                Ok(when) => built.push((part.name.0.clone(), when)),
                Err(outcome) => {
                    refused.get_or_insert(outcome);
                }
            }
            roles.insert(part.name.0.clone(), part.role);
        }
        drop(ended);
        for (part, when) in built {
            if let Err(error) = self.wait_for_sandbox(&part, when, &mut living).await {
                living.parts.remove(&part);
                match error {
                    PartStartError::RunEnded(outcome) => refused = refused.or(Some(outcome)),
                    PartStartError::NamespacesBlocked(error) => blocked = blocked.or(Some(error)),
                }
            }
        }
        self.write_record();
        let complete = refused.is_none() && blocked.is_none();
        gate.release(complete);
        if !complete {
            living.kill();
        }
        let ends = self.supervise(&mut ends, living, &roles).await;
        match (refused, blocked) {
            (None, None) => Ok(self.run_end(&ends)),
            (None, Some(error)) if self.record.isolation.is_empty() => Err(error),
            (Some(outcome), _) => Ok(outcome),
            (None, Some(error)) => Ok(PartStartError::NamespacesBlocked(error).into_run_end()),
        }
    }

    /// Supervises until no part is left.
    async fn supervise(
        &mut self,
        ends: &mut mpsc::UnboundedReceiver<PartEnd>,
        mut living: LiveParts,
        roles: &BTreeMap<String, Role>,
    ) -> PartEnds {
        let mut all = PartEnds::default();
        let mut stopping = self.handle.watch_stop_level();
        let mut reports = self.reporter.latest.subscribe();
        let ceiling = Duration::from_secs(self.deadlines.ceiling_seconds);
        // When the remaining parts are killed.
        let mut deadline = Instant::now() + ceiling;
        let agent = part_name(roles, &Role::Agent);
        let bridge = part_name(roles, &Role::Bridge);
        // Consider a request from before this point, too.
        stopping.mark_changed();
        while !living.parts.is_empty() {
            tokio::select! {
                end = ends.recv() => {
                    let Some(end) = end else { break };
                    living.parts.remove(&end.part);
                    let role = roles.get(&end.part).cloned().unwrap_or(Role::Sandbox);
                    match role {
                        Role::Agent => {
                            deadline = deadline.min(Instant::now() + Duration::from_secs(self.deadlines.grace_seconds) + LAST_REPORT_TIMEOUT);
                        }
                        Role::Bridge => {
                            // Without the bridge the agent has no model, and skills get no commands.
                            living.cancel(&agent);
                            deadline = deadline.min(Instant::now() + SKILLS_EXIT_TIMEOUT);
                        }
                        _ if !end.is_success() && !all.has_bridge_ended() && !matches!(end.termination, PartTermination::Cancelled) => {
                            living.cancel(&agent);
                        }
                        _ => {}
                    }
                    all.add(&role, end);
                }
                _ = stopping.changed() => match *stopping.borrow_and_update() {
                    StopLevel::None => {}
                    // The bridge records the cancellation and closes the door, which ends the agent.
                    StopLevel::Gently => {
                        all.was_stopped = true;
                        living.cancel(&bridge);
                    }
                    StopLevel::Now => {
                        all.was_stopped = true;
                        living.kill();
                    }
                },
                _ = reports.changed() => {
                    let (phase, usage) = *reports.borrow_and_update();
                    (self.record.phase, self.record.usage) = (phase, usage);
                    self.write_record();
                }
                () = sleep_until(deadline) => {
                    living.kill();
                    all.timed_out |= !all.has_agent_ended() && !all.has_bridge_ended();
                    // What cannot be killed is reported as left over; waiting for it is bounded.
                    deadline = Instant::now() + LAST_REPORT_TIMEOUT;
                    if all.was_killed {
                        break;
                    }
                    all.was_killed = true;
                }
            }
        }
        all
    }
}

fn part_name(roles: &BTreeMap<String, Role>, role: &Role) -> String {
    let found = roles.iter().find(|(_, it)| *it == role);
    found.map(|(name, _)| name.clone()).unwrap_or_default()
}
