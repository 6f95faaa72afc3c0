//! `SympoziumSchedule`: recurring runs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::limits;
use crate::names::{AgentName, RunName};
use crate::schema;

/// When an agent is given which task, again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "SympoziumSchedule",
    namespaced,
    status = "SympoziumScheduleStatus",
    shortname = "ssched",
    category = "sympozium",
    doc = "When an agent is given which task, again and again.",
    derive = "PartialEq",
    printcolumn(name = "Agent", type_ = "string", json_path = ".spec['agentRef','instanceRef']"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Last Run", type_ = "date", json_path = ".status.lastRunTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::Rules(&[
    (
        "has(self.agentRef) || has(self.instanceRef)",
        "a schedule needs an agent: set `agentRef` (or `instanceRef`)",
    ),
    (
        "!has(self.agentRef) || !has(self.instanceRef) || self.agentRef == self.instanceRef",
        "`agentRef` and `instanceRef` name the same agent: set one, or both to the same name",
    ),
]))]
pub struct SympoziumScheduleSpec {
    /// The agent, in the same namespace. This or `instanceRef` is needed; if both are set they must be equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ref: Option<AgentName>,
    /// The agent, by the older name of this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_ref: Option<AgentName>,
    /// When, as five fields of cron (minute, hour, day of month, month, day of week) or `@hourly` and the like.
    #[schemars(
        length(min = 1, max = limits::CRON),
        regex(pattern = r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[^ \t]+([ \t]+[^ \t]+){4})$")
    )]
    pub schedule: String,
    /// What the agent is to do.
    #[schemars(length(min = 1, max = limits::LONG_TEXT))]
    pub task: String,
    /// What kind of work it is: `heartbeat`, `scheduled` or `sweep`.
    #[serde(default, rename = "type")]
    pub type_: ScheduleType,
    /// Whether it pauses.
    #[serde(default)]
    pub suspend: bool,
    /// What happens when a run is due and the last one has not ended: `Forbid`, `Allow` or `Replace`.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// Whether the agent is given what it remembers.
    #[serde(default = "defaults::yes")]
    pub include_memory: bool,
    /// When the first run comes: `immediate` or `afterInterval`.
    #[serde(default)]
    pub first_tick: FirstTick,
}

impl Default for SympoziumScheduleSpec {
    fn default() -> Self {
        Self {
            agent_ref: None,
            instance_ref: None,
            schedule: String::new(),
            task: String::new(),
            type_: ScheduleType::default(),
            suspend: false,
            concurrency_policy: ConcurrencyPolicy::default(),
            include_memory: true,
            first_tick: FirstTick::default(),
        }
    }
}

impl SympoziumScheduleSpec {
    /// The agent, from either of its two fields; `None` if both are absent, or if they differ.
    pub fn agent(&self) -> Option<&AgentName> {
        match (&self.agent_ref, &self.instance_ref) {
            (Some(agent), Some(instance)) => (agent == instance).then_some(agent),
            (agent, instance) => agent.as_ref().or(instance.as_ref()),
        }
    }
}

/// What kind of work a schedule is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum ScheduleType {
    /// A look at how things are.
    Heartbeat,
    /// A task with a time.
    #[default]
    Scheduled,
    /// A search through everything.
    Sweep,
}

/// What happens when a run is due and the last one has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum ConcurrencyPolicy {
    /// Nothing.
    #[default]
    Forbid,
    /// A second run.
    Allow,
    /// The last run is cancelled, and a new one starts.
    Replace,
}

/// When the first run comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub enum FirstTick {
    /// At once.
    #[default]
    Immediate,
    /// When it is time.
    AfterInterval,
}

/// What the controller says about a schedule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SympoziumScheduleStatus {
    /// `Active`, `Suspended` or `Error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SchedulePhase>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the last run was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_time: Option<Time>,
    /// When the next comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_run_time: Option<Time>,
    /// The last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run_name: Option<RunName>,
    /// How many there have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_runs: Option<i64>,
    /// The conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Where a schedule stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum SchedulePhase {
    /// Runs come.
    Active,
    /// It pauses.
    Suspended,
    /// It cannot work as it is written.
    Error,
}
