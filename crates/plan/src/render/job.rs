//! Jobs: the run, and the hooks after it.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sympozium_api::agent_run::Cleanup;
use sympozium_api::labels::component;

use super::metadata::RenderContext;
use super::pod::seconds;

/// The suffix of the Job with the hooks after a run.
const AFTER_RUN_SUFFIX: &str = "post";

/// The Job of a run.
pub fn run_job(run: &RenderContext<'_>, template: PodTemplateSpec) -> Job {
    let metadata = run.workload_metadata(run.names.workload().to_owned());
    let deadline = run.plan.deadlines.ceiling_seconds;
    job(run, metadata, deadline, template)
}

/// The Job of the hooks after a run. Its deadline is the sum of their timeouts, and the time that a pod needs to start
/// and to end, as for an agent.
pub fn after_run_job(run: &RenderContext<'_>, template: PodTemplateSpec) -> Job {
    let deadline = run.plan.after_run_seconds().unwrap_or_default();
    let metadata = run.namespaced_metadata(AFTER_RUN_SUFFIX, component::POST_RUN);
    job(run, metadata, deadline, template)
}

/// One pod, once: a command must never be executed twice.
fn job(run: &RenderContext<'_>, metadata: ObjectMeta, deadline: u64, template: PodTemplateSpec) -> Job {
    let ttl = run.settings.ttl_seconds_after_finished;
    Job {
        metadata,
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            completions: Some(1),
            parallelism: Some(1),
            pod_replacement_policy: Some("Failed".to_owned()),
            active_deadline_seconds: Some(seconds(deadline)),
            ttl_seconds_after_finished: ttl.filter(|_| run.plan.cleanup == Cleanup::Delete),
            template,
            ..JobSpec::default()
        }),
        status: None,
    }
}
