//! Features that a policy can disable.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Something that a policy's `featureGates` opens or closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(transform = schema::drop_description)]
pub enum Feature {
    /// Commands: `execute_command`, tools of sidecars, the container `sandbox`.
    CodeExecution,
    /// Runs that start runs.
    SubAgents,
    /// Packs that drive a browser.
    BrowserAutomation,
    /// The agent's own file tools.
    FileAccess,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 4] = [Self::CodeExecution, Self::SubAgents, Self::BrowserAutomation, Self::FileAccess];

    /// The name in manifests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CodeExecution => "code-execution",
            Self::SubAgents => "sub-agents",
            Self::BrowserAutomation => "browser-automation",
            Self::FileAccess => "file-access",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
