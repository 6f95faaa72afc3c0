//! `ToolApproval`: a question about one action of one run, which approvers decide through its status.
//!
//! Like a CertificateSigningRequest: the gateway writes the spec once, an approver writes the status, and RBAC
//! separates the two.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::names::{Digest, RunName, SkillPackName, Uid};
use crate::schema;

/// True while a decision, once made, does not change. A rule of the whole object: a rule of the status would not be
/// evaluated when the status is removed.
const DECIDED_ONCE: &str = "!has(oldSelf.status) || !has(oldSelf.status.decision) || (\
    has(self.status) && has(self.status.decision) && \
    self.status.decision == oldSelf.status.decision && \
    self.status.decidedBy == oldSelf.status.decidedBy && \
    self.status.decidedAt == oldSelf.status.decidedAt && \
    has(self.status.scope) == has(oldSelf.status.scope) && \
    (!has(self.status.scope) || self.status.scope == oldSelf.status.scope))";

/// A request for one action by one run. The gateway writes it; it cannot be changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "ToolApproval",
    namespaced,
    status = "ToolApprovalStatus",
    shortname = "sta",
    category = "sympozium",
    doc = "A request for one action by one run, decided by people through its status. Unanswered, it means no.",
    derive = "PartialEq",
    validation = (DECIDED_ONCE, "this request is decided already, and a decision is final"),
    printcolumn(name = "Run", type_ = "string", json_path = ".spec.run.name"),
    printcolumn(name = "Tool", type_ = "string", json_path = ".spec.tool"),
    printcolumn(name = "Pack", type_ = "string", json_path = ".spec.pack"),
    printcolumn(name = "Decision", type_ = "string", json_path = ".status.decision"),
    printcolumn(name = "By", type_ = "string", json_path = ".status.decidedBy"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".spec.expiresAt"),
    printcolumn(
        name = "Summary",
        type_ = "string",
        json_path = ".spec.summary",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::Rules(&[
    (
        "self == oldSelf",
        "a request for approval cannot be changed: what people decide about must stay what they have read",
    ),
    (
        "self.requestedAt < self.expiresAt",
        "`expiresAt` must be after `requestedAt`",
    ),
]))]
pub struct ToolApprovalSpec {
    /// The run that asks.
    pub run: RunReference,
    /// The tool that it wants to use.
    #[schemars(length(min = 1, max = 128))]
    pub tool: String,
    /// The pack whose sidecar would act; none for the agent's own tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<SkillPackName>,
    /// The SHA-256 of the exact action. A decision is about this and nothing else.
    pub action_hash: Digest,
    /// What would be done, for people. Files in the workspace are not part of it.
    #[schemars(length(min = 1, max = limits::APPROVAL_SUMMARY))]
    pub summary: String,
    /// When it was asked.
    pub requested_at: Time,
    /// When the answer becomes no by itself.
    pub expires_at: Time,
}

/// A run, and no other of the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct RunReference {
    /// Its name, in the same namespace.
    pub name: RunName,
    /// Its UID.
    pub uid: Uid,
}

/// What people decided.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::Rules(&[(
    "has(self.decision) == has(self.decidedBy) && has(self.decision) == has(self.decidedAt)",
    "`decision`, `decidedBy` and `decidedAt` go together",
)]))]
pub struct ToolApprovalStatus {
    /// What was decided, once enough people have: `approved` or `denied`. It is final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ApprovalDecision>,
    /// Whose vote decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub decided_by: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Time>,
    /// Why, in their words. The agent reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub reason: Option<String>,
    /// The scope of an approval: `once`, or `run` for the identical action as often as the run repeats it; `once` when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ApprovalScope>,
    /// Who has voted, where one is not enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = limits::APPROVERS),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["by"])
    )]
    pub votes: Vec<ApprovalVote>,
    /// The conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum ApprovalDecision {
    /// Yes.
    Approved,
    /// No.
    Denied,
}

/// The scope of an approval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum ApprovalScope {
    /// One time.
    #[default]
    Once,
    /// The identical action, as often as this run repeats it.
    Run,
}

/// One person's vote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ApprovalVote {
    /// Who, as the API server knows them.
    #[schemars(length(min = 1, max = 512))]
    pub by: String,
    /// The groups in whose name they vote, where a policy names groups as approvers. Who votes says which; the API server
    /// must hold that against the groups that it knows them in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::APPROVER_GROUPS), inner(length(min = 1, max = 512)))]
    pub groups: Vec<String>,
    /// `approved` or `denied`.
    pub decision: ApprovalDecision,
    /// When.
    pub at: Time,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub reason: Option<String>,
    /// The scope of their approval; `once` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ApprovalScope>,
}
