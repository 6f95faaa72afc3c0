//! Converts an AgentRun into the types of our commands: a view of it, its run end, the isolation of its parts.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use sympozium_api::Guarantee;
use sympozium_api::agent_run::{
    AgentEndKind, AgentRunStatus, ContainerFailure, IsolationRecord, Phase as RunPhase, ReportedPhase,
    TIMEOUT_ERROR_PREFIX, TokenUsage, condition, reason,
};
use sympozium_api::run_plan::container::CHECK_NETWORK;
use sympozium_api::{AgentRun, RunPlan};
use sympozium_exec::IsolationReport;
use sympozium_exec::guarantee::{Cell, Profile, cell};
use sympozium_exec::report::GuaranteeState;
use sympozium_ipc::run_api::{BridgePhase, Usage};

use super::platform::{self, PlannedPart};
use sympozium_runs::RunEnd;
use sympozium_runs::{RunView, TargetFlags, state_label};

/// The maximum number of failed containers that an error message lists.
const MAX_FAILED_CONTAINERS: usize = 8;
/// Who keeps the guarantees of a part that does not report any.
const NOT_ATTESTED: &str = "the pod's spec, not attested";
/// The model of a run whose plan is unknown and whose manifest names none.
const AGENT_MODEL: &str = "the agent's";

/// A run for lists, and its run end.
pub fn to_view(run: &AgentRun, target: &TargetFlags) -> (RunView, Option<RunEnd>) {
    let status = status(run);
    let outcome = run_end(run);
    let model = run.spec.model.as_ref();
    let model = model.map(|it| format!("{}/{}", it.provider, it.model));
    let started = run.creation_timestamp().or(status.started_at);
    let ended = status.completed_at.as_ref();
    let report = status.report.as_ref();
    let tokens = status.token_usage.as_ref();
    let tokens = tokens.or(report.and_then(|it| it.token_usage.as_ref()));
    let view = RunView {
        name: run.name_any(),
        uid: run.uid().unwrap_or_default(),
        namespace: run.namespace().unwrap_or_default(),
        agent: agent(run),
        model: model.unwrap_or_else(|| AGENT_MODEL.to_owned()),
        skills: skills(run),
        state: state_label(phase(run), outcome.as_ref()),
        alive: outcome.is_none(),
        started_ms: started.as_ref().map_or(0, to_millis),
        ended_ms: ended.map(to_millis),
        usage: tokens.map(to_usage).unwrap_or_default(),
        cost: status.cost_estimate.clone(),
        workspace: None,
        directory: None,
        target: target.clone(),
    };
    (view, outcome)
}

/// The status; empty before the controller has reconciled the run.
pub fn status(run: &AgentRun) -> AgentRunStatus {
    run.status.clone().unwrap_or_default()
}

pub fn agent(run: &AgentRun) -> String {
    let agent = run.spec.agent();
    agent.map(|it| it.as_str().to_owned()).unwrap_or_default()
}

/// The packs: those that were resolved, or else those that the run names.
pub fn skills(run: &AgentRun) -> Vec<String> {
    let resolved = run.status.iter().flat_map(|it| &it.resolved);
    let resolved: Vec<String> =
        resolved.filter(|it| it.kind == "SkillPack").map(|it| it.name.as_str().to_owned()).collect();
    if !resolved.is_empty() {
        return resolved;
    }
    let named = run.spec.skills.iter();
    let named = named.filter_map(|it| Some(it.skill_pack_ref.as_ref()?.as_str().to_owned()));
    named.collect()
}

pub fn task(run: &AgentRun) -> String {
    match run.spec.task.as_ref().map(serde_json::to_value) {
        Some(Ok(serde_json::Value::String(text))) => text,
        Some(Ok(other)) => other.to_string(),
        Some(Err(_)) | None => String::new(),
    }
}

pub fn phase(run: &AgentRun) -> BridgePhase {
    let Some(status) = &run.status else {
        return BridgePhase::Starting;
    };
    if run.metadata.deletion_timestamp.is_some() || run.spec.cancel {
        return BridgePhase::Ended;
    }
    let reported = status.report.as_ref().and_then(|it| it.phase);
    match (status.phase.unwrap_or_default(), reported) {
        (RunPhase::Pending, _) => BridgePhase::Starting,
        (RunPhase::PostRunning, _) => BridgePhase::Ended,
        (_, Some(reported)) => to_phase(reported),
        (RunPhase::Running, None) => BridgePhase::Starting,
        (_, None) => BridgePhase::Working,
    }
}

pub const fn to_phase(phase: ReportedPhase) -> BridgePhase {
    match phase {
        ReportedPhase::Starting => BridgePhase::Starting,
        ReportedPhase::Working => BridgePhase::Working,
        ReportedPhase::Waiting => BridgePhase::Waiting,
        ReportedPhase::Ended => BridgePhase::Ended,
    }
}

