//! `Agent` and `SympoziumInstance`: two names for one kind, with one spec.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, ChannelStatus};
use crate::defaults;
use crate::duration::DurationText;
use crate::lifecycle::LifecycleHooks;
use crate::limits;
use crate::names::{ObjectName, PolicyName, SecretName, SkillPackName};
use crate::open::{LocalReference, Volume, VolumeMount};
use crate::sandbox::{AgentSandboxDefaults, Sandbox};
use crate::schema;

mod instance;
mod services;

pub use instance::SympoziumInstance;
pub use services::{McpServer, Memory, Observability, OtlpProtocol, RateLimit, WebEndpoint, WebEndpointStatus};

/// An agent: a model, the skills it may use, the policy it is held to, and where it listens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "Agent",
    namespaced,
    status = "AgentStatus",
    shortname = "sag",
    category = "sympozium",
    doc = "An agent: a model, the skills it may use, the policy it is held to, and where it listens.",
    derive = "PartialEq",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Active Agents", type_ = "integer", json_path = ".status.activeAgentPods"),
    printcolumn(name = "Total Runs", type_ = "integer", json_path = ".status.totalAgentRuns"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policyRef", priority = 1),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.agents.default.model", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AgentSpec {
    /// What people see instead of the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub display_name: Option<String>,
    /// Chat connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CHANNELS))]
    pub channels: Vec<Channel>,
    /// What the agent's runs are like, unless a run says otherwise.
    pub agents: AgentConfigs,
    /// The skill packs that runs of the agent may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::SKILLS), transform = schema::Rules(UNIQUE_PACKS))]
    pub skills: Vec<SkillRef>,
    /// The policy that the agent is held to. One that does not exist denies every run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_ref: Option<PolicyName>,
    /// Credentials for model providers; the first that fits is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CREDENTIALS))]
    pub auth_refs: Vec<CredentialRef>,
    /// What the agent remembers from run to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Where traces go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observability: Option<Observability>,
    /// MCP servers whose tools the agent may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::MCP_SERVERS))]
    pub mcp_servers: Vec<McpServer>,
    /// An HTTP endpoint for the agent. The pack `web-endpoint` is the newer way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_endpoint: Option<WebEndpoint>,
    /// Secrets to pull images with, for every run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CREDENTIALS))]
    pub image_pull_secrets: Vec<LocalReference>,
    /// Volumes of every run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub volumes: Vec<Volume>,
    /// Where the agent's container sees those volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::VOLUMES))]
    pub volume_mounts: Vec<VolumeMount>,
}

/// The rule of every list of skills: a pack has one sidecar in a run, so it cannot be listed twice.
pub(crate) const UNIQUE_PACKS: &[(&str, &str)] = &[(
    "self.all(one, !has(one.skillPackRef) || self.exists_one(other, has(other.skillPackRef) && other.skillPackRef == one.skillPackRef))",
    "a pack can be listed once",
)];

/// Settings of the agent's runs, by name. There is one name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct AgentConfigs {
    /// What every run of the agent starts from.
    pub default: AgentConfig,
}

/// What a run of an agent is like, unless the run says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct AgentConfig {
    /// The model, by the provider's name for it.
    #[schemars(length(min = 1, max = limits::SHORT_TEXT))]
    pub model: String,
    /// The provider's address, where it is not the usual one.
    #[serde(default, rename = "baseURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::URL))]
    pub base_url: Option<String>,
    /// Headers for every request to the provider.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: limits::VALUE })]
    pub provider_headers: BTreeMap<String, String>,
    /// A Secret with more such headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_headers_secret_ref: Option<SecretName>,
    /// How long the model thinks: `off`, `low`, `medium`, `high`, or another word that the provider knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub thinking: Option<String>,
    /// A container for commands that name no skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Runs in Sandboxes of agent-sandbox instead of Jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_sandbox: Option<AgentSandboxDefaults>,
    /// How many agents a run may start, and how deep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagents: Option<Subagents>,
    /// How long a run may take, such as `30m`; ten minutes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_timeout: Option<DurationText>,
    /// Labels of the nodes that runs may be on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: 63 })]
    pub node_selector: BTreeMap<String, String>,
    /// Containers that run before and after the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<LifecycleHooks>,
    /// Environment variables of the agent. A hook sees those that it lists in `envFromRun`. Some names are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENVIRONMENT, value: limits::VALUE })]
    pub env: BTreeMap<String, String>,
}

/// How many agents a run may start, and how deep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Subagents {
    /// Levels below the first run.
    #[serde(default = "defaults::number::<2>")]
    #[schemars(range(min = 0, max = limits::DEPTH))]
    pub max_depth: i32,
    /// At a time, in the whole tree.
    #[serde(default = "defaults::number::<5>")]
    #[schemars(range(min = 0, max = limits::CONCURRENCY))]
    pub max_concurrent: i32,
    /// Of one run.
    #[serde(default = "defaults::number::<3>")]
    #[schemars(range(min = 0, max = limits::CONCURRENCY))]
    pub max_children_per_agent: i32,
}

impl Default for Subagents {
    fn default() -> Self {
        Self { max_depth: 2, max_concurrent: 5, max_children_per_agent: 3 }
    }
}

/// A skill pack that an agent or a run uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[(
    "has(self.skillPackRef) || has(self.configMapRef)",
    "a skill names a pack in `skillPackRef` or a ConfigMap in `configMapRef`",
)]))]
pub struct SkillRef {
    /// The pack, in the run's namespace or the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill_pack_ref: Option<SkillPackName>,
    /// A ConfigMap whose keys are skill texts, for skills without a sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ObjectName>,
    /// Settings of the pack. Each reaches its sidecar as a variable `SKILL_` and the key in capitals.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: limits::VALUE })]
    pub params: BTreeMap<String, String>,
}

/// A Secret with a credential.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct CredentialRef {
    /// The provider that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub provider: Option<String>,
    /// The Secret.
    pub secret: SecretName,
}

/// What the controller says about an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The phase of the agent: `Pending`, `Running`, `Serving` or `Error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<AgentPhase>,
    /// The state of its chat connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CHANNELS))]
    pub channels: Vec<ChannelStatus>,
    /// Active runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_agent_pods: Option<i32>,
    /// All runs so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_agent_runs: Option<i64>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The state of its web endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web_endpoint: Option<WebEndpointStatus>,
    /// When a run was last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_time: Option<Time>,
    /// The conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Where an agent stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum AgentPhase {
    /// Something that it needs is not there yet.
    #[default]
    Pending,
    /// Ready for runs.
    Running,
    /// Answering at a web endpoint.
    Serving,
    /// It cannot work as it is written.
    Error,
}
