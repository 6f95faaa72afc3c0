//! Explains the status of a run's pod, Job and node in plain words. Pure: sends no request.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sympozium_api::agent_run::{ContainerFailure, TIME_IS_UP};
use sympozium_api::limits;
use sympozium_api::run_plan::container::{AGENT, BRIDGE, CHECK_NETWORK};

/// How long pulls of an image may fail: registries have short outages.
pub const IMAGE_PATIENCE: Duration = Duration::from_secs(60);
/// Restarts after which a container counts as crash-looping.
pub const RESTARTS: i32 = 3;
/// Limit for repeating a container's termination message, in bytes.
const SAID: usize = 600;

/// A reason for which the platform does not start a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// One CamelCase word, for conditions.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
    pub patience: Patience,
}

/// How long a start fault is tolerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It is permanent.
    None,
    /// So long after it was first seen.
    Some(Duration),
    /// Until the start deadline of the pod.
    Start,
}

/// The start fault of a pod that has not ended, if any.
pub fn look(pod: &Pod) -> Option<Fault> {
    let status = pod.status.as_ref()?;
    let mut containers = containers(pod);
    if let Some(fault) = containers.find_map(waiting) {
        return Some(fault);
    }
    let conditions = status.conditions.iter().flatten();
    for condition in conditions {
        if condition.type_ == "PodScheduled" && condition.status == "False" {
            let message = condition.message.clone().unwrap_or_default();
            return Some(Fault {
                reason: "Unschedulable",
                message: format!("no node takes the run's pod: {message}"),
                patience: Patience::Start,
            });
        }
    }
    None
}

/// How long a node may take for the pod's sandbox before a start fault is shown.
pub const SANDBOX_PATIENCE: Duration = Duration::from_secs(20);

/// A pod that is bound to a node and whose sandbox does not exist yet, for longer than usual. The cause is in an Event
/// of the pod.
pub fn unmade(pod: &Pod, age: Duration) -> Option<Fault> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let waits = conditions.any(|it| it.type_ == "PodReadyToStartContainers" && it.status == "False");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    (waits && age >= SANDBOX_PATIENCE).then(|| Fault {
        reason: "PodSandbox",
        message: format!(
            "the node has not made the run's pod yet (volumes, network or runtime); `kubectl describe pod {name}` says why"
        ),
        patience: Patience::Start,
    })
}

/// Status of all containers, init containers first.
fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|it| {
        let first = it.init_container_statuses.iter().flatten();
        first.chain(it.container_statuses.iter().flatten())
    })
}

fn waiting(container: &ContainerStatus) -> Option<Fault> {
    let state = container.state.as_ref()?.waiting.as_ref()?;
    let said = state.message.as_deref().unwrap_or_default();
    let name = &container.name;
    let image = &container.image;
    let (reason, message, patience) = match state.reason.as_deref()? {
        "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "RegistryUnavailable" => (
            "ImagePull",
            format!("the image `{image}` of container `{name}` cannot be pulled: {said}"),
            Patience::Some(IMAGE_PATIENCE),
        ),
        "InvalidImageName" | "ErrImageNeverPull" => {
            ("ImagePull", format!("the image `{image}` of container `{name}` cannot be had: {said}"), Patience::None)
        }
        "CreateContainerConfigError" => {
            ("MissingConfig", format!("container `{name}` waits for what it reads: {said}"), Patience::Start)
        }
        "CreateContainerError" | "RunContainerError" | "PreCreateHookError" => {
            ("ContainerStart", format!("container `{name}` cannot be started: {said}"), Patience::Some(IMAGE_PATIENCE))
        }
        "CrashLoopBackOff" if container.restart_count >= RESTARTS => (
            "CrashLoop",
            format!("container `{name}` keeps crashing ({} times): {}", container.restart_count, last_end(container)),
            Patience::None,
        ),
        _ => return None,
    };
    Some(Fault { reason, message: message.trim_end_matches([':', ' ']).to_owned(), patience })
}

