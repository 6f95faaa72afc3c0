//! Who approves calls of tools whose gate is `ask`.

use sympozium_api::policy::{ApprovalPolicy, Approver};

use super::allowed::{Allowed, Scope};

/// Seconds until a question expires when no policy sets it.
pub const DEFAULT_EXPIRY_SECONDS: u32 = 600;

/// Who approves, how many votes are needed, and how long a question stays open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Approval {
    /// Who may approve.
    pub approvers: Allowed<Approver>,
    /// The number of approvers who must vote approve.
    pub required: u32,
    /// Seconds until a question expires, where a policy sets it.
    pub expiry_seconds: Option<u32>,
    /// Whether an approval may also cover repetitions of the action in the same run.
    pub run_scope: bool,
    /// Whether the author of the run may approve.
    pub run_author: bool,
}

impl Approval {
    /// No restrictions.
    pub fn anything() -> Self {
        Self { approvers: Allowed::All, required: 1, expiry_seconds: None, run_scope: true, run_author: true }
    }

    /// The default of a policy without this section: each approval is for one action.
    pub fn usual() -> Self {
        Self { run_scope: false, ..Self::anything() }
    }

    /// From the section of a policy.
    pub fn of(policy: &ApprovalPolicy) -> Self {
        Self {
            approvers: Allowed::listed(policy.approvers.clone()),
            required: u32::try_from(policy.required_approvals).unwrap_or(1).max(1),
            expiry_seconds: Some(u32::try_from(policy.expires_after_seconds).unwrap_or(0)),
            run_scope: policy.allow_run_scope,
            run_author: policy.allow_run_author,
        }
    }

    /// The stricter of both.
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

    /// Seconds until a question expires.
    pub fn expiry(&self) -> u32 {
        self.expiry_seconds.unwrap_or(DEFAULT_EXPIRY_SECONDS)
    }
}

impl Scope for Approver {
    fn covers(&self, other: &Self) -> bool {
        self == other
    }
}
