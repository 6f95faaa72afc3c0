//! From an admitted run to its plan: everything that will exist, and nothing else.
//!
//! [`plan`] only assembles what admission has allowed. Each file below builds one section of the plan; the sections are
//! documented with their types in [`sympozium_api::run_plan`].

mod agent_view;
mod limits;
mod model;
mod names;
mod network;
mod parts;
mod resolved;
mod skills;
#[cfg(test)]
pub(crate) mod tests;
mod tools;

use sympozium_api::RunPlan;
use sympozium_api::digest::CanonicalJsonError;
use sympozium_api::names::{Digest, ImageRef, NamespaceName, ObjectName, RunName, Uid};
use sympozium_api::run_plan::{
    ApprovalPlan, Format, IsolationPlan, MAX_BYTES, PlacementPlan, RunIdentity, SubagentPlan, TaskPlan, Workload,
};
use sympozium_api::sandbox::{SeccompProfile, SeccompProfileType};
use sympozium_api::skill_pack::Skill;

use crate::admit::{Admitted, Input, kernel_of_run};
use crate::policy::allowed::Allowed;
use crate::policy::isolation::SeccompFilter;

pub use agent_view::agent_view;
pub use limits::Limits;
pub use names::part_names;
pub use skills::skill_digest;

/// A plan, and the texts that it contains only by digest.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned<'a> {
    /// The plan itself.
    pub plan: RunPlan,
    /// The plan as it is stored: canonical JSON.
    pub bytes: Vec<u8>,
    /// The digest of `bytes`.
    pub digest: Digest,
    /// The skill texts of the packs in the plan.
    pub texts: Vec<PackTexts<'a>>,
}

/// The skill texts of one pack.
#[derive(Debug, Clone, PartialEq)]
pub struct PackTexts<'a> {
    /// The name of the pack.
    pub pack: String,
    /// Its skills, with their files.
    pub skills: &'a [Skill],
}

/// The settings of an installation for plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanSettings {
    /// The images of our own parts.
    pub images: Images,
    /// Limits and timeouts of runs.
    pub limits: Limits,
}

/// The images of our own parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// `agent-runner`
    pub agent: ImageRef,
    /// `ipc-bridge`
    pub bridge: ImageRef,
    /// `skill-sidecar`: the container `sandbox`, and the executor that is injected into other images.
    pub sidecar: ImageRef,
}

impl Default for PlanSettings {
    fn default() -> Self {
        let ours =
            |name: &str| ImageRef::new(format!("ghcr.io/sympozium-ai/sympozium/{name}:{}", env!("CARGO_PKG_VERSION")));
        Self {
            images: Images { agent: ours("agent-runner"), bridge: ours("ipc-bridge"), sidecar: ours("skill-sidecar") },
            limits: Limits::default(),
        }
    }
}

/// Why an admitted run cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The run is not stored yet, and names of its objects contain its UID.
    #[error("the run has no UID")]
    NoUid,
    /// The plan is too large to be stored.
    #[error("the plan has {0} bytes; {MAX_BYTES} can be stored")]
    TooLarge(usize),
    /// A value cannot be serialised as JSON.
    #[error(transparent)]
    Json(#[from] CanonicalJsonError),
}

impl PlanError {
    /// What the run's author can do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NoUid => "create the run first, or give its manifest a `metadata.uid`",
            Self::TooLarge(_) => "use fewer packs, or make prompts, variables and descriptions of tools shorter",
            Self::Json(_) => "remove numbers from schemas of tools that JSON does not have",
        }
    }
}

/// Plans a run.
///
/// # Flow
///
/// `admitted` is the result of [`crate::admit::admit`] for the same `input`. Every section is built from it; nothing is
/// decided again, and nothing is added.
///
/// # Guarantees
///
/// * Deterministic: equal arguments give equal bytes.
/// * No power beyond `admitted`: properties in `tests` compare every grant, host, Secret and gate with it.
/// * The agent's part has no Secret, no token and no network.
///
/// # Errors
///
/// When the run has no UID, or the plan is too large to be stored.
pub fn plan<'a>(input: &Input<'a>, admitted: &Admitted<'a>, settings: &PlanSettings) -> Result<Planned<'a>, PlanError> {
    let run = run_identity(input, admitted)?;
    let spec = &admitted.run.spec;
    let isolation = isolation(input, admitted);
    let model = model::plan(input, admitted);
    let built = parts::build(admitted, &model, settings, input);
    let deadlines = limits::deadlines(admitted, &settings.limits);
    let subagents = subagents(input, admitted);
    let plan = RunPlan {
        format: Format::V1,
        run,
        resolved: resolved::resolved_objects(input, admitted)?,
        task: TaskPlan {
            task: spec.task.clone(),
            system_prompt: spec.system_prompt.clone(),
            use_context: spec.use_context,
            mode: spec.mode,
        },
        workload: workload(admitted),
        isolation,
        identities: built.identities,
        credentials: network::credentials(admitted, &model, &built.packs),
        tools: tools::table(admitted, &built.packs, &subagents, input.settings.services),
        skills: skills::plan_skills(admitted)?,
        parts: built.parts,
        volumes: built.volumes,
        model,
        approval: approval(admitted),
        subagents,
        limits: settings.limits.run.clone(),
        deadlines,
        placement: PlacementPlan {
            node_selector: spec.model.as_ref().map(|model| model.node_selector.clone()).unwrap_or_default(),
            image_pull_secrets: spec.image_pull_secrets.clone(),
        },
        cleanup: spec.cleanup,
    };
    let bytes = plan.to_bytes()?;
    if bytes.len() > MAX_BYTES {
        return Err(PlanError::TooLarge(bytes.len()));
    }
    Ok(Planned { digest: RunPlan::digest_of(&bytes), plan, bytes, texts: skills::texts(admitted) })
}

