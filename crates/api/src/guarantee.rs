//! Guarantees about the isolation of a run, by name.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Something that is enforced around every command of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(transform = schema::drop_description)]
pub enum Guarantee {
    /// A command sees and writes only the files it was given.
    Filesystem,
    /// A command reaches no network but what it was given.
    Network,
    /// A command cannot see into, signal or outlive anything but itself.
    Processes,
    /// System calls that widen powers or attack surface are refused.
    Syscalls,
    /// Memory of the command tree is bounded.
    Memory,
    /// The number of processes in the command tree is bounded.
    Pids,
    /// CPU time of the command tree is bounded.
    Cpu,
    /// A kernel of its own stands between the command and the host's.
    Kernel,
}

impl Guarantee {
    /// All guarantees, in the order of their presentation.
    pub const ALL: [Self; 8] = [
        Self::Filesystem,
        Self::Network,
        Self::Processes,
        Self::Syscalls,
        Self::Memory,
        Self::Pids,
        Self::Cpu,
        Self::Kernel,
    ];

    /// The name in manifests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Network => "network",
            Self::Processes => "processes",
            Self::Syscalls => "syscalls",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Kernel => "kernel",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_agree_with_the_wire() {
        for guarantee in Guarantee::ALL {
            assert_eq!(serde_json::to_value(guarantee).unwrap(), guarantee.as_str());
        }
    }
}
