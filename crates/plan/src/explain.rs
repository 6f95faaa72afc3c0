//! What a run could touch: a plan in words and lists, for people who are responsible for it and for programs that check
//! it.
//!
//! [`explain`] turns a [`RunPlan`] into an [`Explanation`]: it contains every power of the plan, and nothing else.
//! [`Explanation::powers`] is the same as one flat list, and [`compare`] returns what a change adds to that list and
//! removes from it.
//!
//! An explanation repeats texts of manifests as they are. The caller must escape them before it prints them.

mod bounds;
mod credentials;
mod diff;
mod files;
mod grants;
mod network;
mod node;
mod overview;
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

pub use bounds::{ApprovalInfo, Isolation, Lifetime, Limits, PartLimits, ToolCallLimits};
pub use diff::{Change, Direction, Unchanged, compare};
pub use files::{Access, VolumeInfo, VolumeKind, VolumeMountInfo};
pub use grants::{Grant, IdentityInfo};
pub use network::{Network, PartNetwork, PodNetwork};
pub use overview::{Executor, ModelInfo, ModelKeyInfo, ObjectInfo, RunInfo, SkillInfo};
pub use parts::{MountInfo, PartInfo, VariableInfo, VariableSource};
pub use powers::{MAX_SINGLE_PERMISSIONS, Power, Section};
pub use remarks::Remark;
pub use secrets::{SecretInfo, SecretUse};
pub use summary::{Summary, format_seconds};
pub use tools::{ArgumentCheck, ToolHandlerKind, ToolInfo};

/// The value of the field `format` of an explanation. Fields may be added; none changes its meaning.
pub const FORMAT: &str = "sympozium.ai/explanation/v1";

/// What a run could touch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The format of this value: [`FORMAT`].
    pub format: &'static str,
    /// The run that is explained.
    pub run: RunInfo,
    /// The most important facts, in a few sentences.
    pub summary: Summary,
    /// The model, its address and which part holds its key.
    pub model: ModelInfo,
    /// Every tool, denied ones included.
    pub tools: Vec<ToolInfo>,
    /// The identities at the Kubernetes API, their permissions and the consequences.
    pub kubernetes: Vec<IdentityInfo>,
    /// What may be reached, by each part and by the whole pod.
    pub network: Network,
    /// Secrets that a part or the kubelet reads, and how.
    pub secrets: Vec<SecretInfo>,
    /// The volumes, and which parts mount them.
    pub files: Vec<VolumeInfo>,
    /// The parts: containers, or process trees on one machine.
    pub parts: Vec<PartInfo>,
    /// The skill texts that the agent reads.
    pub skills: Vec<SkillInfo>,
    /// Who approves questions.
    pub approval: ApprovalInfo,
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
        run: overview::run_info(plan),
        summary: summary::summarize(plan),
        model: overview::model_info(plan),
        tools: tools::all(plan),
        kubernetes: grants::all(plan),
        network: network::explain_network(plan),
        secrets: secrets::all(plan),
        files: files::all(plan),
        parts: parts::all(plan),
        skills: overview::skill_infos(plan),
        approval: bounds::approval(plan),
        limits: bounds::limits(plan),
        isolation: bounds::isolation(plan),
        lifetime: bounds::lifetime(plan),
        remarks: remarks::collect_remarks(plan),
        plan_digest: overview::plan_digest(plan),
    }
}
