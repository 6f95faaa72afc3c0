//! Serialisation of plans.

use serde::{Deserialize, Serialize};

use super::RunPlan;
use crate::digest::{self, CanonicalJsonError};
use crate::names::Digest;

/// The value of the field `format` of a plan.
pub const FORMAT: &str = "sympozium.ai/run-plan/v1";
/// The domain of a plan's digest.
pub const DOMAIN: &str = FORMAT;
/// Maximum size of a stored plan. It is stored alone in a ConfigMap.
pub const MAX_BYTES: usize = 512 << 10;

/// Characters of an unknown format that an error repeats.
const MAX_REPEATED_CHARS: usize = 64;

/// The format of a plan. There is only one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// The first format.
    #[default]
    #[serde(rename = "sympozium.ai/run-plan/v1")]
    V1,
}

/// Why a text is not a plan, or not one for this release.
#[derive(Debug, thiserror::Error)]
pub enum UnreadablePlan {
    /// Larger than [`MAX_BYTES`].
    #[error("the plan has {0} bytes; {MAX_BYTES} are read")]
    TooLarge(usize),
    /// The format of another release.
    #[error("the plan is written as `{0}`; this release reads `{FORMAT}`")]
    Format(String),
    /// Not a plan.
    #[error("this is not a plan that this release understands")]
    Json(#[from] serde_json::Error),
    /// The plan has a field that this release does not know, or is not canonical JSON.
    #[error("the plan holds something that this release does not know, or was changed after it was made")]
    Unknown,
    /// Another plan than the expected one.
    #[error("the plan has digest {found}, and {expected} was expected")]
    Digest {
        /// The expected digest.
        expected: Digest,
        /// The digest of the plan that was read.
        found: Digest,
    },
}

impl RunPlan {
    /// The plan as it is stored: equal plans are equal bytes.
    ///
    /// # Errors
    ///
    /// Never for a plan that `sympozium-plan` made.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CanonicalJsonError> {
        digest::to_canonical_json(self)
    }

    /// The digest of a stored plan.
    pub fn digest_of(bytes: &[u8]) -> Digest {
        digest::digest_canonical(DOMAIN, bytes)
    }

    /// Reads a stored plan whose digest is known.
    ///
    /// # Errors
    ///
    /// When it is another plan, or not a plan, or one of a release that this one does not understand.
    pub fn read_verified(bytes: &[u8], expected: &Digest) -> Result<Self, UnreadablePlan> {
        if bytes.len() > MAX_BYTES {
            return Err(UnreadablePlan::TooLarge(bytes.len()));
        }
        let found = Self::digest_of(bytes);
        if found != *expected {
            return Err(UnreadablePlan::Digest { expected: expected.clone(), found });
        }
        Self::read(bytes)
    }

    /// Reads a stored plan.
    ///
    /// # Errors
    ///
    /// When it is not a plan, or one of a release that this one does not understand.
    pub fn read(bytes: &[u8]) -> Result<Self, UnreadablePlan> {
        /// Read first, so that a plan of another release is not reported as malformed.
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }
        if bytes.len() > MAX_BYTES {
            return Err(UnreadablePlan::TooLarge(bytes.len()));
        }
        let head: Head = serde_json::from_slice(bytes)?;
        if head.format != FORMAT {
            let shown = head.format.chars().take(MAX_REPEATED_CHARS).collect();
            return Err(UnreadablePlan::Format(shown));
        }
        let plan: Self = serde_json::from_slice(bytes)?;
        // An unknown field is lost when the plan is serialised again. It may have been a restriction.
        match plan.to_bytes() {
            Ok(written) if written == bytes => Ok(plan),
            _ => Err(UnreadablePlan::Unknown),
        }
    }
}
