//! The parts of a plan that the run API needs. Plans are large and runs are many, so the rest is dropped.

use sympozium_api::RunPlan;
use sympozium_api::digest::CanonicalJsonError;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{ApprovalPlan, Gate, Role, RunIdentity, SubagentPlan};
use sympozium_ipc::receipt::Actor;

/// What a plan says about reports, questions and requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFacts {
    pub run: RunIdentity,
    /// The digest of the plan, which the chain of receipts starts from.
    pub plan: Digest,
    /// Who may approve where a gate is `ask`.
    pub approval: ApprovalPlan,
    /// Maximum number of seconds that one question waits.
    pub approval_seconds: u64,
    /// Subruns that this run may start.
    pub subagents: SubagentPlan,
    /// Maximum number of bytes of the stored transcript.
    pub transcript_bytes: u64,
    tools: Vec<ToolFact>,
    parts: Vec<PartFact>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PartFact {
    name: String,
    actor: Actor,
    pack: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ToolFact {
    name: String,
    pack: Option<String>,
    gate: Gate,
}

impl RunFacts {
    /// # Errors
    ///
    /// Returns an error if the plan cannot be serialised, which does not happen to plans of `sympozium-plan`.
    pub fn from_plan(plan: &RunPlan) -> Result<Self, CanonicalJsonError> {
        let tools = plan.tools.iter().map(|tool| ToolFact {
            name: tool.name.clone(),
            pack: tool.pack.clone(),
            gate: tool.gate,
        });
        let parts = plan.parts.iter().filter_map(|part| {
            let actor = match part.role {
                Role::Agent => Actor::Agent,
                Role::Bridge => Actor::Bridge,
                Role::Skill { .. } | Role::Sandbox => Actor::Skill,
                Role::PreRun { .. } | Role::PostRun { .. } => return None,
            };
            Some(PartFact { name: part.name.0.clone(), actor, pack: part.role.pack().map(str::to_owned) })
        });
        Ok(Self {
            run: plan.run.clone(),
            plan: RunPlan::digest_of(&plan.to_bytes()?),
            approval: plan.approval.clone(),
            approval_seconds: plan.deadlines.approval_seconds,
            subagents: plan.subagents.clone(),
            transcript_bytes: plan.limits.transcript_bytes,
            tools: tools.collect(),
            parts: parts.collect(),
        })
    }

    pub fn uid(&self) -> &str {
        self.run.uid.as_str()
    }

    /// The part that acts: the agent, the bridge, or the sidecar of a pack.
    pub fn part(&self, actor: Actor, pack: Option<&str>) -> Option<&str> {
        let is_it = |part: &&PartFact| part.actor == actor && (actor != Actor::Skill || part.pack.as_deref() == pack);
        self.parts.iter().find(is_it).map(|part| part.name.as_str())
    }

    /// The gate of a tool, if the plan has it.
    pub fn gate(&self, name: &str, pack: Option<&str>) -> Option<Gate> {
        let is_it = |tool: &&ToolFact| tool.name == name && tool.pack.as_deref() == pack;
        self.tools.iter().find(is_it).map(|tool| tool.gate)
    }
}

#[cfg(test)]
impl RunFacts {
    /// From the plan that every release must read, changed for a test.
    pub(crate) fn example(change: impl FnOnce(&mut RunPlan)) -> std::sync::Arc<Self> {
        const PLAN: &[u8] = include_bytes!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
        let mut plan = RunPlan::read(PLAN.trim_ascii()).unwrap();
        change(&mut plan);
        std::sync::Arc::new(Self::from_plan(&plan).unwrap())
    }
}
