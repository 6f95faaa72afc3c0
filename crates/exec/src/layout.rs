//! The layout of a `host-*` sandbox: namespaces, and a root of read-only binds with its own `/tmp`, `/dev/shm`, `/proc`
//! and a minimal `/dev`.
//!
//! When root builds it, the sandbox belongs to an unprivileged UID from its first moment: the stage changes to that
//! UID, then creates its namespaces like any ordinary user. Nothing in it ever runs as the host's root.

mod idmap;
mod root;

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use crate::guarantee::Layer;
use crate::stage::oom_score::OomScore;
use crate::stage::setup::{LiveLayers, StageReply, StepContext, StepError};
use crate::stage::wire;
use crate::sys::{self, Fork, ForkParent};
use idmap::IdMapping;
pub use root::system_paths;
use root::{clone_tree, clone_tree_no_symlinks};

/// The UID and GID of every command, as it sees itself: the same as in a pod.
pub const INSIDE_ID: u32 = 1000;

/// The name of the step that fails where mounts cannot be idmapped.
pub(crate) const IDMAP_STEP: &str = "idmap";

/// The layout of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    /// The source of programs and libraries.
    pub root: RootView,
    /// Directories and files of the host that are visible inside.
    pub binds: Vec<Bind>,
    /// Size of `/tmp`; at most a quarter of the memory limit, if there is one.
    pub tmp_bytes: u64,
    /// Size of `/dev/shm`; at most a quarter of the memory limit, if there is one.
    pub shm_bytes: u64,
    /// Limit for the files and directories in `/tmp` and `/dev/shm`, each.
    pub tmp_inodes: u64,
    /// Limit for processes and threads in the sandbox, including ours (at most one per command, plus one).
    pub pids: u32,
    /// The host name inside.
    pub hostname: String,
    /// Names in `/etc/hosts` besides `localhost`, with their addresses: loopback addresses at which a forwarder
    /// listens. Only with the host's system directories as root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<(Ipv4Addr, String)>,
    /// The unprivileged host UID and GID of the sandbox when root builds it; otherwise those of the ordinary user.
    pub identity: Option<u32>,
}

/// The source of programs and libraries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootView {
    /// The host's system directories, read-only.
    HostSystem,
    /// A directory that contains a whole root file system, read-only.
    Directory(PathBuf),
}

/// One directory or file of the host that is visible inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bind {
    /// The path on the host. No component may be a link: name the link's target.
    pub source: PathBuf,
    /// The absolute path inside.
    pub target: PathBuf,
    /// Read-only or read-write.
    pub access: BindAccess,
}

/// What commands may do with a bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BindAccess {
    /// Its content cannot be changed.
    ReadOnly,
    /// The same, but commands own it: they see what only its owner may see, and reach its sockets.
    OwnedReadOnly,
    /// Commands own it; on disk, files keep the directory's owner.
    ReadWrite,
}

/// The first port that needs no privilege, in the network namespace of the process that writes the file.
const UNPRIVILEGED_PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

const BASE_ATTRIBUTES: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const READ_ONLY_ATTRIBUTES: u64 = BASE_ATTRIBUTES | libc::MOUNT_ATTR_RDONLY;

/// Builds the layout and enters it. On return this process is init of its pid namespace, in the new root, with all
/// capabilities in its own user namespace and none outside.
pub(crate) fn build_layout(
    layout: &Layout,
    without: &BTreeSet<Layer>,
    control: &OwnedFd,
    live: &mut LiveLayers,
) -> Result<OomScore, StepError> {
    let wants = |layer| !without.contains(&layer);
    // Root's own work first: the sources of binds, opened with root's permissions and idmapped to our identity.
    let mut binds = Vec::new();
    let mut lower = None;
    if let Some(identity) = layout.identity {
        if let RootView::Directory(directory) = &layout.root {
            // Other users need not be able to reach it.
            lower = Some(clone_tree(directory).step(bind_step(directory))?);
        }
        for bind in &layout.binds {
            binds.push((bind, open_as_root(bind, identity, wants(Layer::IdmappedMounts), live)?));
        }
        sys::set_user(identity, identity).step("change to the sandbox's UID")?;
        // A changed UID makes the process non-dumpable, and /proc/self/uid_map root's.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
            .step("make the stage dumpable")?;
    }

    enter_namespaces(&wants, live)?;
    fork_init(control)?;
    // Init's own score, while the old `/proc` exists, which is writable.
    let oom_score = OomScore::open();

    if wants(Layer::NetworkNamespace) {
        sys::bring_loopback_up().step("bring loopback up")?;
        if !layout.hosts.is_empty() {
            // A forwarder for a host listens at the host's own port. No other process is in this network namespace.
            fs::write(UNPRIVILEGED_PORTS, "0").step("open ports of the loopback interface")?;
        }
    }
    if wants(Layer::UtsNamespace) {
        rustix::system::sethostname(layout.hostname.as_bytes()).step("set the host name")?;
    }
    if layout.identity.is_none() && wants(Layer::MountNamespace) {
        for bind in &layout.binds {
            let tree = clone_tree_no_symlinks(&bind.source).step(bind_step(&bind.source))?;
            let attributes = bind.access.attributes();
            sys::mount_setattr(tree.as_fd(), true, attributes, None).step(bind_step(&bind.source))?;
            binds.push((bind, tree));
        }
    }
    if wants(Layer::MountNamespace) {
        root::build_root(layout, lower, &binds, wants(Layer::PidNamespace))?;
        live.insert(Layer::MountNamespace, String::new());
    }
    if wants(Layer::RlimitNproc) {
        let limit = rustix::process::Rlimit { current: Some(layout.pids.into()), maximum: Some(layout.pids.into()) };
        rustix::process::setrlimit(rustix::process::Resource::Nproc, limit).step("limit the number of processes")?;
        live.insert(Layer::RlimitNproc, layout.pids.to_string());
    }
    Ok(oom_score)
}

