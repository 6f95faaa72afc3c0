//! From the plan of a run to the Kubernetes objects that realise it.
//!
//! [`render`] decides nothing about powers: it writes what the plan contains, and refuses a plan that it cannot render.
//! What is the same for every run is here and not in plans: users and security contexts of containers, names and owners
//! of objects.
//!
//! Each file below has one concern: [`names`] the names of objects, `metadata` labels and owners, `container` and `pod`
//! what runs, `volumes` its mounts, `identities` its ServiceAccounts and bindings, `inputs` what it reads, `network`
//! what it reaches, `job` and `sandbox` the workload. `docs/kubernetes-objects.md` shows the result.

mod check;
mod container;
mod executor;
mod identities;
mod inputs;
mod job;
mod metadata;
pub mod names;
mod network;
mod object;
mod pod;
mod sandbox;
mod security;
mod settings;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeSet;

use sympozium_api::RunPlan;
use sympozium_api::agent_run::RunMode;
use sympozium_api::digest::CanonicalJsonError;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{IdentityName, MAX_BYTES, PartName, Workload};

use crate::plan::PackTexts;
use metadata::RenderContext;
use names::ObjectNames;

#[cfg(test)]
pub(crate) use container::{INIT_CPU, INIT_MEMORY};
pub use executor::{
    ExecutorProfile, ExecutorSettings, executor_arguments, floor_argument, limit_arguments, platform_argument,
};
pub use inputs::key;
pub use object::{Object, Sandbox};
pub use settings::TTL_SECONDS;
pub use settings::{GatewayAddress, RenderSettings, SandboxVersion};
#[cfg(test)]
pub(crate) use volumes::{EMPTY_DIR_SIZE, EXECUTOR_SIZE, TOKEN_SECONDS as BRIDGE_TOKEN_SECONDS};

/// Everything that exists for a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The digest of the plan, which every object carries.
    pub digest: Digest,
    /// The objects, in the order of their creation. Their grants are revoked in the opposite order.
    pub objects: Vec<RenderedObject>,
    /// The Secrets among them that must be filled. Containers that mount one wait until all its keys are there.
    pub pending_secrets: Vec<PendingSecret>,
}

/// One object, and when it is created.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedObject {
    /// When it is created.
    pub step: CreationStep,
    /// The object itself.
    pub object: Object,
}

/// When an object is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CreationStep {
    /// First: what confines the pod, and what it reads.
    Inputs,
    /// Second: the identities of parts, and their permissions.
    Grants,
    /// Third: what runs.
    Workload,
    /// When the agent has finished: what runs after it.
    AfterRun,
}

/// A Secret that is created empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSecret {
    /// The name of the Secret.
    pub secret: String,
    /// What the Secret is for.
    pub purpose: SecretPurpose,
    /// Every key that must be added; see [`key`].
    pub keys: Vec<String>,
}

/// What a Secret is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretPurpose {
    /// The files that a part reads at `/run/sympozium`.
    Input {
        /// The part that reads them.
        part: PartName,
    },
    /// The token of an identity.
    Token {
        /// The identity in the plan.
        identity: IdentityName,
        /// The ServiceAccount that the token is requested for.
        service_account: String,
        /// Lifetime of the token in seconds.
        seconds: u64,
    },
}

/// Why a plan cannot be rendered for Kubernetes.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A value cannot be serialised as JSON.
    #[error(transparent)]
    Json(#[from] CanonicalJsonError),
    /// The plan is too large to be stored.
    #[error("the plan has {0} bytes; {MAX_BYTES} can be stored")]
    TooLarge(usize),
    /// A run in server mode.
    #[error("runs in server mode are not made yet: they come with the web endpoint")]
    ServerMode,
    /// A claim on a warm pool.
    #[error("claims on warm pools are not made yet; leave out `agentSandbox.warmPoolRef`")]
    WarmPool,
    /// The plan needs agent-sandbox, which the cluster does not have.
    #[error(
        "the run asks for agent-sandbox, which this cluster does not have; install it, or leave out `agentSandbox`"
    )]
    NoAgentSandbox,
    /// The isolation floor has `pids` and the kubelets do not bound processes.
    #[error(
        "the run's floor asks for `pids`, and nothing says that the kubelets bound the processes of a pod; set `podPidsLimit` on every node and start the controller with `--pod-pids-limit`, or leave `pids` out of `minimumIsolation`"
    )]
    NoPidsLimit,
    /// The node's network or processes in a user namespace.
    #[error(
        "part `{part}` has the node's network or processes, and this installation starts every pod in a user namespace"
    )]
    HostAccessInUserNamespace {
        /// The part with access to the node.
        part: PartName,
    },
    /// Something that the agent must never have.
    #[error("the plan gives the agent {what}")]
    AgentCredential {
        /// What the agent would have.
        what: &'static str,
    },
    /// A part that every run has is missing.
    #[error("the plan has no part of role {role}")]
    NoPart {
        /// The role of the missing part.
        role: &'static str,
    },
    /// A name that is not valid in Kubernetes.
    #[error("the plan calls {what} `{name}`, which names nothing in Kubernetes")]
    InvalidName {
        /// The kind of thing that has the name.
        what: &'static str,
        /// The invalid name.
        name: String,
    },
    /// A reference to something that is not in the plan.
    #[error("the plan names {what} `{name}` and does not have it")]
    Missing {
        /// The kind of thing that is referenced.
        what: &'static str,
        /// The name in the reference.
        name: String,
    },
    /// Two objects have the same name.
    #[error("the plan makes two of {kind} `{name}`")]
    Duplicate {
        /// The kind of the objects.
        kind: &'static str,
        /// Their name.
        name: String,
    },
    /// The texts are not those that were planned.
    #[error("the texts of skill `{skill}` of pack `{pack}` are not those that were planned")]
    TextsChanged {
        /// The pack of the skill.
        pack: String,
        /// The skill whose texts differ.
        skill: String,
    },
    /// A volume of a type that this release cannot render completely.
    #[error("volume `{name}` is of a kind that this release does not know")]
    UnknownVolume {
        /// The name of the volume in the manifest.
        name: String,
    },
}

