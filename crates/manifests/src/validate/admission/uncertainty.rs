//! Denials that a policy which is not among the files could lift.
//!
//! A policy does not only forbid: it can also grant what a run does not have by default, such as access to the node, or
//! set defaults for what a run leaves out. If the policy or the floor is unknown, such a denial is uncertain.

use sympozium_api::text::quote;
use sympozium_api::{AgentRun, SympoziumPolicy};
use sympozium_plan::admit::{Agents, Candidates, Violation, referenced_policy};

/// Rules that deny what no policy has allowed, and that the policy of the agent can allow.
const LIFTED_BY_POLICY: &[&str] = &[
    "egress-not-allowed",
    "host-access",
    "host-namespace-shared",
    "host-path",
    "host-power",
    "model-endpoint",
    "model-service-plain",
    "pack-ambiguous",
    "rbac-escalation",
    "seccomp-localhost",
];

/// The same for the floor, which only bounds everything else.
const LIFTED_BY_FLOOR: &[&str] =
    &["cluster-rbac-consent", "host-access-namespace", "policy-ambiguous", "rbac-author", "rbac-unlisted"];

/// Rules about the RuntimeClass of a run in agent-sandbox that names none. A policy may have a default, which counts
/// here if the policy is known; the installation may have one too, which is in no file.
const LIFTED_BY_DEFAULT_CLASS: &[&str] = &["isolation-kernel", "runtime-class-missing"];

/// What is known about the policy floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KnownFloor<'a> {
    Known(&'a SympoziumPolicy),
    /// There is none.
    Absent,
    /// It may be in the cluster.
    Unknown,
}

impl<'a> KnownFloor<'a> {
    pub fn policy(self) -> Option<&'a SympoziumPolicy> {
        match self {
            Self::Known(policy) => Some(policy),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// Which of the objects that decide about one run are unknown.
#[derive(Debug)]
pub struct UnknownObjects {
    policy: Option<UnknownPolicy>,
    floor: bool,
    /// Whether a default would choose the RuntimeClass.
    class_is_default: bool,
}

#[derive(Debug)]
enum UnknownPolicy {
    /// The agent is missing, so it is unknown which policy it names.
    OfUnknownAgent,
    Named(String),
}

/// The message about a denial that is uncertain.
pub struct UncertainDenial {
    pub message: String,
    pub hint: String,
}

impl UnknownObjects {
    /// For objects that no policy decides about.
    pub fn none() -> Self {
        Self { policy: None, floor: false, class_is_default: false }
    }

    pub fn new<K>(run: &AgentRun, agents: Agents<'_>, policies: Candidates<'_, K>, floor: KnownFloor<'_>) -> Self {
        let agent = agents.spec();
        let is_found = policies.own.is_some() || policies.system.is_some();
        let policy = match (agent, referenced_policy(agents)) {
            (None, _) => Some(UnknownPolicy::OfUnknownAgent),
            (Some(_), Some(name)) if !is_found => Some(UnknownPolicy::Named(name.as_str().to_owned())),
            (Some(_), _) => None,
        };
        let of_run = run.spec.agent_sandbox.as_ref();
        let of_run = of_run.map(|sandbox| sandbox.enabled && sandbox.runtime_class.is_none());
        let of_agent = agent.and_then(|spec| spec.agents.default.agent_sandbox.as_ref());
        let of_agent = of_agent.map(|sandbox| sandbox.enabled && sandbox.runtime_class.is_none());
        Self { policy, floor: floor == KnownFloor::Unknown, class_is_default: of_run.or(of_agent).unwrap_or(false) }
    }

    /// What could lift the denial, if anything could.
    pub fn uncertain_denial(&self, reason: &Violation) -> Option<UncertainDenial> {
        let (who, how) = match &self.policy {
            _ if self.class_is_default && LIFTED_BY_DEFAULT_CLASS.contains(&reason.rule) => (
                "a default RuntimeClass of the cluster, which is not in the files,".to_owned(),
                "set `agentSandbox.runtimeClass`",
            ),
            Some(UnknownPolicy::Named(name)) if LIFTED_BY_POLICY.contains(&reason.rule) => {
                (format!("policy {}, which is not among the files,", quote(name)), "add the file of the policy")
            }
            Some(UnknownPolicy::OfUnknownAgent) if LIFTED_BY_POLICY.contains(&reason.rule) => (
                "the policy of the agent, which is not among the files,".to_owned(),
                "add the files of the agent and its policy",
            ),
            _ if self.floor && LIFTED_BY_FLOOR.contains(&reason.rule) => (
                "the cluster's floor, which is not among the files,".to_owned(),
                "set the file of the floor with --floor",
            ),
            _ => return None,
        };
        let hint = match reason.hint.as_str() {
            "" => how.to_owned(),
            remedy => format!("{how}; if that does not allow it: {remedy}"),
        };
        Some(UncertainDenial { message: format!("{}; {who} may allow it", reason.message), hint })
    }
}
