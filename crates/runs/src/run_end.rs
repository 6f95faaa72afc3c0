//! How runs end.

use serde::{Deserialize, Serialize};

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "is")]
pub enum RunEnd {
    Succeeded {
        /// Text of a model: untrusted.
        answer: String,
    },
    Failed {
        why: String,
    },
    /// Denied by a policy of the cluster that the run was sent to.
    Denied {
        /// Every violation, with hints.
        why: String,
    },
    /// The run could not be started on this machine, or in the cluster that it was sent to.
    Refused {
        /// Includes a hint.
        why: String,
    },
    TimedOut,
    /// A user ended the run.
    Cancelled,
    /// The process that realised it died before it wrote an outcome. Never stored: it follows from a lock that no
    /// process holds.
    Interrupted,
}

impl RunEnd {
    /// The exit code of `sympozium run`.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Succeeded { .. } => 0,
            Self::Refused { .. } => 1,
            Self::Denied { .. } => 3,
            Self::Failed { .. } | Self::Interrupted => 4,
            Self::TimedOut => 5,
            Self::Cancelled => 130,
        }
    }

    /// The word for tables and messages.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Succeeded { .. } => "succeeded",
            Self::Failed { .. } => "failed",
            Self::Refused { .. } => "refused",
            Self::Denied { .. } => "denied",
            Self::TimedOut => "timed out",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}
