//! The features of this kernel and this machine, detected by trying them.
//!
//! A version number says little: distributions backport and disable features, container runtimes filter them. So each
//! feature is used once, in a child where its effect ends with the process, and the result is stored together with the
//! reason if it is absent. [`live_profile`] and [`missing_layers`] derive the consequences.

mod hints;
mod layers;
pub(crate) mod machine;
mod namespaces;
mod sys_probe;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::cgroup::Version;
use crate::guarantee::Layer;
pub use hints::{hint, notes};
pub use layers::{
    MissingLayer, expected_layers, layers_of, live_profile, missing_layers, recommended_profile, support_for,
};
pub use namespaces::{Obstacle, UserNamespaces};

/// Signs of gVisor that are needed for a positive result.
pub(crate) const MIN_GVISOR_SIGNS: usize = 2;

/// All detected features.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Features {
    /// The output of `uname -r`.
    pub kernel_release: String,
    /// The processor architecture, by Rust's name.
    pub architecture: String,
    /// Whether the effective UID is 0.
    pub is_root: bool,
    /// The effective capabilities that matter for building sandboxes.
    pub capabilities: Vec<String>,
    /// Whether this process is already under a seccomp filter.
    pub under_seccomp_filter: bool,
    /// Signs of being in a container; empty if there are none.
    pub container_hints: Vec<String>,
    /// Whether the kernel is gVisor's.
    pub gvisor: bool,
    /// The signs for that.
    pub gvisor_signs: Vec<String>,
    /// Landlock support.
    pub landlock: Landlock,
    /// seccomp support.
    pub seccomp: Seccomp,
    /// User namespaces.
    pub user_namespaces: UserNamespaces,
    /// The other namespaces, inside a user namespace, by their layer.
    pub namespaces: BTreeMap<Layer, Support>,
    /// A separate `/proc` for a new pid namespace.
    pub private_proc: Support,
    /// Mounts with mapped owners.
    pub idmapped_mounts: Support,
    /// Whether RLIMIT_NPROC counts inside a user namespace alone.
    pub process_limit_in_user_namespace: Support,
    /// System calls that have a slower or weaker substitute.
    pub system_calls: SystemCalls,
    /// Control groups.
    pub cgroups: Cgroups,
    /// `kernel.yama.ptrace_scope`, where the kernel has Yama.
    pub yama_ptrace_scope: Option<u8>,
    /// `kernel.core_pattern`: where a crashing process's memory would go.
    pub core_pattern: Option<String>,
    /// Resource limits of this process, by their name in setrlimit(2), in lower case.
    pub rlimits: BTreeMap<String, Rlimit>,
    /// Whether `/proc/<pid>/task/<tid>/children` exists.
    pub lists_children: bool,
}

/// Whether one feature can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Support {
    /// It was used successfully.
    Present {
        /// Additional information (`ABI 7`, `v1`); may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
    },
    /// It was refused.
    Absent {
        /// The reason.
        why: String,
    },
}

impl Support {
    /// Usable, with additional information or an empty string.
    pub fn present(detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self::Present { detail }
    }

    /// Not usable.
    pub fn absent(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Absent { why }
    }

    /// Whether it can be used.
    pub fn is_present(&self) -> bool {
        matches!(self, Self::Present { .. })
    }
}

/// Landlock support.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Landlock {
    /// It is available.
    Available {
        /// The ABI version.
        abi: i32,
    },
    /// The kernel is too old, was built without it, or hides it.
    NotInKernel,
    /// The kernel has it, but it was not enabled at boot.
    SwitchedOff,
    /// It was refused for another reason.
    Refused {
        /// The error.
        why: String,
    },
}

impl Landlock {
    /// The ABI version, if it is available.
    pub fn abi(&self) -> Option<i32> {
        match self {
            Self::Available { abi } => Some(*abi),
            Self::NotInKernel | Self::SwitchedOff | Self::Refused { .. } => None,
        }
    }
}

/// seccomp support.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seccomp {
    /// Whether a filter could be installed.
    pub filter: Support,
    /// The actions that the kernel reports. gVisor does not report them, and has `errno` and `kill` all the same.
    pub actions: Vec<String>,
}

/// Newer system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SystemCalls {
    /// `openat2`; without it paths are resolved component by component.
    pub openat2: Support,
    /// `pidfd_open`.
    pub pidfd: Support,
    /// `close_range`; without it descriptors are closed one by one.
    pub close_range: Support,
    /// `clone3`.
    pub clone3: Support,
}

/// Support for control groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cgroups {
    /// The version.
    pub version: Version,
    /// Which limits could be applied, by their layer.
    pub limits: BTreeMap<Layer, Support>,
    /// Whether a whole group can be killed at once (`cgroup.kill`).
    pub kill_at_once: bool,
}

/// A resource limit; `None` is "unlimited".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rlimit {
    /// The limit in effect.
    pub soft: Option<u64>,
    /// The limit up to which an unprivileged process may raise it.
    pub hard: Option<u64>,
}

impl Features {
    /// Tries all features now. Takes some milliseconds and leaves nothing behind.
    ///
    /// # The caller's duties
    /// Call it before the process makes itself non-dumpable: the maps of a child's user namespace are then no longer
    /// writable to an ordinary user, and the result would be wrong.
    pub fn detect() -> Self {
        let name = rustix::system::uname();
        let capabilities = machine::effective_capabilities();
        let under_seccomp_filter = machine::under_seccomp_filter();
        let namespace_settings = namespaces::NamespaceSettings::read(
            capabilities.iter().any(|capability| capability == "CAP_SYS_ADMIN"),
            under_seccomp_filter,
        );
        let gvisor_signs = machine::gvisor_signs();
        Self {
            kernel_release: name.release().to_string_lossy().into_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            is_root: geteuid().is_root(),
            capabilities,
            under_seccomp_filter,
            container_hints: machine::container_hints(),
            gvisor: gvisor_signs.len() >= MIN_GVISOR_SIGNS,
            gvisor_signs,
            landlock: machine::detect_landlock(),
            seccomp: machine::detect_seccomp(),
            user_namespaces: namespaces::probe_user(&namespace_settings),
            namespaces: namespaces::probe_others(),
            private_proc: namespaces::probe_private_proc(),
            idmapped_mounts: namespaces::probe_idmapped_mounts(),
            process_limit_in_user_namespace: namespaces::probe_process_limit(),
            system_calls: machine::detect_system_calls(),
            cgroups: machine::detect_cgroups(),
            yama_ptrace_scope: machine::read_sysctl("kernel/yama/ptrace_scope").and_then(|scope| scope.parse().ok()),
            core_pattern: machine::read_sysctl("kernel/core_pattern"),
            rlimits: machine::rlimits(),
            lists_children: machine::lists_children(),
        }
    }

    /// The result of the first [`Features::detect`] in this process.
    pub fn get() -> &'static Self {
        static FEATURES: OnceLock<Features> = OnceLock::new();
        FEATURES.get_or_init(Self::detect)
    }

    /// The Landlock ABI, if there is one.
    pub fn landlock_abi(&self) -> Option<i32> {
        self.landlock.abi()
    }
}

/// Whether the kernel is gVisor's, detected once and without the other probes.
pub fn is_gvisor() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| machine::gvisor_signs().len() >= MIN_GVISOR_SIGNS)
}
