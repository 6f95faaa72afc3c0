//! Limits, deadlines, isolation and approval.

use serde::Serialize;
use sympozium_api::agent_run::Cleanup;
use sympozium_api::builtin_tool::SPAWN_SUBAGENTS;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::policy::ApproverKind;
use sympozium_api::run_plan::{Deadlines, Gate, ResourcesPlan, RunLimits, RunPlan, SubagentPlan, ToolLimits, ToolPlan};
use sympozium_api::sandbox::SeccompProfileType;

use super::tools::full_name;

/// The name of having no seccomp filter.
pub const UNCONFINED: &str = "Unconfined";

/// Limits of the run, its parts and its tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Of the run as a whole.
    pub run: RunLimits,
    /// Of each part.
    pub parts: Vec<PartLimits>,
    /// Of each tool.
    pub tools: Vec<ToolCallLimits>,
    /// Runs that this one may start; absent where it has no tool for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_runs: Option<SubagentPlan>,
}

/// Limits of one part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartLimits {
    /// The name of the part.
    pub part: String,
    /// Its requests and limits.
    #[serde(flatten)]
    pub amounts: ResourcesPlan,
    /// Its timeout, where that is less than the run's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// Limits of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallLimits {
    /// The tool, as `tool` or `pack/tool`.
    pub tool: String,
    /// The limits of its calls.
    #[serde(flatten)]
    pub limits: ToolLimits,
}

/// What must be enforced, or the run is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// Guarantees that must be enforced around every command.
    pub floor: Vec<Guarantee>,
    /// Guarantees that are not required: the run starts without them, and reports it.
    pub not_required: Vec<Guarantee>,
    /// The seccomp profile.
    pub seccomp: String,
    /// The RuntimeClass; the cluster's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    /// Labels that the node must have.
    pub node_selector: std::collections::BTreeMap<String, String>,
}

/// How long the run, its grants and its data last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    /// Deadlines, each in seconds.
    #[serde(flatten)]
    pub deadlines: Deadlines,
    /// Timeout of the hooks after the run, from its end; absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_run_seconds: Option<u64>,
    /// The longest lifetime of a token for the Kubernetes API; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_seconds: Option<u64>,
    /// When grants end, in words; empty when there are none.
    pub rights_end: Vec<String>,
    /// Whether the pod is deleted afterwards.
    pub cleanup: Cleanup,
    /// What outlasts the run, in words.
    pub outlasts: Vec<String>,
}

/// Who approves questions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalInfo {
    /// Whether any tool has the gate `ask`.
    pub is_asked: bool,
    /// Who may approve, in words.
    pub approvers: Vec<String>,
    /// The number of approvers who must vote approve.
    pub required: u32,
    /// Whether an approval may also cover repetitions of the identical action in this run.
    pub run_scope: bool,
    /// Whether the author of the run may approve its actions.
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
        sub_runs: can_start_runs(plan).then(|| plan.subagents.clone()),
    }
}

/// Whether the run may start others: levels are left, and the tool is not denied.
pub fn can_start_runs(plan: &RunPlan) -> bool {
    let mut tools = plan.tools.iter();
    plan.subagents.levels > 0
        && tools.any(|tool| tool.name == SPAWN_SUBAGENTS && tool.pack.is_none() && tool.gate != Gate::Deny)
}

pub fn isolation(plan: &RunPlan) -> Isolation {
    let floor = &plan.isolation.floor;
    let seccomp = &plan.isolation.seccomp;
    let profile = seccomp.localhost_profile.as_deref().unwrap_or_default();
    Isolation {
        floor: floor.clone(),
        not_required: Guarantee::ALL.into_iter().filter(|guarantee| !floor.contains(guarantee)).collect(),
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
    let token_seconds = plan.identities.iter().map(|identity| identity.token_seconds).max();
    let mut rights_end = Vec::new();
    if let Some(seconds) = token_seconds {
        rights_end = vec![
            "bindings are deleted first when the run ends, for whatever reason: from then on the API server answers 403".to_owned(),
            "then the Secret that tokens are bound to, and the ServiceAccount".to_owned(),
            format!("a token that is not deleted expires {} after it was made", super::summary::format_seconds(seconds)),
        ];
        let mut after = plan.parts.iter().filter(|part| part.role.is_post_run());
        if after.any(|part| part.identity.is_some()) {
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
        outlasts: plan.volumes.iter().filter_map(super::files::persistent_claim).collect(),
    }
}

pub fn approval(plan: &RunPlan) -> ApprovalInfo {
    let asks = |tool: &ToolPlan| tool.gate == Gate::Ask;
    let approvers = match &plan.approval.approvers {
        None => vec!["every user who may write the status of a ToolApproval".to_owned()],
        Some(approvers) => approvers
            .iter()
            .map(|approver| match approver.kind {
                ApproverKind::User => format!("user {}", approver.name),
                ApproverKind::Group => format!("group {}", approver.name),
            })
            .collect(),
    };
    ApprovalInfo {
        is_asked: plan.tools.iter().any(asks),
        approvers,
        required: plan.approval.required,
        run_scope: plan.approval.run_scope,
        run_author: plan.approval.run_author,
    }
}