impl BindAccess {
    const fn attributes(self) -> u64 {
        match self {
            Self::ReadOnly | Self::OwnedReadOnly => READ_ONLY_ATTRIBUTES,
            Self::ReadWrite => BASE_ATTRIBUTES,
        }
    }
}

fn bind_step(path: &Path) -> String {
    format!("bind {}", path.display())
}

/// A bind opened by root. One that commands own is mapped so that its owner on disk is `identity` inside; files that
/// commands create belong to the directory's owner on disk.
fn open_as_root(bind: &Bind, identity: u32, idmap: bool, live: &mut LiveLayers) -> Result<OwnedFd, StepError> {
    let tree = clone_tree_no_symlinks(&bind.source).step(bind_step(&bind.source))?;
    let owner = rustix::fs::fstat(&tree).step(bind_step(&bind.source))?;
    let already_ours = owner.st_uid == identity;
    if bind.access != BindAccess::ReadOnly && idmap && !already_ours {
        let mapping = IdMapping { on_disk: (owner.st_uid, owner.st_gid), inside: (identity, identity) };
        let namespace = mapping.user_namespace().step("make a mapping namespace")?;
        let attributes = bind.access.attributes();
        sys::mount_setattr(tree.as_fd(), true, attributes, Some(namespace.as_fd()))
            .step(format!("{IDMAP_STEP} {}", bind.source.display()))?;
        live.insert(Layer::IdmappedMounts, String::new());
    } else {
        sys::mount_setattr(tree.as_fd(), true, bind.access.attributes(), None).step(bind_step(&bind.source))?;
    }
    Ok(tree)
}

fn enter_namespaces(wants: &impl Fn(Layer) -> bool, live: &mut LiveLayers) -> Result<(), StepError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let namespaces = [
        (Layer::UserNamespace, UnshareFlags::NEWUSER),
        (Layer::MountNamespace, UnshareFlags::NEWNS),
        (Layer::PidNamespace, UnshareFlags::NEWPID),
        (Layer::NetworkNamespace, UnshareFlags::NEWNET),
        (Layer::IpcNamespace, UnshareFlags::NEWIPC),
        (Layer::UtsNamespace, UnshareFlags::NEWUTS),
        (Layer::CgroupNamespace, UnshareFlags::NEWCGROUP),
    ];
    let mut flags = UnshareFlags::empty();
    for (layer, flag) in namespaces {
        if wants(layer) {
            flags |= flag;
            // The mount namespace counts as live when its root is built.
            if layer != Layer::MountNamespace {
                live.insert(layer, String::new());
            }
        }
    }
    sys::unshare(flags).step("make namespaces")?;
    // An unprivileged process may map itself, and only after giving up setgroups(2) for good.
    fs::write("/proc/self/setgroups", "deny").step("deny setgroups")?;
    fs::write("/proc/self/uid_map", format!("{INSIDE_ID} {uid} 1")).step("map the UID")?;
    fs::write("/proc/self/gid_map", format!("{INSIDE_ID} {gid} 1")).step("map the GID")
}

/// The first process that is forked after the pid namespace was created is its init. The executor becomes its parent,
/// so that it, and not the init outside, reaps the sandbox.
fn fork_init(control: &OwnedFd) -> Result<(), StepError> {
    match sys::fork(ForkParent::CallersParent).step("fork init")? {
        Fork::Child => Ok(()),
        Fork::Parent(init) => {
            let sent = wire::send_json(control, &StageReply::Pid(init.pid.as_raw_pid()), &[]);
            sys::exit_now(i32::from(sent.is_err()));
        }
    }
}
