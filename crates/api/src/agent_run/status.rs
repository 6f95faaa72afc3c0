//! The status of a run. Controller and gateway have fields of their own: the gateway writes `report`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guarantee::Guarantee;
use crate::limits;
use crate::names::{Digest, NamespaceName, ObjectName, RunName, Uid};
use crate::schema;

/// The prefix of a run's error when its deadline has passed.
pub const TIMEOUT_ERROR_PREFIX: &str = "the run's time is up";

/// The conditions of a run.
pub mod condition {
    /// Whether the run may exist.
    pub const ADMITTED: &str = "Admitted";
    /// Whether its parts have their grants.
    pub const GRANTED: &str = "Granted";
    /// Whether all its containers have started.
    pub const STARTED: &str = "Started";
    /// Whether its NetworkPolicy is enforced.
    pub const NETWORK_ENFORCED: &str = "NetworkEnforced";
    /// Whether its agent has finished. Set for runs with hooks afterwards, whose timeout counts from then.
    pub const AGENT_ENDED: &str = "AgentEnded";
    /// Whether its grants were revoked, and its objects torn down and verified.
    pub const REVOKED: &str = "Revoked";
}

/// Reasons of conditions that programs read.
pub mod reason {
    /// Of [`condition::ADMITTED`](super::condition::ADMITTED): a rule or a policy denies the run.
    pub const DENIED: &str = "Denied";
    /// Of [`condition::ADMITTED`](super::condition::ADMITTED): the run is allowed, and cannot be realised here.
    pub const IMPOSSIBLE: &str = "Impossible";
}

/// What has become of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunStatus {
    /// The phase of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The run's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<ObjectName>,
    /// The UID of the first pod; no other is served.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<Uid>,
    /// The run's Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_name: Option<ObjectName>,
    /// The run's Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_name: Option<ObjectName>,
    /// The run's claim on a warm sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_claim_name: Option<ObjectName>,
    /// The Deployment of a run in server mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_name: Option<ObjectName>,
    /// The Service of a run in server mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<ObjectName>,
    /// The Job of the hooks after the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_run_job_name: Option<ObjectName>,
    /// When the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// The agent's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::LONG_TEXT))]
    pub result: Option<String>,
    /// Why the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub error: Option<String>,
    /// The exit code of the agent's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Tokens of requests to the model and of its answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_usage: Option<TokenUsage>,
    /// What that cost, by the prices that the controller was given. Absent without a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_estimate: Option<CostEstimate>,
    /// The trace that the run belongs to.
    #[serde(default, rename = "traceID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub trace_id: Option<String>,
    /// What a gate decided about the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_verdict: Option<GateVerdict>,
    /// Runs that this one started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::DELEGATES))]
    pub delegates: Vec<Delegate>,
    /// The SHA-256 of the plan: what the run may touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<Digest>,
    /// The agent, packs and policies as they were when the run was planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CONTAINERS))]
    pub resolved: Vec<ResolvedObject>,
    /// The objects that were created for the run and must be deleted with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::GRANTS))]
    pub grants: Vec<GrantRecord>,
    /// When the run's permissions were granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_at: Option<Time>,
    /// When the last of them was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    /// The isolation that was live, part by part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CONTAINERS))]
    pub isolation: Vec<IsolationRecord>,
    /// Containers that failed, with the end of their logs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CONTAINERS))]
    pub failed_containers: Vec<ContainerFailure>,
    /// The check that nothing of the run is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocation: Option<Revocation>,
    /// The run's last report, through the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<RunReport>,
    /// The conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum Phase {
    /// Something that it needs is not there yet.
    #[default]
    Pending,
    /// The agent works.
    Running,
    /// The agent waits for requests (server mode).
    Serving,
    /// The hooks after the run work.
    PostRunning,
    /// The agent waits for a run that it started.
    AwaitingDelegate,
    /// Final: there is an answer.
    Succeeded,
    /// Final: there is an error.
    Failed,
    /// Final: a hook before the run reported that there is nothing to do.
    Skipped,
    /// Final: a user cancelled the run.
    Cancelled,
}

