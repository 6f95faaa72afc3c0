//! Explains the status of a run's pod, Job and node in plain words. Pure: sends no request.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use sympozium_api::agent_run::{ContainerFailure, TIMEOUT_ERROR_PREFIX};
use sympozium_api::limits;
use sympozium_api::run_plan::container::{AGENT, BRIDGE, CHECK_NETWORK};
use sympozium_api::text::{Bytes, truncate};

/// How long pulls of an image may fail: registries have short outages.
pub const IMAGE_PULL_TIMEOUT: Duration = Duration::from_secs(60);
/// Restarts after which a container counts as crash-looping.
pub const MAX_RESTARTS: i32 = 3;
/// Limit for repeating a container's termination message, in bytes.
const MAX_MESSAGE: usize = 600;

/// A reason for which the platform does not start a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFault {
    /// One CamelCase word, for conditions.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
    pub timeout: FaultTimeout,
}

/// How long a start fault is tolerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultTimeout {
    /// It is permanent.
    Immediate,
    /// So long after it was first seen.
    After(Duration),
    /// Until the start deadline of the pod.
    StartDeadline,
}

/// The start fault of a pod that has not ended, if any.
pub fn find_fault(pod: &Pod) -> Option<StartFault> {
    let status = pod.status.as_ref()?;
    let mut containers = container_statuses(pod);
    if let Some(fault) = containers.find_map(container_fault) {
        return Some(fault);
    }
    let conditions = status.conditions.iter().flatten();
    for condition in conditions {
        if condition.type_ == "PodScheduled" && condition.status == "False" {
            let message = condition.message.clone().unwrap_or_default();
            return Some(StartFault {
                reason: "Unschedulable",
                message: format!("the run's pod cannot be scheduled: {message}"),
                timeout: FaultTimeout::StartDeadline,
            });
        }
    }
    None
}

/// How long a node may take for the pod's sandbox before a start fault is shown.
pub const POD_SANDBOX_TIMEOUT: Duration = Duration::from_secs(20);

/// A pod that is bound to a node and whose sandbox does not exist yet, for longer than usual. The cause is in an Event
/// of the pod.
pub fn sandbox_fault(pod: &Pod, age: Duration) -> Option<StartFault> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let waits =
        conditions.any(|condition| condition.type_ == "PodReadyToStartContainers" && condition.status == "False");
    let name = pod.name_any();
    (waits && age >= POD_SANDBOX_TIMEOUT).then(|| StartFault {
        reason: "PodSandbox",
        message: format!(
            "the node has not set up the run's pod yet (volumes, network or runtime); `kubectl describe pod {name}` shows why"
        ),
        timeout: FaultTimeout::StartDeadline,
    })
}

/// Status of all containers, init containers first.
fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|status| {
        let first = status.init_container_statuses.iter().flatten();
        first.chain(status.container_statuses.iter().flatten())
    })
}

fn container_fault(container: &ContainerStatus) -> Option<StartFault> {
    let state = container.state.as_ref()?.waiting.as_ref()?;
    let details = state.message.as_deref().unwrap_or_default();
    let name = &container.name;
    let image = &container.image;
    let (reason, message, patience) = match state.reason.as_deref()? {
        "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable" => (
            "ImagePull",
            format!("image `{image}` of container `{name}` cannot be pulled: {details}"),
            FaultTimeout::After(IMAGE_PULL_TIMEOUT),
        ),
        "InvalidImageName" | "ErrImageNeverPull" => (
            "ImagePull",
            format!("image `{image}` of container `{name}` cannot be used: {details}"),
            FaultTimeout::Immediate,
        ),
        "CreateContainerConfigError" => (
            "MissingConfig",
            format!("container `{name}` waits for a Secret or ConfigMap: {details}"),
            FaultTimeout::StartDeadline,
        ),
        "CreateContainerError" | "RunContainerError" | "PreCreateHookError" => (
            "ContainerStart",
            format!("container `{name}` cannot be started: {details}"),
            FaultTimeout::After(IMAGE_PULL_TIMEOUT),
        ),
        "CrashLoopBackOff" if container.restart_count >= MAX_RESTARTS => (
            "CrashLoop",
            format!(
                "container `{name}` has crashed {} times: {}",
                container.restart_count,
                last_termination(container)
            ),
            FaultTimeout::Immediate,
        ),
        _ => return None,
    };
    Some(StartFault { reason, message: message.trim_end_matches([':', ' ']).to_owned(), timeout: patience })
}

