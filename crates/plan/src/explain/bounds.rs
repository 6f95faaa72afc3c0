//! How much, how long, how well held, and who decides.

use serde::Serialize;
use sympozium_api::agent_run::Cleanup;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::policy::ApproverKind;
use sympozium_api::run_plan::{AmountsPlan, Deadlines, Gate, RunLimits, RunPlan, SubagentPlan, ToolLimits, ToolPlan};
use sympozium_api::sandbox::SeccompProfileType;

use super::tools::full_name;
use crate::policy::tools::SPAWN_SUBAGENTS;

/// How a run without a filter of system calls is called.
pub const UNCONFINED: &str = "Unconfined";

/// How much of everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Of the run as a whole.
    pub run: RunLimits,
    /// Of each part.
    pub parts: Vec<PartLimits>,
    /// Of each tool.
    pub tools: Vec<ToolCallLimits>,
    /// Runs that this one may start; nothing where it has no tool for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_runs: Option<SubagentPlan>,
}

/// How much one part may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartLimits {
    /// The part.
    pub part: String,
    /// What it asks for and may not exceed.
    #[serde(flatten)]
    pub amounts: AmountsPlan,
    /// How long it may take, where that is less than the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// How much of one tool there may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallLimits {
    /// The tool, as `tool` or `pack/tool`.
    pub tool: String,
    /// Its limits.
    #[serde(flatten)]
    pub limits: ToolLimits,
}

/// What must be enforced, or the run is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// Guarantees that must hold around every command.
    pub floor: Vec<Guarantee>,
    /// Guarantees that need not: the run starts without them, and says so.
    pub not_required: Vec<Guarantee>,
    /// The filter of system calls.
    pub seccomp: String,
    /// The RuntimeClass; the cluster's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    /// Labels that the node must have.
    pub node_selector: std::collections::BTreeMap<String, String>,
}

/// How long everything lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    /// Deadlines, each in seconds.
    #[serde(flatten)]
    pub deadlines: Deadlines,
    /// How long the hooks after the run may take, from when it has ended; absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_run_seconds: Option<u64>,
    /// How long the longest-lived token for the Kubernetes API is good for; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_seconds: Option<u64>,
    /// When rights end, in words; empty when there are none.
    pub rights_end: Vec<String>,
    /// What becomes of the pod afterwards.
    pub cleanup: Cleanup,
    /// What outlasts the run, in words.
    pub outlasts: Vec<String>,
}

/// Who decides where a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalAbout {
    /// Whether any tool asks.
    pub is_asked: bool,
    /// Who may decide, in words.
    pub approvers: Vec<String>,
    /// How many must say yes.
    pub required: u32,
    /// Whether a yes may be given for the identical action as often as the run repeats it.
    pub run_scope: bool,
    /// Whether whoever started the run may approve what it does.
    pub run_author: bool,
}

pub fn limits(plan: &RunPlan) -> Limits {
    Limits {
        run: plan.limits.clone(),
        parts: plan
            .parts
            .iter()
            .map(|part| PartLimits {
                part: part.name.to_string(),
                amounts: part.amounts.clone(),
                timeout_seconds: part.timeout_seconds,
            })
            .collect(),
        tools: plan
            .tools
            .iter()
            .map(|tool| ToolCallLimits {
                tool: full_name(tool.pack.as_deref(), &tool.name),
                limits: tool.limits.clone(),
            })
            .collect(),
        sub_runs: starts_runs(plan).then(|| plan.subagents.clone()),
    }
}

/// Whether the run may start others: there are levels left, and the tool for it is not denied.
pub fn starts_runs(plan: &RunPlan) -> bool {
    let mut tools = plan.tools.iter();
    plan.subagents.levels > 0
        && tools.any(|it| it.name == SPAWN_SUBAGENTS && it.pack.is_none() && it.gate != Gate::Deny)
}

pub fn isolation(plan: &RunPlan) -> Isolation {
    let floor = &plan.isolation.floor;
    let seccomp = &plan.isolation.seccomp;
    let profile = seccomp.localhost_profile.as_deref().unwrap_or_default();
    Isolation {
        floor: floor.clone(),
        not_required: Guarantee::ALL.into_iter().filter(|it| !floor.contains(it)).collect(),
        seccomp: match seccomp.type_ {
            SeccompProfileType::RuntimeDefault => "RuntimeDefault".to_owned(),
            SeccompProfileType::Unconfined => UNCONFINED.to_owned(),
            SeccompProfileType::Localhost => format!("Localhost {profile}"),
        },
        runtime_class: plan.isolation.runtime_class.as_ref().map(ToString::to_string),
        node_selector: plan.placement.node_selector.clone(),
    }
}

pub fn lifetime(plan: &RunPlan) -> Lifetime {
    let token_seconds = plan.identities.iter().map(|it| it.token_seconds).max();
    let mut rights_end = Vec::new();
    if let Some(seconds) = token_seconds {
        rights_end = vec![
            "bindings are deleted first when the run ends, for whatever reason: from then on the API server answers 403".to_owned(),
            "then the Secret that tokens are bound to, and the ServiceAccount".to_owned(),
            format!("if nobody is there to delete them, a token expires {} after it was made", super::summary::duration(seconds)),
        ];
        let mut after = plan.parts.iter().filter(|it| it.role.is_after());
        if after.any(|it| it.identity.is_some()) {
            let later = "those of the hooks, when the hooks after the run have ended";
            rights_end.insert(1, later.to_owned());
        }
    }
    Lifetime {
        deadlines: plan.deadlines.clone(),
        after_run_seconds: plan.after_run_seconds(),
        token_seconds,
        rights_end,
        cleanup: plan.cleanup,
        outlasts: plan.volumes.iter().filter_map(super::files::lasting).collect(),
    }
}

pub fn approval(plan: &RunPlan) -> ApprovalAbout {
    let asks = |it: &ToolPlan| it.gate == Gate::Ask;
    let approvers = match &plan.approval.approvers {
        None => vec!["everybody who may write the status of a ToolApproval".to_owned()],
        Some(approvers) => approvers
            .iter()
            .map(|it| match it.kind {
                ApproverKind::User => format!("user {}", it.name),
                ApproverKind::Group => format!("group {}", it.name),
            })
            .collect(),
    };
    ApprovalAbout {
        is_asked: plan.tools.iter().any(asks),
        approvers,
        required: plan.approval.required,
        run_scope: plan.approval.run_scope,
        run_author: plan.approval.run_author,
    }
}
