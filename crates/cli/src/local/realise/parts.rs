//! Starts the parts of a run, supervises them, and ends them in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sympozium_api::run_plan::{Part, Role};
use sympozium_exec::executor::StartError;
use sympozium_exec::{Cancel, Executor};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::blocked::Means;
use super::ending::Ends;
use super::{Run, Stop};
use crate::local::event::Event;
use crate::local::record::Outcome;
use crate::local::supervise::{self, Built, Gate, How, PartEnd, PartLog, Restart, Task};
use crate::local::worlds::Sandbox;

/// Time for the bridge to report the run end, beyond its grace period.
const LAST_REPORT: Duration = Duration::from_secs(15);
/// Time for skills to exit after the bridge.
const SKILLS_END: Duration = Duration::from_secs(3);

struct Started {
    cancel: Cancel,
    executor: Weak<Executor>,
}

/// The parts that have not ended.
#[derive(Default)]
struct Living {
    parts: BTreeMap<String, Started>,
}

impl Living {
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
pub(super) enum Unmade {
    /// User namespaces are blocked.
    Blocked(StartError),
    /// The run ends because of it.
    Over(Outcome),
}

impl From<Outcome> for Unmade {
    fn from(outcome: Outcome) -> Self {
        Self::Over(outcome)
    }
}

impl Unmade {
    /// The run end, if there is no fallback.
    pub(super) fn into_outcome(self) -> Outcome {
        match self {
            Self::Over(outcome) => outcome,
            Self::Blocked(error) => Outcome::Refused {
                why: match error.hint() {
                    Some(hint) => format!("{error}\nhint: {hint}"),
                    None => error.to_string(),
                },
            },
        }
    }
}

/// Turns the end of a hook into that of the run, unless the hook succeeded.
pub(super) fn judge(end: PartEnd) -> Result<(), Outcome> {
    match end {
        end if end.is_well() => Ok(()),
        PartEnd { how: How::Cancelled, .. } => Err(Outcome::Cancelled),
        end => Err(Outcome::Failed { why: format!("hook {}", end.describe()) }),
    }
}

impl Run {
    /// Runs everything, from the first hook to the end of the last part.
    pub(super) async fn live(&mut self, means: &Means) -> Outcome {
        let sandboxes = std::mem::take(&mut self.sandboxes);
        match self.attempt(sandboxes).await {
            Ok(outcome) => outcome,
            Err(error) => self.without_namespaces(means, error).await,
        }
    }

