//! The guarantees of an executor, by profile: the guarantee × profile matrix.
//!
//! This table is the only place that defines which layer enforces which guarantee. `doctor`, the docs, every isolation
//! report and the tests are derived from it, so none of them can drift from the code.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use sympozium_api::Guarantee;

/// Where an executor runs, which determines the layers that it can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Inside a restricted pod: no new user namespace, no writable cgroup.
    Container,
    /// Inside a pod on gVisor: like `container`, without Landlock, on a separate kernel.
    Gvisor,
    /// On a machine, as root: a private sandbox whose processes run under unprivileged UIDs.
    HostRoot,
    /// On a machine, as an ordinary user: the same sandbox, built with a user namespace.
    HostUser,
}

impl Profile {
    /// All profiles, in the order in which they are printed.
    pub const ALL: [Self; 4] = [Self::Container, Self::Gvisor, Self::HostRoot, Self::HostUser];

    /// The name in messages and in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::HostRoot => "host-root",
            Self::HostUser => "host-user",
        }
    }

    /// Whether commands run in namespaces and a root that we build.
    pub const fn is_host(self) -> bool {
        matches!(self, Self::HostRoot | Self::HostUser)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One mechanism of the kernel or of ours that removes powers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// A supervisor that adopts and ends every descendant of its one command.
    Supervisor,
    /// `no_new_privs`: setuid files and file capabilities have no effect.
    NoNewPrivileges,
    /// Every capability is dropped, from the bounding set too.
    NoCapabilities,
    /// The processes with the executor's state cannot be read or traced.
    NonDumpable,
    /// Landlock path rules.
    LandlockFilesystem,
    /// Landlock rules for TCP bind and connect.
    LandlockTcp,
    /// Landlock scopes: the command cannot signal or connect to abstract sockets outside.
    LandlockScopes,
    /// seccomp: calls that widen powers are refused.
    Seccomp,
    /// seccomp: no sockets except Unix ones.
    SeccompUnixOnly,
    /// seccomp: signals to the supervisor are refused (where Landlock scopes are missing).
    SignalGuard,
    /// A user namespace in which only one unprivileged host UID exists.
    UserNamespace,
    /// A mount namespace with a private root.
    MountNamespace,
    /// A pid namespace.
    PidNamespace,
    /// A network namespace with loopback only.
    NetworkNamespace,
    /// An IPC namespace.
    IpcNamespace,
    /// A UTS namespace.
    UtsNamespace,
    /// A cgroup namespace.
    CgroupNamespace,
    /// Read-write directories are idmapped, so that files keep their owner on disk.
    IdmappedMounts,
    /// `RLIMIT_NPROC` inside a user namespace.
    RlimitNproc,
    /// A memory limit by cgroup.
    CgroupMemory,
    /// A limit on processes by cgroup.
    CgroupPids,
    /// A CPU limit by cgroup.
    CgroupCpu,
    /// A user-space kernel (gVisor) below the container.
    SandboxKernel,
}

impl Layer {
    /// All layers, in the order in which they are printed.
    pub const ALL: [Self; 23] = [
        Self::Supervisor,
        Self::NoNewPrivileges,
        Self::NoCapabilities,
        Self::NonDumpable,
        Self::LandlockFilesystem,
        Self::LandlockTcp,
        Self::LandlockScopes,
        Self::Seccomp,
        Self::SeccompUnixOnly,
        Self::SignalGuard,
        Self::UserNamespace,
        Self::MountNamespace,
        Self::PidNamespace,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::CgroupNamespace,
        Self::IdmappedMounts,
        Self::RlimitNproc,
        Self::CgroupMemory,
        Self::CgroupPids,
        Self::CgroupCpu,
        Self::SandboxKernel,
    ];