/// Renders a plan.
///
/// # Flow
///
/// Inputs, grants, workload, and what runs after it, each from its own section of the plan. Addresses come from
/// `settings`, because a plan does not contain them. `texts` are those that [`plan`](crate::plan::plan) returned, or
/// were fetched again; they must be the same.
///
/// # Guarantees
///
/// * Deterministic: equal arguments give equal objects.
/// * Names are unique per kind, and no object of another run has them: names contain the run's UID.
/// * Every namespaced object is owned by the run; every object has its labels and the plan's digest.
/// * The agent's container has no Secret, no token and no skill's files, or there is an error.
///
/// # Caller's duties
///
/// Create the objects in order, and never overwrite one that exists. Fill the [`skeletons`](Rendered::skeletons).
/// Create objects of [`Stage::AfterRun`] only when the agent has finished.
///
/// # Errors
///
/// When the plan needs what this release or the cluster does not have, or is inconsistent.
pub fn render(plan: &RunPlan, texts: &[PackTexts<'_>], settings: &RenderSettings) -> Result<Rendered, RenderError> {
    if plan.task.mode == RunMode::Server {
        return Err(RenderError::ServerMode);
    }
    if plan.isolation.floor.contains(&Guarantee::Pids) && !settings.pod_pids_limit {
        return Err(RenderError::NoPidsLimit);
    }
    check::check(plan)?;
    let bytes = plan.to_bytes()?;
    if bytes.len() > MAX_BYTES {
        return Err(RenderError::TooLarge(bytes.len()));
    }
    let digest = RunPlan::digest_of(&bytes);
    let names = ObjectNames::new(&plan.run);
    let run = RenderContext::new(plan, settings, &names, &digest);

    let mut output = Output::default();
    // First, so that it is in force when the pod starts.
    output.add(CreationStep::Inputs, network::network_policy(&run));
    inputs::render(&run, bytes, texts, &mut output)?;
    identities::render(&run, &mut output)?;
    let pod = pod::run_pod(&run, texts)?;
    let workload = match &plan.workload {
        Workload::Job => Object::from(job::run_job(&run, pod)),
        Workload::Sandbox { warm_pool: Some(_) } => return Err(RenderError::WarmPool),
        Workload::Sandbox { warm_pool: None } => sandbox::render(&run, pod)?.into(),
    };
    output.add(CreationStep::Workload, workload);
    if plan.parts.iter().any(|part| part.role.is_post_run()) {
        output.add(CreationStep::AfterRun, job::after_run_job(&run, pod::after_run_pod(&run, texts)?));
    }
    output.finish(digest)
}

/// The objects so far.
#[derive(Default)]
struct Output {
    objects: Vec<RenderedObject>,
    pending_secrets: Vec<PendingSecret>,
}

impl Output {
    fn add(&mut self, stage: CreationStep, object: impl Into<Object>) {
        self.objects.push(RenderedObject { step: stage, object: object.into() });
    }

    /// Checks that no object occurs twice: such a plan is inconsistent.
    fn finish(self, digest: Digest) -> Result<Rendered, RenderError> {
        let mut seen = BTreeSet::new();
        for RenderedObject { object, .. } in &self.objects {
            if !seen.insert((object.kind(), object.name())) {
                return Err(RenderError::Duplicate { kind: object.kind(), name: object.name().to_owned() });
            }
        }
        Ok(Rendered { digest, objects: self.objects, pending_secrets: self.pending_secrets })
    }
}

impl Rendered {
    /// The objects of one stage, in order.
    pub fn objects_of_step(&self, stage: CreationStep) -> impl Iterator<Item = &Object> {
        let items = self.objects.iter();
        items.filter(move |item| item.step == stage).map(|item| &item.object)
    }
}
