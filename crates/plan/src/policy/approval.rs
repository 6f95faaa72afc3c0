//! Who approves calls of tools whose gate is `ask`.

use sympozium_api::policy::{ApprovalPolicy, Approver};

use super::allowed::{Allowed, Pattern};

/// Seconds until a question expires when no policy sets it.
pub const DEFAULT_EXPIRY_SECONDS: u32 = 600;

/// Who approves, how many votes are needed, and how long a question stays open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApprovalBounds {
    /// Who may approve.
    pub approvers: Allowed<Approver>,
    /// The number of approvers who must vote approve.
    pub required_votes: u32,
    /// Seconds until a question expires, where a policy sets it.
    pub expiry_seconds: Option<u32>,
    /// Whether an approval may also cover repetitions of the action in the same run.
    pub allow_run_scope: bool,
    /// Whether the author of the run may approve.
    pub allow_run_author: bool,
}

impl ApprovalBounds {
    /// No restrictions.
    pub fn unrestricted() -> Self {
        Self {
            approvers: Allowed::All,
            required_votes: 1,
            expiry_seconds: None,
            allow_run_scope: true,
            allow_run_author: true,
        }
    }

    /// The default of a policy without this section: each approval is for one action.
    pub fn per_action() -> Self {
        Self { allow_run_scope: false, ..Self::unrestricted() }
    }

    /// From the section of a policy.
    pub fn from_policy(policy: &ApprovalPolicy) -> Self {
        Self {
            approvers: Allowed::from_list(policy.approvers.clone()),
            required_votes: u32::try_from(policy.required_approvals).unwrap_or(1).max(1),
            expiry_seconds: Some(u32::try_from(policy.expires_after_seconds).unwrap_or(0)),
            allow_run_scope: policy.allow_run_scope,
            allow_run_author: policy.allow_run_author,
        }
    }

    /// The stricter of both.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self {
            approvers: self.approvers.meet(&other.approvers),
            required_votes: self.required_votes.max(other.required_votes),
            expiry_seconds: [self.expiry_seconds, other.expiry_seconds].into_iter().flatten().min(),
            allow_run_scope: self.allow_run_scope && other.allow_run_scope,
            allow_run_author: self.allow_run_author && other.allow_run_author,
        }
    }

    /// Seconds until a question expires.
    pub fn expiry_or_default(&self) -> u32 {
        self.expiry_seconds.unwrap_or(DEFAULT_EXPIRY_SECONDS)
    }
}

impl Pattern for Approver {
    fn covers(&self, other: &Self) -> bool {
        self == other
    }
}