impl Phase {
    /// Whether the phase is final.
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Running | Self::Serving | Self::PostRunning | Self::AwaitingDelegate => false,
            Self::Succeeded | Self::Failed | Self::Skipped | Self::Cancelled => true,
        }
    }
}

/// Tokens of requests to the model and of its answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct TokenUsage {
    /// Tokens that it read.
    pub input_tokens: i64,
    /// Tokens that it wrote.
    pub output_tokens: i64,
    /// Both.
    pub total_tokens: i64,
    /// Tools that it called.
    pub tool_calls: i64,
    /// Requests that were made to it.
    #[serde(default)]
    pub model_requests: i64,
    /// Whether some of the tokens are estimates, because the provider did not count them.
    #[serde(default)]
    pub estimated: bool,
    /// Milliseconds from first to last.
    pub duration_ms: i64,
}

/// What a run cost, in millionths of the currency's unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct CostEstimate {
    /// All of it, in millionths.
    pub amount_micro: i64,
    /// For what the model read, in millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_amount_micro: Option<i64>,
    /// For what it wrote, in millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_amount_micro: Option<i64>,
    /// The currency, such as `USD`.
    #[schemars(length(max = 8))]
    pub currency: String,
    /// Where the price comes from: `defaultTable` or `simulated`.
    pub source: CostSource,
    /// The price that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub price_key: Option<String>,
    /// When the cost was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_at: Option<Time>,
}

/// Where a price comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub enum CostSource {
    /// The installation's table.
    DefaultTable,
    /// Prices that the user made up.
    Simulated,
}

/// What a gate decided about an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(transform = schema::drop_description)]
pub enum GateVerdict {
    /// It went out.
    Approved,
    /// It was withheld.
    Rejected,
    /// Another went out.
    Rewritten,
    /// No verdict in time.
    Timeout,
    /// The gate failed.
    Error,
    /// No verdict, and that means yes.
    AllowedByDefault,
}

/// A run that another started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Delegate {
    /// Its name.
    pub child_run_name: RunName,
    /// The agent that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub target_persona: Option<String>,
    /// The batch that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub batch_id: Option<String>,
    /// Its place in the batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub task_id: Option<String>,
    /// Its phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub result: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub error: Option<String>,
}

/// An object that a plan was made from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ResolvedObject {
    /// `Agent`, `SkillPack`, `SympoziumPolicy` and so on.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// Its namespace.
    pub namespace: NamespaceName,
    /// Its name.
    pub name: ObjectName,
    /// Its UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The SHA-256 of its spec.
    pub digest: Digest,
}

/// An object that was made for a run and must go with it. Labels find such objects; this record decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct GrantRecord {
    /// `Role`, `ClusterRoleBinding`, `ServiceAccount`, `Secret` and so on.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// Its namespace; none if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<NamespaceName>,
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its UID; absent from the moment before it is made until the moment after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The pack that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub skill: Option<String>,
    /// What it is to the run, which decides when it is revoked or torn down; absent in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<GrantRole>,
}

impl GrantRecord {
    /// The recorded role or, in a record of a release that recorded none, the one that such a release derived from kind
    /// and name.
    pub fn role(&self) -> GrantRole {
        self.role.unwrap_or_else(|| match self.kind.as_str() {
            "RoleBinding" | "ClusterRoleBinding" => GrantRole::Binding,
            "Secret" if self.name.ends_with("token") => GrantRole::Token,
            "Job" | "Sandbox" => GrantRole::Workload,
            _ => GrantRole::Other,
        })
    }
}

/// What an object is to its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum GrantRole {
    /// It gives an account permissions; revoked first, which takes effect at once.
    Binding,
    /// A Secret with the token of an account; revoked after the bindings.
    Token,
    /// It creates pods; torn down before what confines them.
    Workload,
    /// It gives nothing by itself; torn down when no pod of the run is left.
    Other,
}

/// The isolation of one part of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct IsolationRecord {
    /// The container or local process.
    #[schemars(length(max = 63))]
    pub part: String,
    /// Where it ran: `container`, `gvisor`, `host-root`, `host-user`, or `pod spec, not attested`.
    #[schemars(length(max = 63))]
    pub profile: String,
    /// What was enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = Guarantee::ALL.len()))]
    pub guarantees: Vec<Guarantee>,
}

