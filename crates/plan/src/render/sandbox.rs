//! A Sandbox of agent-sandbox: the same pod, created by another controller.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Serialize, Serializer};
use sympozium_api::labels;

use super::RenderError;
use super::metadata::RenderContext;
use super::object::Sandbox;
use super::pod::seconds;
use super::settings::SandboxVersion;

/// The prefix of its name: agent-sandbox may create a Service of that name, which must begin with a letter.
const PREFIX: &str = "sb-";

/// The Sandbox of a run.
pub fn render(run: &RenderContext<'_>, mut template: PodTemplateSpec) -> Result<Sandbox, RenderError> {
    let version = run.settings.sandbox_version;
    let version = version.ok_or(RenderError::NoAgentSandbox)?;
    let mark = || (labels::AGENT_SANDBOX.to_owned(), "true".to_owned());
    let mut metadata = run.workload_metadata(format!("{PREFIX}{}", run.names.workload()));
    metadata.labels.get_or_insert_default().extend([mark()]);
    if let Some(metadata) = &mut template.metadata {
        metadata.labels.get_or_insert_default().extend([mark()]);
    }
    if let Some(spec) = &mut template.spec {
        // For a Job its controller enforces the deadline; here the kubelet does.
        spec.active_deadline_seconds = Some(seconds(run.plan.deadlines.ceiling_seconds));
    }
    Ok(Sandbox { version, metadata, pod_template: template })
}

impl Sandbox {
    /// The kind of the object.
    pub const KIND: &'static str = "Sandbox";
}

impl Serialize for Sandbox {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct SerializedSandbox<'a> {
            api_version: &'a str,
            kind: &'a str,
            metadata: &'a ObjectMeta,
            spec: Spec<'a>,
        }
        /// That it runs is explicit although it is the default, so that a change of the default does not stop runs from
        /// starting.
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            replicas: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            operating_mode: Option<&'a str>,
            pod_template: &'a PodTemplateSpec,
        }
        let (replicas, operating_mode) = match self.version {
            SandboxVersion::V1Alpha1 => (Some(1), None),
            SandboxVersion::V1Beta1 => (None, Some("Running")),
        };
        SerializedSandbox {
            api_version: self.version.api_version(),
            kind: Self::KIND,
            metadata: &self.metadata,
            spec: Spec { replicas, operating_mode, pod_template: &self.pod_template },
        }
        .serialize(serializer)
    }
}
