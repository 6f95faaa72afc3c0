//! Who approves calls of tools whose gate is `ask`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::limits;
use crate::schema;

/// Who decides, how many of them, and how long there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ApprovalPolicy {
    /// Who may decide, of the users who may write the request's status. Absent: all of them. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::APPROVERS))]
    pub approvers: Option<Vec<Approver>>,
    /// How many approvers must approve. One denial is enough.
    #[serde(default = "defaults::number::<1>")]
    #[schemars(range(min = 1, max = limits::APPROVALS))]
    pub required_approvals: i32,
    /// How many seconds a request waits. After that it is denied.
    #[serde(default = "defaults::number::<600>")]
    #[schemars(range(min = limits::MIN_APPROVAL_SECONDS, max = limits::MAX_APPROVAL_SECONDS))]
    pub expires_after_seconds: i32,
    /// Whether an approval may cover repetitions of the identical action in this run.
    #[serde(default)]
    pub allow_run_scope: bool,
    /// Whether the user who started the run may approve what it does.
    #[serde(default = "defaults::yes")]
    pub allow_run_author: bool,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self {
            approvers: None,
            required_approvals: 1,
            expires_after_seconds: 600,
            allow_run_scope: false,
            allow_run_author: true,
        }
    }
}

/// A user or group that may decide, as the API server knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Approver {
    /// `User` or `Group`. A service account is a user named `system:serviceaccount:<namespace>:<name>`.
    pub kind: ApproverKind,
    /// The name.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
}

/// A person, or all of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum ApproverKind {
    /// One user.
    User,
    /// Every member of a group.
    Group,
}