/// How a container ended the last time.
fn last_termination(container: &ContainerStatus) -> String {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ended = states.into_iter().flatten().find_map(|state| state.terminated.as_ref());
    let Some(ended) = ended else {
        return "no reason was reported".to_owned();
    };
    if ended.reason.as_deref() == Some("OOMKilled") {
        return "it ran out of memory".to_owned();
    }
    let mut text = match (ended.signal, ended.exit_code) {
        (Some(signal), _) if signal != 0 => format!("ended by signal {signal}"),
        // The convention of shells and container runtimes: 128 + signal.
        (_, code @ 129..=159) => format!("ended by signal {}", code - 128),
        (_, code) => format!("exit code {code}"),
    };
    let details = ended.message.as_deref().unwrap_or_default().trim();
    if !details.is_empty() {
        text.push_str(": ");
        text.push_str(tail(details, MAX_MESSAGE));
    }
    text
}

/// The last bytes of a text, `most` at most.
fn tail(text: &str, most: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}

/// Why a pod was ended by something other than this controller: eviction, preemption, a lost node.
pub fn disruption(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref();
    let message = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
    match status.and_then(|status| status.reason.as_deref()) {
        Some("Evicted") => {
            return Some(format!("the run's pod was evicted from its node: {message}"));
        }
        Some("DeadlineExceeded") => return Some(TIMEOUT_ERROR_PREFIX.to_owned()),
        Some("NodeLost" | "NodeShutdown" | "Terminated") => {
            return Some(format!("the node of the run's pod was lost: {message}"));
        }
        Some("Preempting" | "Preempted") => {
            return Some(format!("the run's pod was preempted: {message}"));
        }
        _ => {}
    }
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let disrupted = conditions.find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")?;
    let why = disrupted.message.as_deref().unwrap_or_default();
    Some(format!("the run's pod was disrupted: {why}"))
}

/// Why a pod ended, or its bridge did, without a report.
pub fn failure_reason(pod: &Pod) -> String {
    if let Some(why) = disruption(pod) {
        return why;
    }
    // The bridge first: when it ends, the agent ends with it.
    let bridge = container_statuses(pod)
        .find(|container_status| container_status.name == BRIDGE && has_failed(container_status));
    let failed = bridge.or_else(|| container_statuses(pod).find(|container_status| has_failed(container_status)));
    match failed {
        Some(container) if container.name == CHECK_NETWORK => {
            let details = termination_message(container).unwrap_or_default();
            format!("the check of the network failed: {}", strip_network_prefix(&details))
        }
        Some(container) => {
            format!("container `{}` failed: {}", container.name, last_termination(container))
        }
        None => "the run's pod ended without a report of the bridge".to_owned(),
    }
}

fn has_failed(container: &ContainerStatus) -> bool {
    let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    ended.is_some_and(|terminated| terminated.exit_code != 0)
}

/// Termination reasons that are not a decision of the container's program.
const EXTERNAL_REASONS: &[&str] =
    &["ContainerCannotRun", "ContainerStatusUnknown", "DeadlineExceeded", "Evicted", "OOMKilled", "StartError"];

/// The verdict of a gate container, by its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerVerdict {
    /// Exit code 0.
    Succeeded,
    /// Another exit code.
    Failed,
    /// It never started, or it or its pod was ended from outside.
    Unknown,
}

/// The verdict of a container of a pod that has ended.
pub fn container_verdict(pod: &Pod, name: &str) -> ContainerVerdict {
    let container = container_statuses(pod).find(|container_status| container_status.name == name);
    let ended = container.and_then(|container| container.state.as_ref()?.terminated.as_ref());
    let is_own = |reason: &str| !EXTERNAL_REASONS.contains(&reason);
    match ended {
        Some(ended) if ended.exit_code == 0 => ContainerVerdict::Succeeded,
        Some(ended) if disruption(pod).is_none() && ended.reason.as_deref().is_none_or(is_own) => {
            ContainerVerdict::Failed
        }
        _ => ContainerVerdict::Unknown,
    }
}

fn termination_message(container: &ContainerStatus) -> Option<String> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    Some(ended.message.as_deref()?.trim().to_owned())
}

fn strip_network_prefix(message: &str) -> &str {
    message.strip_prefix("unenforced: ").unwrap_or(message)
}

/// The result of the network check: enforced, not enforced with the reason, or `None` if it has not finished.
pub fn network_check(pod: &Pod) -> Option<Result<(), String>> {
    let message = container_statuses(pod)
        .find(|container_status| container_status.name == CHECK_NETWORK)
        .and_then(termination_message)?;
    match message.split_once(": ") {
        None if message == "enforced" => Some(Ok(())),
        Some(("unenforced", why)) => Some(Err(why.to_owned())),
        _ => None,
    }
}