/// How a container ended the last time.
fn last_end(container: &ContainerStatus) -> String {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ended = states.into_iter().flatten().find_map(|it| it.terminated.as_ref());
    let Some(ended) = ended else {
        return "it says nothing".to_owned();
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
    let said = ended.message.as_deref().unwrap_or_default().trim();
    if !said.is_empty() {
        text.push_str(": ");
        text.push_str(tail(said, SAID));
    }
    text
}

/// The last bytes of a text, `most` at most.
fn tail(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    let mut from = from;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Why a pod was ended by something other than this controller: eviction, preemption, a lost node.
pub fn from_outside(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref();
    let message = status.and_then(|it| it.message.as_deref()).unwrap_or_default();
    match status.and_then(|it| it.reason.as_deref()) {
        Some("Evicted") => {
            return Some(format!("the run's pod was evicted from its node: {message}"));
        }
        Some("DeadlineExceeded") => return Some(TIME_IS_UP.to_owned()),
        Some("NodeLost" | "NodeShutdown" | "Terminated") => {
            return Some(format!("the node of the run's pod is gone: {message}"));
        }
        Some("Preempting" | "Preempted") => {
            return Some(format!("the run's pod had to make room for others: {message}"));
        }
        _ => {}
    }
    let conditions = status.and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let disrupted = conditions.find(|it| it.type_ == "DisruptionTarget" && it.status == "True")?;
    let why = disrupted.message.as_deref().unwrap_or_default();
    Some(format!("the run's pod was disrupted: {why}"))
}

/// Why a pod ended, or its bridge did, without a report.
pub fn end(pod: &Pod) -> String {
    if let Some(why) = from_outside(pod) {
        return why;
    }
    // The bridge first: when it ends, the agent ends with it.
    let bridge = containers(pod).find(|it| it.name == BRIDGE && is_failed(it));
    let failed = bridge.or_else(|| containers(pod).find(|it| is_failed(it)));
    match failed {
        Some(container) if container.name == CHECK_NETWORK => {
            let said = said_last(container).unwrap_or_default();
            format!("the check of the network failed: {}", network_text(&said))
        }
        Some(container) => {
            format!("container `{}` failed: {}", container.name, last_end(container))
        }
        None => "the run's pod ended, and nobody has said how the run did".to_owned(),
    }
}

fn is_failed(container: &ContainerStatus) -> bool {
    let ended = container.state.as_ref().and_then(|it| it.terminated.as_ref());
    ended.is_some_and(|it| it.exit_code != 0)
}

/// Termination reasons that are not a decision of the container's program.
const NOT_BY_ITSELF: &[&str] =
    &["ContainerCannotRun", "ContainerStatusUnknown", "DeadlineExceeded", "Evicted", "OOMKilled", "StartError"];

/// The verdict of a gate container, by its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerWord {
    /// Exit code 0.
    Yes,
    /// Another exit code.
    No,
    /// It never started, or it or its pod was ended from outside.
    Nothing,
}

/// The verdict of a container of a pod that has ended.
pub fn word_of(pod: &Pod, name: &str) -> ContainerWord {
    let container = containers(pod).find(|it| it.name == name);
    let ended = container.and_then(|it| it.state.as_ref()?.terminated.as_ref());
    let is_own = |reason: &str| !NOT_BY_ITSELF.contains(&reason);
    match ended {
        Some(ended) if ended.exit_code == 0 => ContainerWord::Yes,
        Some(ended) if from_outside(pod).is_none() && ended.reason.as_deref().is_none_or(is_own) => ContainerWord::No,
        _ => ContainerWord::Nothing,
    }
}

fn said_last(container: &ContainerStatus) -> Option<String> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    Some(ended.message.as_deref()?.trim().to_owned())
}

fn network_text(said: &str) -> &str {
    said.strip_prefix("unenforced: ").unwrap_or(said)
}

/// The result of the network check: enforced, not enforced with the reason, or `None` if it has not finished.
pub fn network(pod: &Pod) -> Option<Result<(), String>> {
    let said = containers(pod).find(|it| it.name == CHECK_NETWORK).and_then(said_last)?;
    match said.split_once(": ") {
        None if said == "enforced" => Some(Ok(())),
        Some(("unenforced", why)) => Some(Err(why.to_owned())),
        _ => None,
    }
}

/// Whether every container of the pod has started; init containers do not count.
pub fn has_started(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|it| it.container_statuses.iter().flatten());
    let mut any = false;
    for container in statuses {
        any = true;
        let state = container.state.as_ref();
        if state.is_none_or(|it| it.running.is_none() && it.terminated.is_none()) {
            return false;
        }
    }
    any
}

