//! Derives the run end from how the parts ended and what the bridge reported.

use sympozium_api::lifecycle::GateDefault;
use sympozium_api::run_plan::{Part, Role};
use sympozium_gateway::run_api::local::Records;
use sympozium_ipc::run_api::Ending;

use super::parts::judge;
use super::{Run, Stop};
use crate::local::record::Outcome;
use crate::local::supervise::{How, PartEnd};
use crate::local::worlds::Sandbox;

#[derive(Debug, Default)]
pub struct Ends {
    agent: Option<PartEnd>,
    bridge: Option<PartEnd>,
    /// The first skill that failed before the bridge ended.
    skill: Option<PartEnd>,
    /// Whether the user ended the run.
    pub stopped: bool,
    /// Whether the remaining parts were killed.
    pub killed: bool,
    /// Whether they were killed because the run's time was up, by any clock.
    pub out_of_time: bool,
}

impl Ends {
    pub fn add(&mut self, role: &Role, end: PartEnd) {
        match role {
            Role::Agent => self.agent = Some(end),
            Role::Bridge => self.bridge = Some(end),
            _ if !end.is_well() && !matches!(end.how, How::Cancelled) && self.bridge.is_none() => {
                self.skill.get_or_insert(end);
            }
            _ => {}
        }
    }

    pub const fn agent_is_over(&self) -> bool {
        self.agent.is_some()
    }

    /// Whether the bridge has ended: from then on nothing can be dispatched.
    pub const fn bridge_is_over(&self) -> bool {
        self.bridge.is_some()
    }
}

impl Run {
    pub(super) fn outcome(&self, ends: &Ends) -> Outcome {
        let reported = Records::open(self.directory.path().parent().unwrap_or(self.directory.path()))
            .and_then(|records| records.report(&self.record.uid));
        let ending = reported.ok().flatten().and_then(|report| report.ending);
        if let Some(Ending::Answered { text }) = ending {
            return Outcome::Succeeded { answer: text };
        }
        if ends.stopped {
            return Outcome::Cancelled;
        }
        // A failed skill is why the agent was asked to end.
        if let Some(skill) = &ends.skill {
            return Outcome::Failed { why: skill.describe() };
        }
        let of_part = |end: &Option<PartEnd>| end.as_ref().map(PartEnd::describe);
        match ending {
            Some(Ending::Failed { error }) => Outcome::Failed { why: error },
            Some(Ending::TimedOut) => Outcome::TimedOut,
            Some(Ending::Crashed { known }) => Outcome::Failed { why: of_part(&ends.agent).unwrap_or(known) },
            Some(Ending::NeverCame) => {
                Outcome::Failed { why: of_part(&ends.agent).unwrap_or_else(|| "the agent never came".to_owned()) }
            }
            Some(Ending::Stopped) => Outcome::Failed { why: "the bridge was ended from outside".to_owned() },
            Some(Ending::Answered { .. }) | None if ends.out_of_time => Outcome::TimedOut,
            Some(Ending::Answered { .. }) | None => Outcome::Failed {
                why: (of_part(&ends.bridge).or_else(|| of_part(&ends.agent)))
                    .unwrap_or_else(|| "nothing is known about its end".to_owned()),
            },
        }
    }

    /// Runs the post-run hooks, one after the other. A gate hook decides whether the answer is released.
    pub(super) async fn after(&mut self, hooks: Vec<(Part, Sandbox)>, outcome: Outcome) -> Outcome {
        let mut outcome = outcome;
        for (part, sandbox) in hooks {
            let default = part.role.gate();
            let gate = default.is_some();
            if *self.handle.stopping().borrow() == Stop::Now {
                // A gate that has not decided is closed.
                if gate && matches!(outcome, Outcome::Succeeded { .. }) {
                    outcome = Outcome::Cancelled;
                }
                continue;
            }
            let ended = self.hook_end(&part, sandbox).await;
            // A gate hook that exited by itself has decided. One that was killed or lost has not.
            let has_verdict = matches!(&ended, Ok(end) if matches!(end.how, How::Ended(_)));
            let ended = ended.and_then(|end| judge(end).map_err(Into::into));
            if let Err(unmade) = ended {
                let failed = unmade.into_outcome();
                let why = match &failed {
                    Outcome::Failed { why } | Outcome::Refused { why } => why.clone(),
                    other => other.word().to_owned(),
                };
                let is_open = default == Some(GateDefault::Allow) && !has_verdict;
                if is_open && failed != Outcome::Cancelled {
                    let text = format!("the answer goes out without a verdict, as `gateDefault: allow` says: {why}");
                    self.events.tell(crate::local::event::Event::Warning { text });
                } else if gate && matches!(outcome, Outcome::Succeeded { .. }) {
                    outcome = Outcome::Failed { why: format!("the answer is held back: {why}") };
                } else {
                    let text = format!("after the run: {why}");
                    self.events.tell(crate::local::event::Event::Warning { text });
                }
            }
        }
        outcome
    }
}