/// Whether every container of the pod has started; init containers do not count.
pub fn has_started(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut any = false;
    for container in statuses {
        any = true;
        let state = container.state.as_ref();
        if state.is_none_or(|state| state.running.is_none() && state.terminated.is_none()) {
            return false;
        }
    }
    any
}

/// Whether the pod, or its bridge, has ended.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return true;
    }
    let mut statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.any(|status| status.name == BRIDGE && is_container_terminated(status))
}

fn is_container_terminated(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// Whether no container of the pod runs any more.
pub fn is_terminated(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
        || (has_ended(pod) && container_statuses(pod).all(is_container_terminated))
}

pub fn agent_exit_code(pod: &Pod) -> Option<i32> {
    let mut statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let agent = statuses.find(|status| status.name == AGENT)?;
    Some(agent.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// The containers that failed, without their logs.
pub fn failed_containers(pod: &Pod) -> Vec<ContainerFailure> {
    let failed = container_statuses(pod)
        .filter(|container_status| has_failed(container_status) || container_status.restart_count > 0);
    let failed = failed.map(|container| {
        let states = [container.state.as_ref(), container.last_state.as_ref()];
        let ended = states.into_iter().flatten().find_map(|state| state.terminated.as_ref());
        let reason = truncate(last_termination(container), Bytes(limits::SHORT_TEXT)).into_owned();
        ContainerFailure {
            name: container.name.clone(),
            reason,
            exit_code: ended.map(|ended| ended.exit_code),
            log_tail: None,
        }
    });
    failed.take(limits::CONTAINERS).collect()
}

/// The names of the containers that have started at least once.
pub fn started_containers(pod: &Pod) -> Vec<String> {
    let begun = container_statuses(pod).filter(|container_status| {
        let state = container_status.state.as_ref();
        container_status.restart_count > 0
            || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    begun.map(|container| container.name.clone()).collect()
}

pub fn running_since(pod: &Pod, name: &str) -> Option<Time> {
    let container = container_statuses(pod).find(|container_status| container_status.name == name)?;
    container.state.as_ref()?.running.as_ref()?.started_at.clone()
}

pub fn job_failure(job: &Job) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let failed = conditions.iter().find(|condition| {
        matches!(condition.type_.as_str(), "Failed" | "FailureTarget") && condition.status == "True"
    })?;
    Some(match failed.reason.as_deref() {
        Some("DeadlineExceeded") => TIMEOUT_ERROR_PREFIX.to_owned(),
        _ => format!("the run's Job failed: {}", failed.message.as_deref().unwrap_or_default()),
    })
}

pub fn is_job_complete(job: &Job) -> bool {
    let status = job.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    conditions
        .filter(|condition| matches!(condition.type_.as_str(), "Complete" | "SuccessCriteriaMet"))
        .any(|condition| condition.status == "True")
}

pub fn is_node_lost(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status != "True")
}

/// The start fault for a message with which the API server rejected a pod or another object.
pub fn rejection_fault(rejection: &str) -> StartFault {
    let (reason, patience) = if rejection.contains("violates PodSecurity") {
        ("PodSecurity", FaultTimeout::Immediate)
    } else if rejection.contains("exceeded quota") || rejection.contains("must specify limits") {
        ("Quota", FaultTimeout::StartDeadline)
    } else if rejection.contains("LimitRange")
        || rejection.contains("per Container is")
        || rejection.contains("per Pod is")
    {
        ("LimitRange", FaultTimeout::Immediate)
    } else {
        ("PodRefused", FaultTimeout::StartDeadline)
    };
    StartFault { reason, message: describe_rejection(rejection), timeout: patience }
}

/// Explains a rejection of the API server.
pub fn describe_rejection(rejection: &str) -> String {
    if rejection.contains("violates PodSecurity") {
        format!("the Pod Security level of the namespace forbids the run's pod: {rejection}")
    } else if rejection.contains("exceeded quota") {
        format!("the ResourceQuota of the namespace is exhausted: {rejection}")
    } else if rejection.contains("per Container is") || rejection.contains("per Pod is") {
        format!("a LimitRange of the namespace forbids the run's pod: {rejection}")
    } else {
        format!("the API server rejected an object of the run: {rejection}")
    }
}

#[cfg(test)]
mod tests;
