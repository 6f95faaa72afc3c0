//! The access to the node that skills may have.

use sympozium_api::policy::HostAccessPolicy;

use super::allowed::{Allowed, HostDirectory};
use super::packs::{self, PackId};

/// Access to the node. Everything else of the node is denied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPowers {
    /// The packs that may have it, each as `namespace/name`.
    pub packs: Allowed<String>,
    /// Namespaces, in addition to the system namespace, whose packs may have it. Only the floor opens these.
    pub namespaces: Allowed<String>,
    /// The network namespace of the node.
    pub host_network: bool,
    /// The PID namespace of the node.
    pub host_pid: bool,
    /// Privileged containers.
    pub privileged: bool,
    /// Root in the container.
    pub run_as_root: bool,
    /// Whether directories of the node may be mounted at all.
    pub allow_mounts: bool,
    /// The directories that may be mounted.
    pub directories: Allowed<HostDirectory>,
}

impl HostPowers {
    /// Full access.
    pub fn all() -> Self {
        Self {
            packs: Allowed::All,
            namespaces: Allowed::All,
            host_network: true,
            host_pid: true,
            privileged: true,
            run_as_root: true,
            allow_mounts: true,
            directories: Allowed::All,
        }
    }

    /// No access.
    pub fn none() -> Self {
        Self {
            packs: Allowed::none(),
            namespaces: Allowed::none(),
            host_network: false,
            host_pid: false,
            privileged: false,
            run_as_root: false,
            allow_mounts: false,
            directories: Allowed::none(),
        }
    }

    /// From the section of a policy. Whether mounts are allowed is in another section.
    pub fn from_policy(policy: &HostAccessPolicy, mounts: bool, system_namespace: &str) -> Self {
        let namespaces = policy.namespaces.as_ref();
        let directories = policy.allowed_host_paths.iter();
        Self {
            packs: packs::allowed_packs(policy.packs.as_deref(), system_namespace),
            namespaces: Allowed::from_list(
                namespaces.map(|namespaces| namespaces.iter().map(|name| name.as_str().to_owned())),
            ),
            host_network: policy.host_network,
            host_pid: policy.host_pid,
            privileged: policy.privileged,
            run_as_root: policy.run_as_root,
            allow_mounts: mounts,
            directories: Allowed::only(
                directories
                    .filter(|directory| {
                        directory.path_prefix == "/" || crate::path::is_plain(directory.path_prefix.as_str())
                    })
                    .map(|directory| HostDirectory {
                        path: directory.path_prefix.as_str().trim_end_matches('/').to_owned(),
                        writable: !directory.read_only,
                    }),
            ),
        }
    }

    /// Whether a pack may have any of this access.
    pub fn includes_pack(&self, pack: PackId<'_>) -> bool {
        self.allows_namespace(pack) && self.packs.covers(&pack.to_string())
    }

    /// Whether packs of its namespace may have any of this access.
    pub fn allows_namespace(&self, pack: PackId<'_>) -> bool {
        pack.is_system || self.namespaces.covers(&pack.namespace.to_owned())
    }

    /// What both allow.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self {
            packs: self.packs.meet(&other.packs),
            namespaces: self.namespaces.meet(&other.namespaces),
            host_network: self.host_network && other.host_network,
            host_pid: self.host_pid && other.host_pid,
            privileged: self.privileged && other.privileged,
            run_as_root: self.run_as_root && other.run_as_root,
            allow_mounts: self.allow_mounts && other.allow_mounts,
            directories: self.directories.meet(&other.directories),
        }
    }
}