    /// The name in messages and in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::NoNewPrivileges => "no-new-privileges",
            Self::NoCapabilities => "no-capabilities",
            Self::NonDumpable => "non-dumpable",
            Self::LandlockFilesystem => "landlock-filesystem",
            Self::LandlockTcp => "landlock-tcp",
            Self::LandlockScopes => "landlock-scopes",
            Self::Seccomp => "seccomp",
            Self::SeccompUnixOnly => "seccomp-unix-only",
            Self::SignalGuard => "signal-guard",
            Self::UserNamespace => "user-namespace",
            Self::MountNamespace => "mount-namespace",
            Self::PidNamespace => "pid-namespace",
            Self::NetworkNamespace => "network-namespace",
            Self::IpcNamespace => "ipc-namespace",
            Self::UtsNamespace => "uts-namespace",
            Self::CgroupNamespace => "cgroup-namespace",
            Self::IdmappedMounts => "idmapped-mounts",
            Self::RlimitNproc => "rlimit-nproc",
            Self::CgroupMemory => "cgroup-memory",
            Self::CgroupPids => "cgroup-pids",
            Self::CgroupCpu => "cgroup-cpu",
            Self::SandboxKernel => "sandbox-kernel",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One cell of the matrix: how a guarantee is enforced in a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase", tag = "cell")]
pub enum Cell {
    /// We enforce it, by all of these layers. Part of the profile's default floor.
    Enforced {
        /// The layers, all of which must be live.
        by: &'static [Layer],
    },
    /// We enforce it where the machine offers these layers; the report shows whether it did.
    WhereAvailable {
        /// The layers, all of which must be live for the guarantee to hold.
        by: &'static [Layer],
    },
    /// Another component enforces it.
    Delegated {
        /// That component.
        to: &'static str,
    },
    /// It is not enforced.
    Unavailable {
        /// The reason.
        why: &'static str,
    },
}

/// The matrix: how `guarantee` is enforced in `profile`.
pub const fn cell(profile: Profile, guarantee: Guarantee) -> Cell {
    use Guarantee as G;
    use Layer as L;
    use Profile as P;
    match (profile, guarantee) {
        (P::Container, G::Filesystem) => {
            Cell::Enforced { by: &[L::LandlockFilesystem, L::NoNewPrivileges, L::NoCapabilities] }
        }
        (P::Gvisor, G::Filesystem) => Cell::Delegated { to: "the pod's mounts: commands see what the container sees" },
        (P::HostRoot | P::HostUser, G::Filesystem) => {
            Cell::Enforced { by: &[L::UserNamespace, L::MountNamespace, L::NoNewPrivileges, L::NoCapabilities] }
        }

        (P::Container | P::Gvisor, G::Network) => Cell::Delegated { to: "the pod's NetworkPolicy and the gateway" },
        (P::HostRoot | P::HostUser, G::Network) => Cell::Enforced { by: &[L::NetworkNamespace, L::Seccomp] },

        (P::Container, G::Processes) => Cell::Enforced { by: &[L::Supervisor, L::LandlockScopes, L::NonDumpable] },
        (P::Gvisor, G::Processes) => Cell::Enforced { by: &[L::Supervisor, L::SignalGuard, L::NonDumpable] },
        (P::HostRoot | P::HostUser, G::Processes) => {
            Cell::Enforced { by: &[L::PidNamespace, L::IpcNamespace, L::Supervisor, L::NonDumpable] }
        }

        (_, G::Syscalls) => Cell::Enforced { by: &[L::Seccomp] },

        (P::Container | P::Gvisor, G::Memory) => Cell::Delegated { to: "the kubelet: the container's memory limit" },
        (P::HostRoot | P::HostUser, G::Memory) => Cell::WhereAvailable { by: &[L::CgroupMemory] },

        (P::Container | P::Gvisor, G::Pids) => Cell::Delegated { to: "the kubelet: podPidsLimit" },
        (P::HostRoot | P::HostUser, G::Pids) => Cell::Enforced { by: &[L::UserNamespace, L::RlimitNproc] },

        (P::Container | P::Gvisor, G::Cpu) => Cell::Delegated { to: "the kubelet: the container's CPU limit" },
        (P::HostRoot | P::HostUser, G::Cpu) => Cell::WhereAvailable { by: &[L::CgroupCpu] },

        (P::Gvisor, G::Kernel) => Cell::Enforced { by: &[L::SandboxKernel] },
        (P::Container | P::HostRoot | P::HostUser, G::Kernel) => {
            Cell::Unavailable { why: "commands share the host's kernel; use a gVisor or Kata runtime class" }
        }
    }
}

/// The guarantees without which an executor refuses to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Floor(BTreeSet<Guarantee>);

impl Floor {
    /// All guarantees that `profile` enforces by the matrix. The default: anything less is an explicit choice.
    pub fn of_profile(profile: Profile) -> Self {
        Guarantee::ALL
            .into_iter()
            .filter(|&guarantee| matches!(cell(profile, guarantee), Cell::Enforced { .. }))
            .collect()
    }

    /// An empty floor.
    pub const fn none() -> Self {
        Self(BTreeSet::new())
    }

    /// The required guarantees.
    pub fn guarantees(&self) -> impl Iterator<Item = Guarantee> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<Guarantee> for Floor {
    fn from_iter<T: IntoIterator<Item = Guarantee>>(guarantees: T) -> Self {
        Self(guarantees.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_agree_with_the_wire() {
        for layer in Layer::ALL {
            assert_eq!(serde_json::to_value(layer).unwrap(), layer.as_str());
        }
        for profile in Profile::ALL {
            assert_eq!(serde_json::to_value(profile).unwrap(), profile.as_str());
        }
    }

    #[test]
    fn layers_are_listed_once_each() {
        let unique: BTreeSet<_> = Layer::ALL.into_iter().collect();
        assert_eq!(unique.len(), Layer::ALL.len());
    }
}