/// How a run ended; `None` while it is not terminal.
pub fn run_end(run: &AgentRun) -> Option<RunEnd> {
    let status = run.status.as_ref()?;
    Some(match status.phase? {
        RunPhase::Succeeded | RunPhase::Skipped => {
            RunEnd::Succeeded { answer: status.result.clone().unwrap_or_default() }
        }
        RunPhase::Cancelled => RunEnd::Cancelled,
        RunPhase::Failed => failed_end(status),
        RunPhase::Pending
        | RunPhase::Running
        | RunPhase::Serving
        | RunPhase::PostRunning
        | RunPhase::AwaitingDelegate => return None,
    })
}

/// The end of a run in phase `Failed`.
fn failed_end(status: &AgentRunStatus) -> RunEnd {
    let rejection = false_condition(status, condition::ADMITTED);
    match rejection.map(|it| (it.reason.as_str(), &it.message)) {
        Some((reason::DENIED, why)) => RunEnd::Denied { why: why.clone() },
        // The run is allowed, but this cluster cannot realise it.
        Some((reason::IMPOSSIBLE, why)) => RunEnd::Refused { why: why.clone() },
        _ if is_below_floor(status) => RunEnd::Refused { why: failure_reason(status) },
        _ if has_timed_out(status) => RunEnd::TimedOut,
        _ => RunEnd::Failed { why: failure_reason(status) },
    }
}

fn false_condition<'s>(status: &'s AgentRunStatus, type_: &str) -> Option<&'s Condition> {
    status.conditions.iter().find(|it| it.type_ == type_ && it.status == "False")
}

/// Whether the network is less isolated than the floor requires: the network check has failed, and no container behind
/// it has started. Where the floor does not require it, the check finds the same and does not fail.
fn is_below_floor(status: &AgentRunStatus) -> bool {
    let mut failed = status.failed_containers.iter();
    false_condition(status, condition::NETWORK_ENFORCED).is_some() && failed.any(|it| it.name == CHECK_NETWORK)
}

/// Whether the run's deadline has passed, by the clock of the bridge or of the controller. For the latter, the status
/// has no field but the error.
fn has_timed_out(status: &AgentRunStatus) -> bool {
    let reported = status.report.as_ref().and_then(|it| it.ending);
    let error = status.error.as_deref().unwrap_or_default();
    reported == Some(AgentEndKind::TimedOut) || error.starts_with(TIMEOUT_ERROR_PREFIX)
}

/// Why the run failed, with the log tails of the failed containers.
fn failure_reason(status: &AgentRunStatus) -> String {
    let error = status.error.as_deref().map(str::trim);
    let error = error.filter(|it| !it.is_empty());
    let mut why = error.unwrap_or("the run's status has no error message").to_owned();
    for failed in status.failed_containers.iter().take(MAX_FAILED_CONTAINERS) {
        why.push('\n');
        why.push_str(&describe_container(failed));
    }
    why
}

fn describe_container(failed: &ContainerFailure) -> String {
    let mut text = format!("{}: {}", failed.name, failed.reason);
    if let Some(code) = failed.exit_code {
        text.push_str(&format!(" (exit code {code})"));
    }
    let tail = failed.log_tail.as_deref().unwrap_or_default().trim();
    match tail.is_empty() {
        true => text,
        false => format!("{text}; the end of its log:\n{tail}"),
    }
}

/// The conditions that are not met: what the start of a run waits for, and what else is wrong. One line per condition,
/// with the condition's type.
pub fn unmet_conditions(run: &AgentRun) -> Vec<(String, String)> {
    let conditions = run.status.iter().flat_map(|it| &it.conditions);
    let unmet = conditions.filter(|it| {
        let is_of_start = matches!(it.type_.as_str(), condition::ADMITTED | condition::GRANTED | condition::STARTED);
        // The network condition is usually unknown until the pod has run the check.
        let is_of_network = it.type_ == condition::NETWORK_ENFORCED && it.status == "False";
        (is_of_start && it.status != "True") || is_of_network
    });
    unmet.map(|it| (it.type_.clone(), describe_condition(it))).collect()
}

