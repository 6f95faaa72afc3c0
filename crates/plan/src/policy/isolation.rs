//! Required isolation of runs, and their maximum resources.

use std::collections::BTreeSet;
use std::fmt;

use sympozium_api::Guarantee;
use sympozium_api::policy::SandboxPolicy;
use sympozium_api::quantity::Quantity;
use sympozium_api::sandbox::{SeccompProfile, SeccompProfileType};

use super::allowed::{Allowed, Pattern};
use crate::quantity::{ExactQuantity, InvalidQuantity};

/// Required isolation of a run, and its maximum resources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IsolationBounds {
    /// Whether a run needs a sandbox of either kind.
    pub sandbox_required: bool,
    /// Whether a run needs agent-sandbox.
    pub agent_sandbox_required: bool,
    /// The RuntimeClasses that may be used.
    pub runtime_classes: Allowed<String>,
    /// The seccomp filters that may be used.
    pub seccomp: Allowed<SeccompFilter>,
    /// Maximum CPU of a whole run.
    pub max_cpu: Option<ExactQuantity>,
    /// Maximum memory of a whole run.
    pub max_memory: Option<ExactQuantity>,
    /// The guarantees that must be enforced around every command.
    pub guarantees: BTreeSet<Guarantee>,
}

/// A seccomp profile that filters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeccompFilter {
    /// The filter of the container runtime.
    RuntimeDefault,
    /// A profile file on the node.
    Localhost(String),
}

impl SeccompFilter {
    /// The filter of a profile; `None` for `Unconfined`, for `Localhost` without a valid file name, and for
    /// `RuntimeDefault` with one.
    pub fn from_profile(profile: &SeccompProfile) -> Option<Self> {
        match profile.type_ {
            SeccompProfileType::RuntimeDefault => profile.localhost_profile.is_none().then_some(Self::RuntimeDefault),
            SeccompProfileType::Localhost => profile
                .localhost_profile
                .as_ref()
                .filter(|file| crate::path::is_plain_relative(file))
                .map(|file| Self::Localhost(file.clone())),
            SeccompProfileType::Unconfined => None,
        }
    }
}

impl Pattern for SeccompFilter {
    fn covers(&self, other: &Self) -> bool {
        self == other
    }
}

impl fmt::Display for SeccompFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RuntimeDefault => f.write_str("RuntimeDefault"),
            Self::Localhost(file) => write!(f, "Localhost {file}"),
        }
    }
}

impl IsolationBounds {
    /// No requirements and no maximum.
    pub fn unrestricted() -> Self {
        Self {
            sandbox_required: false,
            agent_sandbox_required: false,
            runtime_classes: Allowed::All,
            seccomp: Allowed::All,
            max_cpu: None,
            max_memory: None,
            guarantees: BTreeSet::new(),
        }
    }

    /// From the section of a policy, with the invalid quantities in it. An invalid quantity allows nothing.
    pub fn from_policy(policy: &SandboxPolicy) -> (Self, Vec<(&'static str, InvalidQuantity)>) {
        let mut invalid = Vec::new();
        let mut amount = |field, quantity: &Option<Quantity>| {
            let parsed = ExactQuantity::parse(&quantity.as_ref()?.text());
            Some(parsed.unwrap_or_else(|error| {
                invalid.push((field, error));
                ExactQuantity::ZERO
            }))
        };
        let max_cpu = amount("maxCPU", &policy.max_cpu);
        let max_memory = amount("maxMemory", &policy.max_memory);
        let agent_sandbox = policy.agent_sandbox_policy.as_ref();
        let classes = agent_sandbox.and_then(|agent_sandbox| agent_sandbox.allowed_runtime_classes.as_ref());
        let classes = Allowed::from_list(classes.map(|classes| classes.iter().map(|name| name.as_str().to_owned())));
        let guarantees: BTreeSet<Guarantee> = policy.minimum_isolation.iter().copied().collect();
        let isolation = Self {
            sandbox_required: policy.required,
            agent_sandbox_required: agent_sandbox.is_some_and(|agent_sandbox| agent_sandbox.required),
            runtime_classes: classes,
            // An invalid profile allows no filter: nothing runs unconfined.
            seccomp: Allowed::from_list(policy.seccomp_profile.as_ref().map(SeccompFilter::from_profile)),
            max_cpu,
            max_memory,
            guarantees,
        };
        (isolation, invalid)
    }

    /// The requirements of both.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        let least = |left: Option<ExactQuantity>, right| [left, right].into_iter().flatten().min();
        Self {
            sandbox_required: self.sandbox_required || other.sandbox_required,
            agent_sandbox_required: self.agent_sandbox_required || other.agent_sandbox_required,
            runtime_classes: self.runtime_classes.meet(&other.runtime_classes),
            seccomp: self.seccomp.meet(&other.seccomp),
            max_cpu: least(self.max_cpu, other.max_cpu),
            max_memory: least(self.max_memory, other.max_memory),
            guarantees: self.guarantees.union(&other.guarantees).copied().collect(),
        }
    }
}
