//! Identities of parts at the Kubernetes API.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rbac::RbacRule;

/// The name of an identity in the run: `skill-` and its index, or `hooks`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdentityName(pub String);

impl fmt::Display for IdentityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A ServiceAccount that is created for the run and deleted with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The name in the run.
    pub name: IdentityName,
    /// The pack that it is for; absent for the one of the hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// Permissions in the run's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespace_rules: Vec<RbacRule>,
    /// Permissions in the whole cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_rules: Vec<RbacRule>,
    /// Lifetime of its token in seconds, if it is neither revoked nor renewed.
    pub token_seconds: u64,
}