/// A container that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ContainerFailure {
    /// Its name.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Why, in a word or a line.
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub reason: String,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The end of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::LOG_TAIL))]
    pub log_tail: Option<String>,
}

/// The check that nothing of a run is left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Revocation {
    /// When it was made.
    pub checked_at: Time,
    /// What was left at that time; empty if nothing was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::GRANTS))]
    pub remaining: Vec<GrantRecord>,
}

/// What a run reports about itself. The gateway writes it; the controller believes it no more than it must.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct RunReport {
    /// When it came.
    pub reported_at: Time,
    /// How many reports there were.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub reports: i64,
    /// The digest of the last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_report: Option<Digest>,
    /// What the run is doing: `starting`, `working`, `waiting` or `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ReportedPhase>,
    /// The agent's last progress message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub progress: Option<String>,
    /// Whether the agent has ended.
    #[serde(default)]
    pub finished: bool,
    /// How it ended: `answered`, `failed`, `crashed`, `neverCame`, `timedOut` or `stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<AgentEndKind>,
    /// The agent's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::LONG_TEXT))]
    pub result: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub error: Option<String>,
    /// Tokens of requests to the model and of its answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_usage: Option<TokenUsage>,
    /// The isolation that was live, part by part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::CONTAINERS))]
    pub isolation: Vec<IsolationRecord>,
    /// The requests for approval that the agent waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES))]
    pub waiting_for: Vec<ObjectName>,
    /// Receipts so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub receipts: Option<i64>,
    /// The hash of the last receipt; it covers all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts_head: Option<Digest>,
    /// How many `RunRecord`s hold the receipts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub receipt_segments: Option<i64>,
    /// How many `RunRecord`s hold the transcript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub transcript_segments: Option<i64>,
    /// Bytes of the transcript that are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub transcript_bytes: Option<i64>,
    /// Whether the transcript was longer than what is stored.
    #[serde(default)]
    pub transcript_cut: bool,
}

/// What a run says it is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub enum ReportedPhase {
    /// The bridge waits for the agent.
    Starting,
    /// The agent is there.
    Working,
    /// A person is asked.
    Waiting,
    /// It has ended.
    Ended,
}

/// How the agent of a run ended, as the run reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub enum AgentEndKind {
    /// With an answer.
    Answered,
    /// The agent reported why there is none.
    Failed,
    /// The agent disconnected without an answer.
    Crashed,
    /// The agent never connected.
    NeverCame,
    /// Its time was up.
    TimedOut,
    /// It was asked to end.
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_of(kind: &str, name: &str, role: Option<GrantRole>) -> GrantRole {
        GrantRecord { kind: kind.to_owned(), name: name.to_owned(), role, ..GrantRecord::default() }.role()
    }

    #[test]
    fn a_record_without_a_role_has_that_of_its_kind_and_name() {
        for (kind, name, expected) in [
            ("RoleBinding", "run-1-skill0", GrantRole::Binding),
            ("ClusterRoleBinding", "run-1-skill0", GrantRole::Binding),
            ("Secret", "run-1-skill0token", GrantRole::Token),
            ("Secret", "run-1-skill0", GrantRole::Other),
            ("Job", "run-1", GrantRole::Workload),
            ("Sandbox", "run-1", GrantRole::Workload),
            ("ServiceAccount", "run-1-skill0token", GrantRole::Other),
        ] {
            assert_eq!(role_of(kind, name, None), expected, "{kind} {name}");
        }
    }

    #[test]
    fn a_recorded_role_counts_whatever_the_name() {
        assert_eq!(role_of("Secret", "run-1-token", Some(GrantRole::Other)), GrantRole::Other);
        assert_eq!(role_of("Secret", "run-1-key", Some(GrantRole::Token)), GrantRole::Token);
        let stored = serde_json::json!({ "kind": "Secret", "name": "run-1-key", "role": "Token" });
        let record: GrantRecord = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(&record).unwrap(), stored);
    }
}
