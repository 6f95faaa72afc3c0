//! Who decides where a tool's action is `ask`.

use sympozium_api::policy::{ApprovalPolicy, Approver};

use super::allowed::{Allowed, Scope};

/// Seconds that a request for approval waits when no policy says.
pub const DEFAULT_EXPIRY_SECONDS: u32 = 600;

/// Who decides, how many of them, and how long there is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Approval {
    /// Who may decide.
    pub approvers: Allowed<Approver>,
    /// How many must say yes.
    pub required: u32,
    /// How many seconds a request waits, where a policy says.
    pub expiry_seconds: Option<u32>,
    /// Whether a yes may hold for repetitions.
    pub run_scope: bool,
    /// Whether whoever started the run may approve.
    pub run_author: bool,
}

impl Approval {
    /// Whatever a person likes.
    pub fn anything() -> Self {
        Self { approvers: Allowed::All, required: 1, expiry_seconds: None, run_scope: true, run_author: true }
    }

    /// What holds when a policy says nothing: each yes is for one action.
    pub fn usual() -> Self {
        Self { run_scope: false, ..Self::anything() }
    }

    /// What a policy says.
    pub fn of(policy: &ApprovalPolicy) -> Self {
        Self {
            approvers: Allowed::listed(policy.approvers.clone()),
            required: u32::try_from(policy.required_approvals).unwrap_or(1).max(1),
            expiry_seconds: Some(u32::try_from(policy.expires_after_seconds).unwrap_or(0)),
            run_scope: policy.allow_run_scope,
            run_author: policy.allow_run_author,
        }
    }

    /// What satisfies both.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self {
            approvers: self.approvers.meet(&other.approvers),
            required: self.required.max(other.required),
            expiry_seconds: [self.expiry_seconds, other.expiry_seconds].into_iter().flatten().min(),
            run_scope: self.run_scope && other.run_scope,
            run_author: self.run_author && other.run_author,
        }
    }

    /// Seconds that a request waits.
    pub fn expiry(&self) -> u32 {
        self.expiry_seconds.unwrap_or(DEFAULT_EXPIRY_SECONDS)
    }
}

impl Scope for Approver {
    fn covers(&self, other: &Self) -> bool {
        self == other
    }
}
