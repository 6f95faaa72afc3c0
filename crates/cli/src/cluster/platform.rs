//! The guarantees that the cluster keeps for a run, and the evidence for them: the parts report only what they enforce
//! themselves.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sympozium_api::Guarantee;
use sympozium_api::agent_run::{AgentRunStatus, condition};
use sympozium_api::run_plan::{KernelPlan, ResourcesPlan};
use sympozium_exec::report::GuaranteeState;

/// What the run's plan says about a part, if the plan can be read.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlannedPart<'p> {
    pub resources: Option<&'p ResourcesPlan>,
    pub kernel: Option<&'p KernelPlan>,
}

/// The state of a guarantee that the cluster keeps; `None` for a guarantee that it does not.
pub fn platform_guarantee(
    guarantee: Guarantee,
    status: &AgentRunStatus,
    planned: PlannedPart<'_>,
) -> Option<GuaranteeState> {
    let resources = planned.resources;
    let limit = |of: &str, limit: Option<Cow<'_, str>>| {
        let evidence = match limit {
            Some(limit) => format!("{limit} in the run's plan"),
            None => "the plan cannot be read".to_owned(),
        };
        delegated(format!("the kubelet: the container's {of} limit, {evidence}"))
    };
    match guarantee {
        Guarantee::Network => Some(network_guarantee(status)),
        Guarantee::Memory => Some(limit("memory", resources.map(|it| it.memory_limit.text()))),
        Guarantee::Cpu => Some(limit("CPU", resources.map(|it| it.cpu_limit.text()))),
        Guarantee::Pids => Some(delegated("the kubelet: the node's podPidsLimit, whose value is unknown".to_owned())),
        // gVisor is detected from inside and reported. The kernel of a virtual machine looks like the node's.
        Guarantee::Kernel => planned
            .kernel
            .map(|kernel| delegated(format!("the RuntimeClass handler `{}` of the run's plan", kernel.handler))),
        Guarantee::Filesystem | Guarantee::Processes | Guarantee::Syscalls => None,
    }
}

/// Derived from the result of the network check, which runs in the pod before every other container.
fn network_guarantee(status: &AgentRunStatus) -> GuaranteeState {
    let mut conditions = status.conditions.iter();
    let found = conditions.find(|it| it.type_ == condition::NETWORK_ENFORCED);
    let message = |it: &Condition| match it.message.trim() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    match found.map(|it| (it.status.as_str(), it)) {
        Some(("True", it)) => delegated(format!(
            "the cluster's NetworkPolicies, checked by the pod (NetworkEnforced=True{})",
            message(it)
        )),
        Some(("False", it)) => not_held(format!("the pod's check failed (NetworkEnforced=False{})", message(it))),
        _ => not_held("the pod has not checked it yet (NetworkEnforced is unknown)".to_owned()),
    }
}

fn delegated(to: String) -> GuaranteeState {
    GuaranteeState::Delegated { to }
}

fn not_held(why: String) -> GuaranteeState {
    GuaranteeState::NotHeld { missing: Vec::new(), why }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(network: Option<(&str, &str)>) -> AgentRunStatus {
        let conditions: Vec<_> = network
            .map(|(status, message)| {
                json!({
                    "type": "NetworkEnforced", "status": status, "reason": "R", "message": message,
                    "lastTransitionTime": "2026-11-01T00:00:00Z",
                })
            })
            .into_iter()
            .collect();
        serde_json::from_value(json!({ "conditions": conditions })).unwrap()
    }

    #[test]
    fn guarantees_of_the_platform_have_their_evidence() {
        let amounts: ResourcesPlan = serde_json::from_value(json!({
            "cpuRequest": "100m", "cpuLimit": "500m", "memoryRequest": "128Mi", "memoryLimit": "512Mi",
        }))
        .unwrap();
        let none = status(None);
        let amounts = PlannedPart { resources: Some(&amounts), kernel: None };
        let kernel = KernelPlan { handler: "kata".to_owned(), gvisor: false };
        let kernel = PlannedPart { resources: None, kernel: Some(&kernel) };
        let unknown = PlannedPart::default();
        let text = |guarantee, planned| platform_guarantee(guarantee, &none, planned).unwrap().to_string();
        for (guarantee, planned, expected) in [
            (
                Guarantee::Memory,
                amounts,
                "delegated to the kubelet: the container's memory limit, 512Mi in the run's plan",
            ),
            (Guarantee::Cpu, amounts, "delegated to the kubelet: the container's CPU limit, 500m in the run's plan"),
            (Guarantee::Cpu, unknown, "delegated to the kubelet: the container's CPU limit, the plan cannot be read"),
            (Guarantee::Pids, unknown, "delegated to the kubelet: the node's podPidsLimit, whose value is unknown"),
            (Guarantee::Kernel, kernel, "delegated to the RuntimeClass handler `kata` of the run's plan"),
        ] {
            assert_eq!(text(guarantee, planned), expected);
        }
        for (found, expected) in [
            (
                Some(("True", "it reaches its gateway and nothing else")),
                "delegated to the cluster's NetworkPolicies, checked by the pod (NetworkEnforced=True: it reaches its gateway and nothing else)",
            ),
            (
                Some(("False", "the canary answers")),
                "not held: the pod's check failed (NetworkEnforced=False: the canary answers)",
            ),
            (Some(("Unknown", "")), "not held: the pod has not checked it yet (NetworkEnforced is unknown)"),
            (None, "not held: the pod has not checked it yet (NetworkEnforced is unknown)"),
        ] {
            let found = platform_guarantee(Guarantee::Network, &status(found), unknown);
            assert_eq!(found.unwrap().to_string(), expected);
        }
        for guarantee in [Guarantee::Filesystem, Guarantee::Kernel] {
            assert_eq!(platform_guarantee(guarantee, &none, unknown), None);
        }
    }
}
