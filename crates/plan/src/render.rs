//! From the plan of a run to the objects of Kubernetes that realise it.
//!
//! [`render`] decides nothing about powers: it writes down what the plan says, and refuses a plan that it cannot write
//! down. What is the same for every run stands here and not in plans: who a container runs as, what holds it in, how
//! objects are named and who owns them.
//!
//! Each file below has one kind of thing: [`names`] what objects are called, `metadata` labels and owners, `container`
//! and `pod` what runs, `volumes` what it mounts, `identities` who it is, `inputs` what it reads, `network` what it
//! reaches, `job` and `sandbox` what starts it. `docs/kubernetes-objects.md` shows the result.

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
use sympozium_api::digest::NoJson;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{IdentityName, MAX_BYTES, PartName, Workload};

use crate::plan::PackTexts;
use metadata::Run;
use names::Names;

#[cfg(test)]
pub(crate) use container::{OWN_CPU, OWN_MEMORY};
pub use executor::{ExecutorPlace, ExecutorProfile, executor_arguments, floor_words, limit_arguments, platform_words};
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
    /// The objects, in the order in which they are made. What they grant is taken back in the opposite one.
    pub objects: Vec<Item>,
    /// The Secrets among them that have to be filled. Containers that read one wait until all its keys are there.
    pub skeletons: Vec<Skeleton>,
}

/// One object, and when it is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// When.
    pub stage: Stage,
    /// What.
    pub object: Object,
}

/// When an object is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// First: what holds the pod in, and what it reads.
    Inputs,
    /// Then: who parts are, and what they may do.
    Grants,
    /// Then: what runs.
    Workload,
    /// When the agent has ended: what runs after it.
    AfterRun,
}

/// A Secret that is made empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skeleton {
    /// Its name.
    pub secret: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Every key that it must get; see [`key`].
    pub keys: Vec<String>,
}

/// What a Secret is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// What a part reads at `/run/sympozium`.
    Input {
        /// The part.
        part: PartName,
    },
    /// The token of an identity.
    Token {
        /// Whose.
        identity: IdentityName,
        /// The ServiceAccount to ask for it.
        service_account: String,
        /// How long it is good for.
        seconds: u64,
    },
}

/// Why a plan cannot be written down for Kubernetes.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A value that has no JSON.
    #[error(transparent)]
    Json(#[from] NoJson),
    /// Too long to be stored.
    #[error("the plan has {0} bytes; {MAX_BYTES} can be stored")]
    TooLarge(usize),
    /// A run that waits for more than its task.
    #[error("runs in server mode are not made yet: they come with the web endpoint")]
    ServerMode,
    /// A claim on a running sandbox.
    #[error("claims on warm pools are not made yet; leave out `agentSandbox.warmPoolRef`")]
    WarmPool,
    /// A Sandbox where nothing makes one run.
    #[error(
        "the run asks for agent-sandbox, which this cluster does not have; install it, or leave out `agentSandbox`"
    )]
    NoAgentSandbox,
    /// A floor with `pids` where nothing bounds processes.
    #[error(
        "the run's floor asks for `pids`, and nothing says that the kubelets bound the processes of a pod; set `podPidsLimit` on every node and start the controller with `--pod-pids-limit`, or leave `pids` out of `minimumIsolation`"
    )]
    NoPidsLimit,
    /// The node's network or processes in a user namespace.
    #[error(
        "part `{part}` has the node's network or processes, and this installation starts every pod in a user namespace"
    )]
    HostAccessInUserNamespace {
        /// The part.
        part: PartName,
    },
    /// Something that the agent must never have.
    #[error("the plan gives the agent {what}")]
    AgentCredential {
        /// What.
        what: &'static str,
    },
    /// A part that every run has.
    #[error("the plan has no part of role {role}")]
    NoPart {
        /// Which.
        role: &'static str,
    },
    /// A name that is none in Kubernetes.
    #[error("the plan calls {what} `{name}`, which names nothing in Kubernetes")]
    Name {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name of something that is not in the plan.
    #[error("the plan names {what} `{name}` and does not have it")]
    Missing {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Two of one name.
    #[error("the plan makes two of {kind} `{name}`")]
    Twice {
        /// Of what.
        kind: &'static str,
        /// Which name.
        name: String,
    },
    /// Texts that are not those that were planned.
    #[error("the texts of skill `{skill}` of pack `{pack}` are not those that were planned")]
    OtherTexts {
        /// The pack.
        pack: String,
        /// The skill.
        skill: String,
    },
    /// A volume of a kind that this release cannot pass on whole.
    #[error("volume `{name}` is of a kind that this release does not know")]
    UnknownVolume {
        /// The volume, as its owner calls it.
        name: String,
    },
}

/// Renders a plan.
///
/// # Flow
///
/// Inputs, grants, workload, and what runs after it, each from its own section of the plan. Addresses come from
/// `settings`, because a plan does not know them. `texts` are those that [`plan`](crate::plan::plan)
/// gave, or were fetched again; they must be the same.
///
/// # Guarantees
///
/// * Deterministic: equal arguments give equal objects.
/// * No two objects of one kind have one name, and no object of another run has it: names contain the run's UID.
/// * Every namespaced object is owned by the run; every object has its labels and the plan's digest.
/// * The agent's container has no Secret, no token and no skill's files, or there is an error.
///
/// # Caller's duties
///
/// Create the objects in order, never over one that is there; fill the [`skeletons`](Rendered::skeletons); leave what is
/// [`Stage::AfterRun`] until the agent has ended.
///
/// # Errors
///
/// When the plan asks for what this release or the cluster does not have, or does not hold together.
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
    let names = Names::new(&plan.run);
    let run = Run::new(plan, settings, &names, &digest);

    let mut output = Output::default();
    // First, so that it holds when the pod starts.
    output.add(Stage::Inputs, network::policy(&run));
    inputs::render(&run, bytes, texts, &mut output)?;
    identities::render(&run, &mut output)?;
    let pod = pod::during(&run, texts)?;
    let workload = match &plan.workload {
        Workload::Job => Object::from(job::run(&run, pod)),
        Workload::Sandbox { warm_pool: Some(_) } => return Err(RenderError::WarmPool),
        Workload::Sandbox { warm_pool: None } => sandbox::render(&run, pod)?.into(),
    };
    output.add(Stage::Workload, workload);
    if plan.parts.iter().any(|part| part.role.is_after()) {
        output.add(Stage::AfterRun, job::after(&run, pod::afterwards(&run, texts)?));
    }
    output.finish(digest)
}

/// What there is so far.
#[derive(Default)]
struct Output {
    objects: Vec<Item>,
    skeletons: Vec<Skeleton>,
}

impl Output {
    fn add(&mut self, stage: Stage, object: impl Into<Object>) {
        self.objects.push(Item { stage, object: object.into() });
    }

    /// An object that would be made twice is a plan that does not hold together.
    fn finish(self, digest: Digest) -> Result<Rendered, RenderError> {
        let mut seen = BTreeSet::new();
        for Item { object, .. } in &self.objects {
            if !seen.insert((object.kind(), object.name())) {
                return Err(RenderError::Twice { kind: object.kind(), name: object.name().to_owned() });
            }
        }
        Ok(Rendered { digest, objects: self.objects, skeletons: self.skeletons })
    }
}

impl Rendered {
    /// The objects of one stage, in order.
    pub fn stage(&self, stage: Stage) -> impl Iterator<Item = &Object> {
        let items = self.objects.iter();
        items.filter(move |item| item.stage == stage).map(|item| &item.object)
    }
}