fn run_identity(input: &Input<'_>, admitted: &Admitted<'_>) -> Result<RunIdentity, PlanError> {
    let metadata = &admitted.run.metadata;
    let uid = metadata.uid.as_deref().filter(|uid| !uid.is_empty());
    let spec = &admitted.run.spec;
    let agent = spec.agent().map(|agent| agent.as_str()).unwrap_or_default();
    let agent_kind = match input.agents.instance {
        Some(_) => "SympoziumInstance",
        None => "Agent",
    };
    Ok(RunIdentity {
        namespace: NamespaceName::new(input.namespace),
        name: RunName::new(metadata.name.clone().unwrap_or_default()),
        uid: Uid::new(uid.ok_or(PlanError::NoUid)?),
        agent_kind: agent_kind.to_owned(),
        agent: ObjectName::new(agent),
        agent_id: spec.agent_id.clone(),
        session_key: spec.session_key.clone(),
        parent: spec.parent.clone(),
    })
}

fn workload(admitted: &Admitted<'_>) -> Workload {
    let sandbox = admitted.run.spec.agent_sandbox.as_ref();
    match sandbox.filter(|sandbox| sandbox.enabled) {
        Some(sandbox) => Workload::Sandbox { warm_pool: sandbox.warm_pool_ref.clone() },
        None => Workload::Job,
    }
}

fn isolation(input: &Input<'_>, admitted: &Admitted<'_>) -> IsolationPlan {
    let spec = &admitted.run.spec;
    let isolation = &admitted.policy.isolation;
    let asked = spec
        .sandbox
        .as_ref()
        .filter(|sandbox| sandbox.enabled)
        .and_then(|sandbox| sandbox.security_context.as_ref())
        .and_then(|security_context| security_context.seccomp_profile.clone());
    let seccomp = asked.unwrap_or_else(|| match &isolation.seccomp {
        // Admission guarantees that at least one is left.
        Allowed::Only(filters) => filters.first().map_or_else(runtime_default, to_profile),
        Allowed::All => runtime_default(),
    });
    let sandbox = spec.agent_sandbox.as_ref().filter(|agent_sandbox| agent_sandbox.enabled);
    IsolationPlan {
        floor: isolation.guarantees.iter().copied().collect(),
        seccomp,
        runtime_class: sandbox.and_then(|sandbox| sandbox.runtime_class.clone()),
        kernel: kernel_of_run(input, &admitted.run),
    }
}

fn runtime_default() -> SeccompProfile {
    to_profile(&SeccompFilter::RuntimeDefault)
}

fn to_profile(filter: &SeccompFilter) -> SeccompProfile {
    match filter {
        SeccompFilter::RuntimeDefault => {
            SeccompProfile { type_: SeccompProfileType::RuntimeDefault, localhost_profile: None }
        }
        SeccompFilter::Localhost(file) => {
            SeccompProfile { type_: SeccompProfileType::Localhost, localhost_profile: Some(file.clone()) }
        }
    }
}

fn approval(admitted: &Admitted<'_>) -> ApprovalPlan {
    let approval = &admitted.policy.approval;
    ApprovalPlan {
        approvers: match &approval.approvers {
            Allowed::All => None,
            Allowed::Only(approvers) => Some(approvers.iter().cloned().collect()),
        },
        required: approval.required_votes,
        run_scope: approval.allow_run_scope,
        run_author: approval.allow_run_author,
    }
}

/// The levels below this run that policy and agent still allow.
fn subagents(input: &Input<'_>, admitted: &Admitted<'_>) -> SubagentPlan {
    let bounds = crate::admit::subagent_bounds(&admitted.policy, input.agents.spec());
    let parent = admitted.run.spec.parent.as_ref();
    let above = parent.map_or(0, |parent| u32::try_from(parent.spawn_depth).unwrap_or(u32::MAX));
    SubagentPlan {
        levels: bounds.depth.saturating_sub(above),
        concurrent: bounds.concurrent,
        children: bounds.children,
    }
}
