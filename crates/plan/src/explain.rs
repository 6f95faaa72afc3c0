//! What a run could touch: a plan in words and lists, for people who are responsible for it and for programs that check
//! it.
//!
//! [`explain`] turns a [`RunPlan`] into an [`Explanation`]: it contains every power of the plan, and nothing else.
//! [`Explanation::powers`] is the same as one flat list, and [`compare`] returns what a change adds to that list and
//! removes from it.
//!
//! An explanation repeats texts of manifests as they are. The caller must escape them before it prints them.

mod about;
mod bounds;
mod difference;
mod files;
mod grants;
mod held;
mod network;
mod node;
mod parts;
mod powers;
mod remarks;
mod secrets;
mod summary;
#[cfg(test)]
mod tests;
mod tools;

use serde::Serialize;
use sympozium_api::run_plan::RunPlan;

pub use about::{Executor, ModelAbout, ModelKeyAbout, ObjectAbout, RunAbout, SkillAbout};
pub use bounds::{ApprovalAbout, Isolation, Lifetime, Limits, PartLimits, ToolCallLimits};
pub use difference::{Change, Direction, Kept, compare};
pub use files::{Access, MountedBy, VolumeAbout, VolumeKind};
pub use grants::{Grant, IdentityAbout};
pub use network::{Network, PartNetwork, PodNetwork};
pub use parts::{MountAbout, PartAbout, VariableAbout, VariableSource};
pub use powers::{MAX_SINGLE_RIGHTS, Power, Section};
pub use remarks::Remark;
pub use secrets::{SecretAbout, SecretSeen};
pub use summary::{Summary, duration};
pub use tools::{ActsBy, Arguments, ToolAbout};

/// The value of the field `format` of an explanation. Fields may be added; none changes its meaning.
pub const FORMAT: &str = "sympozium.ai/explanation/v1";

/// What a run could touch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The format of this value: [`FORMAT`].
    pub format: &'static str,
    /// The run that is explained.
    pub run: RunAbout,
    /// The most important facts, in a few sentences.
    pub summary: Summary,
    /// The model, its address and which part holds its key.
    pub model: ModelAbout,
    /// Every tool, denied ones included.
    pub tools: Vec<ToolAbout>,
    /// The identities at the Kubernetes API, their permissions and the consequences.
    pub kubernetes: Vec<IdentityAbout>,
    /// What may be reached, by each part and by the whole pod.
    pub network: Network,
    /// Secrets that a part or the kubelet reads, and how.
    pub secrets: Vec<SecretAbout>,
    /// The volumes, and which parts mount them.
    pub files: Vec<VolumeAbout>,
    /// The parts: containers, or process trees on one machine.
    pub parts: Vec<PartAbout>,
    /// The skill texts that the agent reads.
    pub skills: Vec<SkillAbout>,
    /// Who approves questions.
    pub approval: ApprovalAbout,
    /// Limits of the run, its parts and its tools.
    pub limits: Limits,
    /// What must be enforced, or the run is refused.
    pub isolation: Isolation,
    /// How long the run, its grants and its data last.
    pub lifetime: Lifetime,
    /// Caveats that no table shows.
    pub remarks: Vec<Remark>,
    /// The digest of the plan without what differs between all runs: its UID, and the objects that it was made from.
    /// Two plans with the same digest give the same powers.
    pub plan_digest: String,
}

/// Explains a plan.
///
/// # Guarantees
///
/// * Every mount, destination, rule, Secret and tool of the plan is in the explanation.
/// * It depends only on the plan. Never panics, whatever the plan contains.
pub fn explain(plan: &RunPlan) -> Explanation {
    Explanation {
        format: FORMAT,
        run: about::run(plan),
        summary: summary::of(plan),
        model: about::model(plan),
        tools: tools::all(plan),
        kubernetes: grants::all(plan),
        network: network::of(plan),
        secrets: secrets::all(plan),
        files: files::all(plan),
        parts: parts::all(plan),
        skills: about::skills(plan),
        approval: bounds::approval(plan),
        limits: bounds::limits(plan),
        isolation: bounds::isolation(plan),
        lifetime: bounds::lifetime(plan),
        remarks: remarks::of(plan),
        plan_digest: about::plan_digest(plan),
    }
}