    /// Runs everything in these sandboxes. An error means that user namespaces are blocked; then nothing has run.
    pub(super) async fn attempt(&mut self, all: Vec<(Part, Sandbox)>) -> Result<Outcome, StartError> {
        let (mut before, mut after, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        for (part, sandbox) in all {
            match part.role {
                Role::PreRun { .. } => before.push((part, sandbox)),
                Role::PostRun { .. } => after.push((part, sandbox)),
                _ => beside.push((part, sandbox)),
            }
        }
        for (part, sandbox) in before {
            match self.hook(&part, sandbox).await {
                Ok(()) => {}
                Err(Unmade::Over(outcome)) => return Ok(outcome),
                Err(Unmade::Blocked(error)) => return Err(error),
            }
        }
        let outcome = self.together(beside).await?;
        Ok(self.after(after, outcome).await)
    }

    /// Runs a hook that must succeed.
    async fn hook(&mut self, part: &Part, sandbox: Sandbox) -> Result<(), Unmade> {
        let end = self.hook_end(part, sandbox).await?;
        Ok(judge(end)?)
    }

    /// Runs a hook until it ends.
    pub(super) async fn hook_end(&mut self, part: &Part, sandbox: Sandbox) -> Result<PartEnd, Unmade> {
        let name = part.name.0.clone();
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut living = Living::default();
        let mut stopping = self.handle.stopping();
        // Consider a request from before this point, too.
        stopping.mark_changed();
        let built = self.spawn(part, sandbox, Restart::Never, None, &mut living, &ended)?;
        drop(ended);
        self.built(&name, built, &mut living).await?;
        loop {
            tokio::select! {
                end = ends.recv() => return end.ok_or_else(|| {
                    Outcome::Failed { why: format!("hook {name} was lost") }.into()
                }),
                _ = stopping.changed() => match *stopping.borrow_and_update() {
                    Stop::No => {}
                    Stop::Gently => living.cancel(&name),
                    Stop::Now => living.kill(),
                },
            }
        }
    }

    /// Starts a part on its own thread.
    fn spawn(
        &self,
        part: &Part,
        sandbox: Sandbox,
        restart: Restart,
        gate: Option<Arc<Gate>>,
        living: &mut Living,
        ended: &mpsc::UnboundedSender<PartEnd>,
    ) -> Result<oneshot::Receiver<Result<Built, StartError>>, Outcome> {
        let refused =
            |error: anyhow::Error| Outcome::Refused { why: format!("{} cannot be started: {error:#}", part.name) };
        let cancel = Cancel::new().map_err(|error| refused(error.into()))?;
        let log = self.directory.logs().join(format!("{}.log", part.name));
        let task = Task {
            part: part.name.0.clone(),
            sandbox,
            restart,
            gate,
            cancel: cancel.clone(),
            log: PartLog::create(&log).map_err(refused)?,
        };
        let (built, when_built) = oneshot::channel();
        supervise::start(task, built, ended.clone()).map_err(|error| refused(error.into()))?;
        let executor = Weak::new();
        living.parts.insert(part.name.0.clone(), Started { cancel, executor });
        Ok(when_built)
    }

    /// Waits until a sandbox is built, and emits its isolation report.
    async fn built(
        &mut self,
        part: &str,
        built: oneshot::Receiver<Result<Built, StartError>>,
        living: &mut Living,
    ) -> Result<(), Unmade> {
        let refused = |why: String| Outcome::Refused { why: format!("the sandbox of {part} cannot be made: {why}") };
        let built = match built.await {
            Ok(Ok(built)) => built,
            // If another sandbox was built, namespaces are not blocked: this was a temporary shortage.
            Ok(Err(error)) if error.is_blocked_namespaces() && self.record.isolation.is_empty() => {
                return Err(Unmade::Blocked(error));
            }
            Ok(Err(error)) => {
                let hint = error.hint().map(|hint| format!("\nhint: {hint}"));
                let why = sympozium_program::chain(&error);
                return Err(refused(format!("{why}{}", hint.unwrap_or_default())).into());
            }
            Err(_) => return Err(refused("whoever makes it is gone".to_owned()).into()),
        };
        if let Some(started) = living.parts.get_mut(part) {
            started.executor = built.executor;
        }
        let mut report = (*built.report).clone();
        if !report.profile.is_host() {
            report = report.outside_of_a_pod();
        }
        self.record.isolation.insert(part.to_owned(), report.clone());
        self.events.tell(Event::Isolated { part: part.to_owned(), report: Box::new(report) });
        Ok(())
    }

    /// Runs agent, bridge and skills, from their sandboxes to the end of the last one.
    async fn together(&mut self, parts: Vec<(Part, Sandbox)>) -> Result<Outcome, StartError> {
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut living = Living::default();
        let gate = Arc::new(Gate::default());
        let mut built = Vec::new();
        let mut roles = BTreeMap::new();
        let (mut refused, mut blocked) = (None, None);
        // The agent last: it waits for all others, and its sandbox is the cheapest.
        let (agent, others): (Vec<_>, Vec<_>) = (parts.into_iter()).partition(|(part, _)| part.role == Role::Agent);
        for (part, sandbox) in others.into_iter().chain(agent) {
            let restart = match part.role {
                Role::Skill { .. } | Role::Sandbox => Restart::OnFailure,
                _ => Restart::Never,
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
            if let Err(unmade) = self.built(&part, when, &mut living).await {
                living.parts.remove(&part);
                match unmade {
                    Unmade::Over(outcome) => refused = refused.or(Some(outcome)),
                    Unmade::Blocked(error) => blocked = blocked.or(Some(error)),
                }
            }
        }
        self.write_record();
        let complete = refused.is_none() && blocked.is_none();
        gate.open(complete);
        if !complete {
            living.kill();
        }
        let ends = self.supervise(&mut ends, living, &roles).await;
        match (refused, blocked) {
            (None, None) => Ok(self.outcome(&ends)),
            (None, Some(error)) if self.record.isolation.is_empty() => Err(error),
            (Some(outcome), _) => Ok(outcome),
            (None, Some(error)) => Ok(Unmade::Blocked(error).into_outcome()),
        }
    }

    /// Supervises until no part is left.
    async fn supervise(
        &mut self,
        ends: &mut mpsc::UnboundedReceiver<PartEnd>,
        mut living: Living,
        roles: &BTreeMap<String, Role>,
    ) -> Ends {
        let mut all = Ends::default();
        let mut stopping = self.handle.stopping();
        let mut reports = self.watched.now.subscribe();
        let ceiling = Duration::from_secs(self.deadlines.ceiling_seconds);
        // When the remaining parts are killed.
        let mut deadline = Instant::now() + ceiling;
        let agent = name_of(roles, &Role::Agent);
        let bridge = name_of(roles, &Role::Bridge);
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
                            deadline = deadline.min(Instant::now() + Duration::from_secs(self.grace) + LAST_REPORT);
                        }
                        Role::Bridge => {
                            // Without the bridge the agent has no model, and skills get no commands.
                            living.cancel(&agent);
                            deadline = deadline.min(Instant::now() + SKILLS_END);
                        }
                        _ if !end.is_well() && !all.bridge_is_over() && !matches!(end.how, How::Cancelled) => {
                            living.cancel(&agent);
                        }
                        _ => {}
                    }
                    all.add(&role, end);
                }
                _ = stopping.changed() => match *stopping.borrow_and_update() {
                    Stop::No => {}
                    // The bridge records the cancellation and closes the door, which ends the agent.
                    Stop::Gently => {
                        all.stopped = true;
                        living.cancel(&bridge);
                    }
                    Stop::Now => {
                        all.stopped = true;
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
                    all.out_of_time |= !all.agent_is_over() && !all.bridge_is_over();
                    // What cannot be killed is reported as left over; waiting for it is bounded.
                    deadline = Instant::now() + LAST_REPORT;
                    if all.killed {
                        break;
                    }
                    all.killed = true;
                }
            }
        }
        all
    }
}

fn name_of(roles: &BTreeMap<String, Role>, role: &Role) -> String {
    let found = roles.iter().find(|(_, it)| *it == role);
    found.map(|(name, _)| name.clone()).unwrap_or_default()
}
