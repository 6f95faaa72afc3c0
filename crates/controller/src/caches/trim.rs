//! Trims objects to the fields that are needed, before they are stored.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use kube::Resource;
use sympozium_api::agent_run::AgentRunStatus;
use sympozium_api::{AgentRun, AgentRunSpec};

use super::is_torn_down;

/// Drops `managedFields`, which nothing here uses.
pub fn trim<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Keeps only what lists need of a run that is torn down.
pub fn trim_run(run: &mut AgentRun) {
    trim(run);
    if !is_torn_down(run) {
        return;
    }
    let spec = std::mem::take(&mut run.spec);
    run.spec = AgentRunSpec {
        agent_ref: spec.agent_ref,
        instance_ref: spec.instance_ref,
        parent: spec.parent,
        ..AgentRunSpec::default()
    };
    if let Some(status) = run.status.take() {
        run.status = Some(AgentRunStatus {
            phase: status.phase,
            completed_at: status.completed_at,
            revocation: status.revocation,
            ..AgentRunStatus::default()
        });
    }
    run.metadata.annotations = None;
    run.metadata.labels = None;
}

pub fn trim_job(job: &mut Job) {
    trim(job);
    if let Some(spec) = &mut job.spec {
        spec.template = Default::default();
    }
}

/// Keeps readiness and runtimes. The list of images alone can have thousands of entries.
pub fn trim_node(node: &mut Node) {
    trim(node);
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}

/// Drops the pod's specification, which is in the plan, and keeps its status.
pub fn trim_pod(pod: &mut Pod) {
    trim(pod);
    pod.metadata.annotations = None;
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            host_users: spec.host_users,
            runtime_class_name: spec.runtime_class_name,
            ..PodSpec::default()
        });
    }
}
