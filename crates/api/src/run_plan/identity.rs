//! Who parts are at the Kubernetes API.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rbac::RbacRule;

/// What an identity is called in the run: `skill-` and its number, or `hooks`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdentityName(pub String);

impl fmt::Display for IdentityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A ServiceAccount of its own, made for the run and gone with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Its name.
    pub name: IdentityName,
    /// The pack that it is for; the hooks' has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// What it may do in the run's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespace_rules: Vec<RbacRule>,
    /// What it may do in the whole cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_rules: Vec<RbacRule>,
    /// How long a token of it is good for, if nobody revokes or renews it.
    pub token_seconds: u64,
}