/// Whether the pod, or its bridge, has ended.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return true;
    }
    let mut statuses = pod.status.iter().flat_map(|it| it.container_statuses.iter().flatten());
    statuses.any(|it| it.name == BRIDGE && is_over(it))
}

fn is_over(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|it| it.terminated.is_some())
}

/// Whether no container of the pod runs any more.
pub fn is_still(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed")) || (has_ended(pod) && containers(pod).all(is_over))
}

pub fn agent_exit(pod: &Pod) -> Option<i32> {
    let mut statuses = pod.status.iter().flat_map(|it| it.container_statuses.iter().flatten());
    let agent = statuses.find(|it| it.name == AGENT)?;
    Some(agent.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// The containers that failed, without their logs.
pub fn failed_containers(pod: &Pod) -> Vec<ContainerFailure> {
    let failed = containers(pod).filter(|it| is_failed(it) || it.restart_count > 0);
    let failed = failed.map(|container| {
        let states = [container.state.as_ref(), container.last_state.as_ref()];
        let ended = states.into_iter().flatten().find_map(|it| it.terminated.as_ref());
        let mut reason = last_end(container);
        reason.truncate(reason.floor_char_boundary(limits::SHORT_TEXT));
        ContainerFailure {
            name: container.name.clone(),
            reason,
            exit_code: ended.map(|it| it.exit_code),
            log_tail: None,
        }
    });
    failed.take(limits::CONTAINERS).collect()
}

/// The names of the containers that have started at least once.
pub fn begun(pod: &Pod) -> Vec<String> {
    let begun = containers(pod).filter(|it| {
        let state = it.state.as_ref();
        it.restart_count > 0 || state.is_some_and(|it| it.running.is_some() || it.terminated.is_some())
    });
    begun.map(|it| it.name.clone()).collect()
}

pub fn running_since(pod: &Pod, name: &str) -> Option<Time> {
    let container = containers(pod).find(|it| it.name == name)?;
    container.state.as_ref()?.running.as_ref()?.started_at.clone()
}

pub fn of_job(job: &Job) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let failed =
        conditions.iter().find(|it| matches!(it.type_.as_str(), "Failed" | "FailureTarget") && it.status == "True")?;
    Some(match failed.reason.as_deref() {
        Some("DeadlineExceeded") => TIME_IS_UP.to_owned(),
        _ => format!("the run's Job failed: {}", failed.message.as_deref().unwrap_or_default()),
    })
}

pub fn is_complete(job: &Job) -> bool {
    let status = job.status.as_ref();
    let conditions = status.and_then(|it| it.conditions.as_ref()).into_iter().flatten();
    conditions.filter(|it| matches!(it.type_.as_str(), "Complete" | "SuccessCriteriaMet")).any(|it| it.status == "True")
}

pub fn is_lost(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status.and_then(|it| it.conditions.as_ref()).into_iter().flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status != "True")
}

/// The start fault for a message with which the API server rejected a pod or another object.
pub fn refusal(said: &str) -> Fault {
    let (reason, patience) = if said.contains("violates PodSecurity") {
        ("PodSecurity", Patience::None)
    } else if said.contains("exceeded quota") || said.contains("must specify limits") {
        ("Quota", Patience::Start)
    } else if said.contains("LimitRange") || said.contains("per Container is") || said.contains("per Pod is") {
        ("LimitRange", Patience::None)
    } else {
        ("PodRefused", Patience::Start)
    };
    Fault { reason, message: refused(said), patience }
}

/// Explains a rejection of the API server.
pub fn refused(said: &str) -> String {
    if said.contains("violates PodSecurity") {
        format!("the namespace's Pod Security level does not let the run's pod exist: {said}")
    } else if said.contains("exceeded quota") {
        format!("the namespace's quota has no room for the run's pod: {said}")
    } else if said.contains("per Container is") || said.contains("per Pod is") {
        format!("a LimitRange of the namespace does not let the run's pod exist: {said}")
    } else {
        format!("the API server refuses what the run needs: {said}")
    }
}

#[cfg(test)]
mod tests;
