//! Derives the run end from how the parts ended and what the bridge reported.

use sympozium_api::lifecycle::GateDefault;
use sympozium_api::run_plan::{Part, Role};
use sympozium_gateway::run_api::local::RecordStore;
use sympozium_ipc::run_api::AgentEnd;

use super::ActiveRun;
use super::parts::check_hook;
use crate::sandbox_spec::PartSpec;
use crate::supervise::{PartEnd, PartTermination};
use sympozium_runs::RunEnd;
use sympozium_runs::StopLevel;

#[derive(Debug, Default)]
pub struct PartEnds {
    agent: Option<PartEnd>,
    bridge: Option<PartEnd>,
    /// The first skill that failed before the bridge ended.
    skill: Option<PartEnd>,
    /// Whether the user ended the run.
    pub was_stopped: bool,
    /// Whether the remaining parts were killed.
    pub was_killed: bool,
    /// Whether they were killed because the run's time was up, by any clock.
    pub timed_out: bool,
}

impl PartEnds {
    pub fn add(&mut self, role: &Role, end: PartEnd) {
        match role {
            Role::Agent => self.agent = Some(end),
            Role::Bridge => self.bridge = Some(end),
            _ if !end.is_success()
                && !matches!(end.termination, PartTermination::Cancelled)
                && self.bridge.is_none() =>
            {
                self.skill.get_or_insert(end);
            }
            _ => {}
        }
    }

    pub const fn has_agent_ended(&self) -> bool {
        self.agent.is_some()
    }

    /// Whether the bridge has ended: from then on nothing can be dispatched.
    pub const fn has_bridge_ended(&self) -> bool {
        self.bridge.is_some()
    }
}

impl ActiveRun {
    pub(super) fn run_end(&self, ends: &PartEnds) -> RunEnd {
        let reported = RecordStore::open(self.directory.path().parent().unwrap_or(self.directory.path()))
            .and_then(|records| records.read_report(&self.record.uid));
        let ending = reported.ok().flatten().and_then(|report| report.ending);
        if let Some(AgentEnd::Answered { text }) = ending {
            return RunEnd::Succeeded { answer: text };
        }
        if ends.was_stopped {
            return RunEnd::Cancelled;
        }
        // A failed skill is why the agent was asked to end.
        if let Some(skill) = &ends.skill {
            return RunEnd::Failed { why: skill.describe() };
        }
        let of_part = |end: &Option<PartEnd>| end.as_ref().map(PartEnd::describe);
        match ending {
            Some(AgentEnd::Failed { error }) => RunEnd::Failed { why: error },
            Some(AgentEnd::TimedOut) => RunEnd::TimedOut,
            Some(AgentEnd::Crashed { known }) => RunEnd::Failed { why: of_part(&ends.agent).unwrap_or(known) },
            Some(AgentEnd::NeverCame) => RunEnd::Failed {
                why: of_part(&ends.agent).unwrap_or_else(|| "the agent did not connect to the bridge".to_owned()),
            },
            Some(AgentEnd::Stopped) => RunEnd::Failed { why: "the bridge was stopped by another process".to_owned() },
            Some(AgentEnd::Answered { .. }) | None if ends.timed_out => RunEnd::TimedOut,
            Some(AgentEnd::Answered { .. }) | None => RunEnd::Failed {
                why: (of_part(&ends.bridge).or_else(|| of_part(&ends.agent)))
                    .unwrap_or_else(|| "the cause is unknown".to_owned()),
            },
        }
    }

    /// Runs the post-run hooks, one after the other. A gate hook decides whether the answer is released.
    pub(super) async fn run_post_hooks(&mut self, hooks: Vec<(Part, PartSpec)>, outcome: RunEnd) -> RunEnd {
        let mut outcome = outcome;
        for (part, sandbox) in hooks {
            let default = part.role.gate_default();
            let gate = default.is_some();
            if *self.handle.watch_stop_level().borrow() == StopLevel::Now {
                // A gate that has not decided is closed.
                if gate && matches!(outcome, RunEnd::Succeeded { .. }) {
                    outcome = RunEnd::Cancelled;
                }
                continue;
            }
            let ended = self.run_hook(&part, sandbox).await;
            // A gate hook that exited by itself has decided. One that was killed or lost has not.
            let has_verdict = matches!(&ended, Ok(end) if matches!(end.termination, PartTermination::Ended(_)));
            let ended = ended.and_then(|end| check_hook(end).map_err(Into::into));
            if let Err(error) = ended {
                let failed = error.into_run_end();
                let why = match &failed {
                    RunEnd::Failed { why } | RunEnd::Refused { why } => why.clone(),
                    other => other.as_str().to_owned(),
                };
                let is_open = default == Some(GateDefault::Allow) && !has_verdict;
                if is_open && failed != RunEnd::Cancelled {
                    let text =
                        format!("the answer is released without a verdict, because of `gateDefault: allow`: {why}");
                    self.events.emit(sympozium_runs::Event::Warning { text });
                } else if gate && matches!(outcome, RunEnd::Succeeded { .. }) {
                    outcome = RunEnd::Failed { why: format!("the answer is withheld: {why}") };
                } else {
                    let text = format!("after the run: {why}");
                    self.events.emit(sympozium_runs::Event::Warning { text });
                }
            }
        }
        outcome
    }
}
