//! What skills may have of the node.

use sympozium_api::policy::HostAccessPolicy;

use super::allowed::{Allowed, HostDirectory};
use super::packs::{self, PackId};

/// Powers over the node. Nothing is given that is not named here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPowers {
    /// The packs that may have them, each as `namespace/name`.
    pub packs: Allowed<String>,
    /// Namespaces besides the system's whose packs may have them. Only the floor opens these.
    pub namespaces: Allowed<String>,
    /// The node's network.
    pub network: bool,
    /// The node's processes.
    pub processes: bool,
    /// Every power.
    pub privileged: bool,
    /// Root in the container.
    pub root: bool,
    /// Whether directories of the node may be mounted at all.
    pub mounts: bool,
    /// Which of them.
    pub directories: Allowed<HostDirectory>,
}

impl HostPowers {
    /// All of them.
    pub fn all() -> Self {
        Self {
            packs: Allowed::All,
            namespaces: Allowed::All,
            network: true,
            processes: true,
            privileged: true,
            root: true,
            mounts: true,
            directories: Allowed::All,
        }
    }

    /// None.
    pub fn none() -> Self {
        Self {
            packs: Allowed::nothing(),
            namespaces: Allowed::nothing(),
            network: false,
            processes: false,
            privileged: false,
            root: false,
            mounts: false,
            directories: Allowed::nothing(),
        }
    }

    /// What a policy names. Whether mounts are on is said in another part of it.
    pub fn of(policy: &HostAccessPolicy, mounts: bool, system_namespace: &str) -> Self {
        let namespaces = policy.namespaces.as_ref();
        let directories = policy.allowed_host_paths.iter();
        Self {
            packs: packs::listed(policy.packs.as_deref(), system_namespace),
            namespaces: Allowed::listed(namespaces.map(|it| it.iter().map(|name| name.as_str().to_owned()))),
            network: policy.host_network,
            processes: policy.host_pid,
            privileged: policy.privileged,
            root: policy.run_as_root,
            mounts,
            directories: Allowed::only(
                directories.filter(|it| it.path_prefix == "/" || crate::path::is_plain(it.path_prefix.as_str())).map(
                    |it| HostDirectory {
                        path: it.path_prefix.as_str().trim_end_matches('/').to_owned(),
                        writable: !it.read_only,
                    },
                ),
            ),
        }
    }

    /// Whether a pack may have any of them.
    pub fn include(&self, pack: PackId<'_>) -> bool {
        self.allows_namespace(pack) && self.packs.covers(&pack.to_string())
    }

    /// Whether packs of its namespace may have any of them.
    pub fn allows_namespace(&self, pack: PackId<'_>) -> bool {
        pack.is_of_system || self.namespaces.covers(&pack.namespace.to_owned())
    }

    /// What both give.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self {
            packs: self.packs.meet(&other.packs),
            namespaces: self.namespaces.meet(&other.namespaces),
            network: self.network && other.network,
            processes: self.processes && other.processes,
            privileged: self.privileged && other.privileged,
            root: self.root && other.root,
            mounts: self.mounts && other.mounts,
            directories: self.directories.meet(&other.directories),
        }
    }
}
