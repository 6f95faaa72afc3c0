//! The kinds of `sympozium.ai/v1alpha1`: what users write, as Rust types and as the CRDs that are generated from them.
//!
//! Data only: no I/O, no clock, no async, and no decisions. `sympozium-plan` decides whether something is allowed.
//!
//! * Each kind is a module: [`agent`] (also `SympoziumInstance`), [`agent_run`], [`skill_pack`], [`policy`],
//!   [`schedule`], [`model`], [`tool_approval`], [`run_record`]. What they share is in small modules of its own.
//! * The doc comment of a field is what `kubectl explain` prints.
//! * The types can read everything that the schemas accept. One object that cannot be read would stop every watch of
//!   its kind.
//! * [`builtin_tool`] is the table of tools that need no pack.
//! * [`provider`] is the table of model providers.
//! * [`run_plan`] is the plan of a run, which every backend realises. Hashes are computed in [`digest`].
//! * [`origin`] says where the policies and packs of a run came from.
//! * [`text`] makes foreign text safe to print, for all code that repeats it to people or a model.
//! * [`crds::all`] returns the CRDs as they are installed; `cargo xtask crds` writes them to `config/crds`.
//!
//! Start reading at [`agent_run`].

#![warn(missing_docs)]
#![expect(
    clippy::duplicated_attributes,
    reason = "every printer column has a `name` and a `type_`; the lint does not see that they are nested"
)]

pub mod agent;
pub mod agent_run;
pub mod builtin_tool;
pub mod channel;
pub mod crds;
mod defaults;
pub mod digest;
pub mod duration;
pub mod environment;
pub mod feature;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guarantee;
pub mod hex;
pub mod installation;
pub mod labels;
pub mod lifecycle;
pub mod limits;
pub mod model;
pub mod names;
pub mod network;
pub mod open;
pub mod origin;
pub mod policy;
pub mod provider;
pub mod quantity;
pub mod rbac;
pub mod run_plan;
pub mod run_record;
pub mod sandbox;
pub mod schedule;
mod schema;
pub mod skill_pack;
pub mod text;
pub mod tool_approval;

pub use agent::{Agent, AgentSpec, SympoziumInstance};
pub use agent_run::{AgentRun, AgentRunSpec};
pub use feature::Feature;
pub use guarantee::Guarantee;
pub use model::{Model, ModelSpec};
pub use policy::{SympoziumPolicy, SympoziumPolicySpec};
pub use run_plan::RunPlan;
pub use run_record::{RunRecord, RunRecordSpec};
pub use schedule::{SympoziumSchedule, SympoziumScheduleSpec};
pub use skill_pack::{SkillPack, SkillPackSpec};
pub use tool_approval::{ToolApproval, ToolApprovalSpec};
