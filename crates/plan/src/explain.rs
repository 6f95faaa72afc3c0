//! What could this run touch? A plan in words and lists, for people who must answer for it and for programs that check it.
//!
//! [`explain`] turns a [`RunPlan`] into an [`Explanation`]: every power of the plan is in it, and nothing that is not in the
//! plan. [`Explanation::powers`] is the same as one flat list, and [`compare`] says what a change adds to that list and
//! takes from it.
//!
//! An explanation repeats texts of manifests as they are. Who prints it makes them harmless.

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

/// What the field `format` of an explanation says. Fields may be added to it; none changes its meaning.
pub const FORMAT: &str = "sympozium.ai/explanation/v1";

/// What a run could touch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// How this is written: [`FORMAT`].
    pub format: &'static str,
    /// Which run.
    pub run: RunAbout,
    /// The most important, in a few sentences.
    pub summary: Summary,
    /// The model, where it answers and who holds its key.
    pub model: ModelAbout,
    /// Every tool, those that are denied included.
    pub tools: Vec<ToolAbout>,
    /// Who may do what at the Kubernetes API, and what follows from it.
    pub kubernetes: Vec<IdentityAbout>,
    /// What may be reached, part by part and by the whole pod.
    pub network: Network,
    /// Secrets that somebody in the run sees, and how.
    pub secrets: Vec<SecretAbout>,
    /// What is mounted, by whom.
    pub files: Vec<VolumeAbout>,
    /// The containers, or process trees.
    pub parts: Vec<PartAbout>,
    /// The texts that the agent reads.
    pub skills: Vec<SkillAbout>,
    /// Who decides where a person is asked.
    pub approval: ApprovalAbout,
    /// How much of everything.
    pub limits: Limits,
    /// What must be enforced, or the run is refused.
    pub isolation: Isolation,
    /// How long the run, its rights and its traces last.
    pub lifetime: Lifetime,
    /// What one should know that no table says.
    pub remarks: Vec<Remark>,
    /// The digest of the plan without what is different in every run: its UID, and the objects that it was made from. Two
    /// plans with the same one give the same powers.
    pub plan_digest: String,
}

/// Explains a plan.
///
/// # Guarantees
///
/// * Every mount, destination, rule, Secret and tool of the plan is in the explanation.
/// * It depends on the plan only. No panic, whatever the plan holds.
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
