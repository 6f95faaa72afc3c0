//! `AgentRun`: one task for one agent, from admission to verified teardown.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent::{SkillRef, UNIQUE_PACKS};
use crate::defaults;
use crate::duration::DurationText;
use crate::lifecycle::LifecycleHooks;
use crate::limits;
use crate::names::{AgentName, ModelRef, OptionalSecretName, RunName, SecretName, ToolPattern};
use crate::open::{LocalReference, Volume, VolumeMount};
use crate::sandbox::{AgentSandbox, Sandbox};
use crate::schema;

mod rules;
mod status;
mod task;

pub use status::{
    AgentEndKind, AgentRunStatus, ContainerFailure, CostEstimate, CostSource, Delegate, GateVerdict, GrantRecord,
    GrantRole, IsolationRecord, Phase, ReportedPhase, ResolvedObject, Revocation, RunReport, TIMEOUT_ERROR_PREFIX,
    TokenUsage, condition, reason,
};
pub use task::{StructuredTask, Task};

/// What a run is to do, with what. It cannot be changed once it is created, except to cancel it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "AgentRun",
    namespaced,
    status = "AgentRunStatus",
    shortname = "srun",
    category = "sympozium",
    doc = "One task for one agent. Its skills have their rights for as long as it lasts, and no longer.",
    derive = "PartialEq",
    validation = (rules::PLAN_IS_FINAL, "a run is planned once: `status.planDigest` stays"),
    validation = (rules::POD_IS_FINAL, "a run has one pod: `status.podUID` stays"),
    validation = (rules::TERMINAL_IS_FINAL, "a run that is over stays over"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".spec['agentRef','instanceRef']"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Pod", type_ = "string", json_path = ".status.podName"),
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.model.model",
        priority = 1
    ),
    printcolumn(
        name = "Plan",
        type_ = "string",
        json_path = ".status.planDigest",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::Rules(rules::SPEC_RULES))]
pub struct AgentRunSpec {
    /// The agent, in the same namespace. This or `instanceRef` is needed; if both are set they must be equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<AgentName>,
    /// The agent, by the older name of this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_ref: Option<AgentName>,
    /// Which of an agent's roles this is; free to choose.
    #[serde(default = "primary")]
    #[schemars(length(max = 253))]
    pub agent_id: String,
    /// The conversation that the run belongs to; free to choose.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub session_key: String,
    /// What the agent is to do: a text, or an object `{mode, tool, parameters}` for a skill that leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Text for the agent, before the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::LONG_TEXT))]
    pub system_prompt: Option<String>,
    /// The model; the agent's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<RunModel>,
    /// The run that started this one. Set by the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentRun>,
    /// The skill packs; the agent's when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::SKILLS), transform = schema::Rules(UNIQUE_PACKS))]
    pub skills: Vec<SkillRef>,
    /// The tools that this run may use, of those that the policy permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_policy: Option<ToolPolicy>,
    /// A container for commands that name no skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// A Sandbox of agent-sandbox instead of a Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_sandbox: Option<AgentSandbox>,
    /// How long the run may take, such as `30m`; the agent's when absent. Waiting for a person does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// What happens to the pod after the run: `delete` or `keep`. The run's permissions are revoked in any case.
    #[serde(default)]
    pub cleanup: Cleanup,
    /// Whether the run ends with its task (`task`) or waits for more (`server`).
    #[serde(default)]
    pub mode: RunMode,
    /// Whether the agent is given what it remembers. Nothing is remembered yet.
    #[serde(default = "defaults::yes")]
    pub use_context: bool,
    /// Whether to plan the run and go no further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
    /// Whether this run only checks that runs work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_mode: Option<bool>,
    /// Environment variables of the agent. A hook sees those that it lists in `envFromRun`. Some names are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENVIRONMENT, value: limits::VALUE })]
    pub env: BTreeMap<String, String>,
    /// Containers that run before and after the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<LifecycleHooks>,
    /// Secrets to pull images with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CREDENTIALS))]
    pub image_pull_secrets: Vec<LocalReference>,
    /// Volumes of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub volumes: Vec<Volume>,
    /// Where the agent's container sees those volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub volume_mounts: Vec<VolumeMount>,
    /// Set to true to cancel the run. No other field can be changed, and this one only to true.
    #[serde(default)]
    pub cancel: bool,
}

const PRIMARY: &str = "primary";

fn primary() -> String {
    PRIMARY.to_owned()
}

impl Default for AgentRunSpec {
    fn default() -> Self {
        Self {
            agent_ref: None,
            instance_ref: None,
            agent_id: primary(),
            session_key: String::new(),
            task: None,
            system_prompt: None,
            model: None,
            parent: None,
            skills: Vec::new(),
            tool_policy: None,
            sandbox: None,
            agent_sandbox: None,
            timeout: None,
            cleanup: Cleanup::default(),
            mode: RunMode::default(),
            use_context: true,
            dry_run: None,
            canary_mode: None,
            env: BTreeMap::new(),
            lifecycle: None,
            image_pull_secrets: Vec::new(),
            volumes: Vec::new(),
            volume_mounts: Vec::new(),
            cancel: false,
        }
    }
}

impl AgentRunSpec {
    /// The agent, from either of its two fields; `None` if both are absent, or if they differ.
    pub fn agent(&self) -> Option<&AgentName> {
        match (&self.agent_ref, &self.instance_ref) {
            (Some(agent), Some(instance)) => (agent == instance).then_some(agent),
            (agent, instance) => agent.as_ref().or(instance.as_ref()),
        }
    }
}

/// The model of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct RunModel {
    /// Who serves it: `openai`, `anthropic`, `ollama` and so on.
    #[schemars(length(min = 1, max = limits::WORD))]
    pub provider: String,
    /// The model, by the provider's name for it.
    #[schemars(length(min = 1, max = limits::SHORT_TEXT))]
    pub model: String,
    /// The Secret with the provider's key; empty where none is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_secret_ref: Option<OptionalSecretName>,
    /// The provider's address, where it is not the usual one.
    #[serde(default, rename = "baseURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::URL))]
    pub base_url: Option<String>,
    /// How long the model thinks: `off`, `low`, `medium`, `high`, or another word that the provider knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub thinking: Option<String>,
    /// Headers for every request to the provider.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: limits::VALUE })]
    pub provider_headers: BTreeMap<String, String>,
    /// A Secret with more such headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_headers_secret_ref: Option<SecretName>,
    /// A `Model` that serves it in the cluster, as `name` or `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_ref: Option<ModelRef>,
    /// Labels of the nodes that the run may be on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: 63 })]
    pub node_selector: BTreeMap<String, String>,
}

/// The run that started another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ParentRun {
    /// Its name.
    pub run_name: RunName,
    /// Its conversation.
    #[schemars(length(max = 253))]
    pub session_key: String,
    /// How many runs are above this one.
    #[schemars(range(min = 0, max = limits::DEPTH))]
    pub spawn_depth: i32,
}

/// The tools that a run may use, of those that the policy permits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ToolPolicy {
    /// These and no others, as `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`. Absent: no such limit. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub allow: Option<Vec<ToolPattern>>,
    /// Not these, allowed or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES))]
    pub deny: Vec<ToolPattern>,
}

/// What becomes of a run's pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum Cleanup {
    /// The pod is deleted when the run has ended.
    #[default]
    Delete,
    /// The pod stays for inspection, without any permission.
    Keep,
}

/// Whether a run ends with its task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum RunMode {
    /// It does.
    #[default]
    Task,
    /// It waits for more.
    Server,
}