/// A condition that is not true, in words.
fn describe_condition(it: &Condition) -> String {
    if !it.message.trim().is_empty() {
        return it.message.trim().to_owned();
    }
    let text = match (it.type_.as_str(), it.reason.as_str()) {
        (condition::NETWORK_ENFORCED, _) => "the cluster does not enforce NetworkPolicies",
        (_, "Waiting") => "the run waits for an object that does not exist yet",
        (_, "ImagePull") => "an image of the pod cannot be pulled",
        (_, "Quota") => "a ResourceQuota or a LimitRange of the namespace rejects the pod",
        (_, "PodSecurity") => "the Pod Security level of the namespace rejects the pod",
        (_, "Unschedulable") => "the pod cannot be scheduled on any node",
        (_, "CrashLoop") => "a container of the pod keeps crashing",
        (condition::ADMITTED, _) => "the run is not admitted yet",
        (condition::GRANTED, _) => "the permissions of the run are not granted yet",
        (_, "") => "the run has not started yet",
        (_, other) => return format!("the run has not started yet: {other}"),
    };
    text.to_owned()
}

/// What is left of a terminal run; `None` before that was verified. The controller verifies again as long as it is not
/// empty.
pub fn leftovers(run: &AgentRun) -> Option<Vec<String>> {
    let revocation = run.status.as_ref()?.revocation.as_ref()?;
    let left = revocation.remaining.iter().map(|it| match &it.namespace {
        Some(namespace) => format!("{} {namespace}/{}", it.kind, it.name),
        None => format!("{} {}", it.kind, it.name),
    });
    Some(left.collect())
}

/// The isolation of each part: what the part reports, and what the cluster keeps according to the run's status and
/// plan.
pub fn isolation(run: &AgentRun, plan: Option<&RunPlan>) -> BTreeMap<String, IsolationReport> {
    let Some(status) = &run.status else {
        return BTreeMap::new();
    };
    let reported = status.report.iter().flat_map(|it| &it.isolation);
    // The controller's records override the parts' own.
    let all = reported.chain(&status.isolation);
    let planned = |part: &str| {
        let mut parts = plan.into_iter().flat_map(|plan| &plan.parts);
        PlannedPart {
            resources: parts.find(|it| it.name.0 == part).map(|it| &it.amounts),
            kernel: plan.and_then(|plan| plan.isolation.kernel.as_ref()),
        }
    };
    all.map(|record| {
        let report = isolation_report(record, status, planned(&record.part));
        (record.part.clone(), report)
    })
    .collect()
}

/// The isolation of one part.
fn isolation_report(record: &IsolationRecord, status: &AgentRunStatus, planned: PlannedPart<'_>) -> IsolationReport {
    let attested = Profile::ALL.into_iter().find(|it| it.as_str() == record.profile);
    let state = |guarantee: Guarantee| {
        let is_enforced = (record.guarantees.iter()).any(|it| it.as_str() == guarantee.as_str());
        if is_enforced {
            return GuaranteeState::Enforced { by: Vec::new() };
        }
        if let Some(state) = platform::platform_guarantee(guarantee, status, planned) {
            return state;
        }
        match attested.map(|it| cell(it, guarantee)) {
            Some(Cell::Unavailable { why }) => GuaranteeState::NotHeld { missing: Vec::new(), why: why.to_owned() },
            Some(Cell::Delegated { to }) => GuaranteeState::Delegated { to: to.to_owned() },
            Some(Cell::Enforced { .. } | Cell::WhereAvailable { .. }) => {
                GuaranteeState::NotHeld { missing: Vec::new(), why: "the part did not report it".to_owned() }
            }
            None => GuaranteeState::Delegated { to: NOT_ATTESTED.to_owned() },
        }
    };
    let all = Guarantee::ALL.into_iter();
    IsolationReport {
        profile: attested.unwrap_or(Profile::Container),
        layers: BTreeMap::new(),
        guarantees: all.map(|it| (it, state(it))).collect(),
    }
}

pub fn to_usage(tokens: &TokenUsage) -> Usage {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Usage {
        model_requests: count(tokens.model_requests),
        input_tokens: count(tokens.input_tokens),
        output_tokens: count(tokens.output_tokens),
        estimated: tokens.estimated,
        tool_calls: count(tokens.tool_calls),
    }
}

/// In milliseconds since 1970.
pub fn to_millis(time: &Time) -> u64 {
    u64::try_from(time.0.as_millisecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An executor reports what it enforces. What the platform keeps according to the matrix is not missing because of
    /// that.
    #[test]
    fn delegated_guarantees_are_not_reported_as_missing() {
        let status = AgentRunStatus::default();
        for profile in [Profile::Container, Profile::Gvisor] {
            let record = IsolationRecord {
                part: "skill-a".to_owned(),
                profile: profile.as_str().to_owned(),
                ..IsolationRecord::default()
            };
            let report = isolation_report(&record, &status, PlannedPart::default());
            for guarantee in Guarantee::ALL {
                let text = report.guarantees[&guarantee].to_string();
                let is_enforced = matches!(cell(profile, guarantee), Cell::Enforced { .. });
                let is_missing = text.contains("the part did not report it");
                assert_eq!(is_missing, is_enforced, "{profile} {guarantee}: {text}");
            }
        }
    }
}
