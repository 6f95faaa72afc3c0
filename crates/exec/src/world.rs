//! A private world for `host-*`: namespaces, and a root of read-only binds with its own `/tmp`,
//! `/dev/shm`, `/proc` and a minimal `/dev`.
//!
//! As root, the world belongs to an unprivileged UID from its first moment: the stage changes to that
//! UID, then makes its namespaces like any ordinary user. Nothing in it ever runs as the host's root.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use crate::guarantee::Layer;
use crate::stage::oom_score::OomScore;
use crate::stage::setup::{Hello, Live, Step, StepError};
use crate::stage::wire;
use crate::sys::{self, Fork, ParentIs};

/// The UID and GID of every command, as it sees itself: the same as in a pod.
pub const INSIDE_ID: u32 = 1000;

/// How the step is called that fails where mounts cannot be idmapped.
pub(crate) const IDMAP_STEP: &str = "idmap";

/// What the world looks like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct World {
    /// Where programs and libraries come from.
    pub root: RootView,
    /// Directories and files of the host that are seen inside.
    pub binds: Vec<Bind>,
    /// Size of `/tmp`; at most a quarter of the memory limit, if there is one.
    pub tmp_bytes: u64,
    /// Size of `/dev/shm`; at most a quarter of the memory limit, if there is one.
    pub shm_bytes: u64,
    /// Files and directories that `/tmp` and `/dev/shm` may hold, each.
    pub tmp_inodes: u64,
    /// Processes and threads that the world may hold, ours (at most one per command, and one) included.
    pub pids: u32,
    /// The host's name as seen inside.
    pub hostname: String,
    /// The unprivileged host UID and GID of the world when root makes it; an ordinary user's own
    /// otherwise.
    pub identity: Option<u32>,
}

/// Where programs and libraries come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootView {
    /// The host's system directories, read-only.
    HostSystem,
    /// A directory that holds a whole root file system, read-only.
    Directory(PathBuf),
}

/// One directory or file of the host, seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// Inside; absolute.
    pub target: PathBuf,
    /// Read-only or read-write.
    pub access: BindAccess,
}

/// What commands may do with a bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BindAccess {
    /// Nothing in it can be changed.
    ReadOnly,
    /// Commands own it; on disk, files keep the directory's owner.
    ReadWrite,
}

/// Directories that hold the system's programs and libraries.
const SYSTEM_DIRECTORIES: [&str; 7] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];
/// What of `/etc` programs need and everybody may know.
const SYSTEM_CONFIGURATION: [&str; 10] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl",
];
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Where the new root is mounted for the moment before it becomes the root. Nobody else sees it, and no
/// source of a mount is ever below it.
const WORKBENCH: &str = "/proc";
const NEUTRAL: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const READ_ONLY: u64 = NEUTRAL | libc::MOUNT_ATTR_RDONLY;

/// Enters a new world. On return this process is init of its pid namespace, in the new root, with all
/// capabilities in its own user namespace and none outside.
pub(crate) fn enter(
    world: &World,
    without: &BTreeSet<Layer>,
    control: &OwnedFd,
    live: &mut Live,
) -> Result<OomScore, StepError> {
    let wants = |layer| !without.contains(&layer);
    // Root's own work first: the sources of binds, seen with root's eyes, idmapped to our identity.
    let mut binds = Vec::new();
    if let Some(identity) = world.identity {
        for bind in &world.binds {
            binds.push((
                bind,
                open_as_root(bind, identity, wants(Layer::IdmappedMounts), live)?,
            ));
        }
        sys::become_user(identity, identity).step("change to the world's UID")?;
        // A changed UID makes the process non-dumpable, and /proc/self/uid_map root's.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
            .step("make the stage dumpable")?;
    }

    enter_namespaces(&wants, live)?;
    fork_init(control)?;
    // Init's own, while the old `/proc` is there, which can be written to.
    let oom_score = OomScore::open();

    if wants(Layer::NetworkNamespace) {
        sys::loopback_up().step("bring loopback up")?;
    }
    if wants(Layer::UtsNamespace) {
        rustix::system::sethostname(world.hostname.as_bytes()).step("set the host name")?;
    }
    if world.identity.is_none() && wants(Layer::MountNamespace) {
        for bind in &world.binds {
            let tree = clone_tree(&bind.source).step(opening(&bind.source))?;
            let attributes = bind.access.attributes();
            sys::mount_setattr(tree.as_fd(), true, attributes, None).step(opening(&bind.source))?;
            binds.push((bind, tree));
        }
    }
    if wants(Layer::MountNamespace) {
        build_root(world, &binds, wants(Layer::PidNamespace))?;
        live.insert(Layer::MountNamespace, String::new());
    }
    if wants(Layer::RlimitNproc) {
        let limit = rustix::process::Rlimit {
            current: Some(world.pids.into()),
            maximum: Some(world.pids.into()),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nproc, limit)
            .step("limit the number of processes")?;
        live.insert(Layer::RlimitNproc, world.pids.to_string());
    }
    Ok(oom_score)
}

impl BindAccess {
    const fn attributes(self) -> u64 {
        match self {
            Self::ReadOnly => READ_ONLY,
            Self::ReadWrite => NEUTRAL,
        }
    }
}

fn opening(path: &Path) -> String {
    format!("bind {}", path.display())
}

fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    rustix::mount::open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE,
    )
    .map_err(Into::into)
}

/// A bind made by root. One that commands may write is mapped so that its owner on disk is `identity`
/// inside; what commands create belongs to the directory's owner on disk.
fn open_as_root(
    bind: &Bind,
    identity: u32,
    idmap: bool,
    live: &mut Live,
) -> Result<OwnedFd, StepError> {
    let tree = clone_tree(&bind.source).step(opening(&bind.source))?;
    let owner = rustix::fs::fstat(&tree).step(opening(&bind.source))?;
    let already_ours = owner.st_uid == identity;
    if bind.access == BindAccess::ReadWrite && idmap && !already_ours {
        let mapping = Mapping {
            on_disk: (owner.st_uid, owner.st_gid),
            inside: (identity, identity),
        };
        let namespace = mapping.user_namespace().step("make a mapping namespace")?;
        sys::mount_setattr(tree.as_fd(), true, NEUTRAL, Some(namespace.as_fd()))
            .step(format!("{IDMAP_STEP} {}", bind.source.display()))?;
        live.insert(Layer::IdmappedMounts, String::new());
    } else {
        sys::mount_setattr(tree.as_fd(), true, bind.access.attributes(), None)
            .step(opening(&bind.source))?;
    }
    Ok(tree)
}

/// An id mapping for a mount.
struct Mapping {
    on_disk: (u32, u32),
    inside: (u32, u32),
}

impl Mapping {
    /// The kernel takes a mapping in the form of a user namespace that has it. Nobody ever runs in this
    /// one: a child makes it, we map it and keep its descriptor.
    fn user_namespace(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        let child = match sys::fork(ParentIs::Caller)? {
            Fork::Parent(child) => child,
            Fork::Child => {
                let made = sys::unshare(UnshareFlags::NEWUSER).is_ok();
                let _ = rustix::io::write(&theirs, &[u8::from(made)]);
                // Stays until it is killed, or until we are gone.
                let _ = rustix::io::read(&theirs, &mut [0; 1]);
                sys::exit_now(0);
            }
        };
        drop(theirs);
        let result = (|| {
            let mut made = [0; 1];
            rustix::io::read(&ours, &mut made)?;
            if made != [1] {
                return Err(io::Error::from_raw_os_error(libc::EPERM));
            }
            let proc = format!("/proc/{}", child.pid);
            let map = |file: &str, (disk, inside)| {
                fs::write(format!("{proc}/{file}"), format!("{disk} {inside} 1"))
            };
            map("uid_map", (self.on_disk.0, self.inside.0))?;
            map("gid_map", (self.on_disk.1, self.inside.1))?;
            fs::File::open(format!("{proc}/ns/user")).map(OwnedFd::from)
        })();
        let _ = rustix::process::pidfd_send_signal(&child.pidfd, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(Some(child.pid), rustix::process::WaitOptions::empty());
        result
    }
}

fn enter_namespaces(wants: &impl Fn(Layer) -> bool, live: &mut Live) -> Result<(), StepError> {
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
            // The mount namespace counts when its root is built.
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

/// The first process forked after the pid namespace was made is its init. The executor becomes its parent,
/// so that it, and not whoever is init outside, reaps the world.
fn fork_init(control: &OwnedFd) -> Result<(), StepError> {
    match sys::fork(ParentIs::CallersParent).step("fork init")? {
        Fork::Child => Ok(()),
        Fork::Parent(init) => {
            let told = wire::send_json(control, &Hello::Pid(init.pid.as_raw_pid()), &[]);
            sys::exit_now(i32::from(told.is_err()));
        }
    }
}

fn build_root(world: &World, binds: &[(&Bind, OwnedFd)], own_pids: bool) -> Result<(), StepError> {
    // Nothing we mount may be seen outside, and nothing mounted outside later may appear here.
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("make mounts private")?;
    // Everything that comes from the old root is taken as a detached tree before we leave it…
    let system = match &world.root {
        RootView::HostSystem => system_trees()?,
        RootView::Directory(_) => Vec::new(),
    };
    let devices = DEVICES.map(|name| format!("/dev/{name}")).map(|path| {
        clone_tree(Path::new(&path))
            .step(format!("bind {path}"))
            .map(|tree| (path, tree))
    });
    let devices = devices.into_iter().collect::<Result<Vec<_>, _>>()?;
    let proc = new_proc(own_pids).step("mount /proc")?;
    let base = match &world.root {
        RootView::HostSystem => {
            tmpfs(&[("size", "1m"), ("mode", "0755")]).step("mount the root")?
        }
        RootView::Directory(directory) => {
            overlay(directory).step(format!("overlay {}", directory.display()))?
        }
    };
    // …and everything is put together inside the new one: a link in a foreign root file system
    // (`/workspace` → `/etc`) leads nowhere but to itself.
    change_root(&base)?;

    for (target, source) in &system {
        match source {
            System::Link(to) => {
                let what = || format!("link {}", target.display());
                make_parents(target).step(what())?;
                rustix::fs::symlink(to, *target).step(what())?;
            }
            System::Tree(tree) => {
                sys::mount_setattr(tree.as_fd(), true, READ_ONLY, None).step(opening(target))?;
                attach(tree, target)?;
            }
        }
    }
    write_configuration(&world.root).step("write /etc")?;
    // Devices stay devices: bound without `nodev`.
    for (target, tree) in &devices {
        attach(tree, Path::new(target))?;
    }
    for (name, to) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        tolerate_existing(rustix::fs::symlink(to, name)).step(format!("link {name}"))?;
    }
    attach(&proc, Path::new("/proc"))?;
    let inodes = world.tmp_inodes.to_string();
    for (target, size) in [("/tmp", world.tmp_bytes), ("/dev/shm", world.shm_bytes)] {
        let size = size.to_string();
        let options = [
            ("size", size.as_str()),
            ("nr_inodes", inodes.as_str()),
            ("mode", "1777"),
        ];
        let mount = tmpfs(&options).step(format!("mount {target}"))?;
        attach(&mount, Path::new(target))?;
    }
    for (bind, tree) in binds {
        attach(tree, &bind.target)?;
    }
    let flags = rustix::mount::MountFlags::BIND
        | rustix::mount::MountFlags::RDONLY
        | rustix::mount::MountFlags::NOSUID
        | rustix::mount::MountFlags::NODEV;
    rustix::mount::mount_remount("/", flags, "").step("make the root read-only")
}

enum System {
    Link(std::ffi::CString),
    Tree(OwnedFd),
}

/// What of the host a [`RootView::HostSystem`] shows, as far as it exists.
pub fn system_paths() -> impl Iterator<Item = &'static Path> {
    SYSTEM_DIRECTORIES
        .iter()
        .chain(&SYSTEM_CONFIGURATION)
        .map(Path::new)
}

/// The host's system directories: links stay links (`/bin` → `usr/bin`), directories are bound.
fn system_trees() -> Result<Vec<(&'static Path, System)>, StepError> {
    let mut found = Vec::new();
    for path in system_paths() {
        match rustix::fs::readlink(path, Vec::new()) {
            Ok(to) => found.push((path, System::Link(to))),
            Err(rustix::io::Errno::NOENT) => {}
            Err(_) => {
                let tree = clone_tree(path).step(opening(path))?;
                found.push((path, System::Tree(tree)));
            }
        }
    }
    Ok(found)
}

fn tmpfs(options: &[(&str, &str)]) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)?;
    }
    finish(&context, MountAttrFlags::empty())
}

fn finish(context: &OwnedFd, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    rustix::mount::fsconfig_create(context)?;
    rustix::mount::fsmount(
        context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | attributes,
    )
    .map_err(Into::into)
}

/// A root file system from a directory: mount points may have to be made in it, so a scratch layer lies on
/// top, which becomes read-only with the rest.
fn overlay(directory: &Path) -> io::Result<OwnedFd> {
    let scratch = tmpfs(&[("size", "1m"), ("mode", "0755")])?;
    move_mount(&scratch, Path::new(WORKBENCH))?;
    let upper = Path::new(WORKBENCH).join("upper");
    let work = Path::new(WORKBENCH).join("work");
    fs::create_dir(&upper)?;
    fs::create_dir(&work)?;
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [
        ("lowerdir", directory),
        ("upperdir", upper.as_path()),
        ("workdir", work.as_path()),
    ] {
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    // In a user namespace overlayfs keeps its notes in user.* attributes.
    rustix::mount::fsconfig_set_flag(&context, "userxattr")?;
    finish(&context, MountAttrFlags::empty())
}

/// A `/proc` of this pid namespace, read-only. It must be made while the old one is still visible: the
/// kernel does not let a user namespace see more of `/proc` than it could before.
fn new_proc(own_pids: bool) -> io::Result<OwnedFd> {
    if !own_pids {
        // Only when a test switches the pid namespace off: then the host's has to do.
        return clone_tree(Path::new("/proc"));
    }
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    finish(
        &context,
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
}

fn move_mount(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    rustix::mount::move_mount(
        tree,
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(Into::into)
}

/// Mounts `tree` at `target`, making the directory or empty file it needs and the directories above.
fn attach(tree: &OwnedFd, target: &Path) -> Result<(), StepError> {
    let place = || {
        make_parents(target)?;
        let mode = rustix::fs::fstat(tree)?.st_mode;
        if rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory {
            tolerate_existing(rustix::fs::mkdir(target, Mode::from_raw_mode(0o755)))?;
        } else {
            let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            rustix::fs::open(target, flags, Mode::from_raw_mode(0o644))?;
        }
        move_mount(tree, target)
    };
    place().step(format!("mount {}", target.display()))
}

fn make_parents(target: &Path) -> io::Result<()> {
    let mut parents: Vec<&Path> = target.ancestors().skip(1).collect();
    parents.reverse();
    for parent in parents {
        tolerate_existing(rustix::fs::mkdir(parent, Mode::from_raw_mode(0o755)))?;
    }
    Ok(())
}

fn tolerate_existing(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other.map_err(Into::into),
    }
}

/// Accounts, name service and hosts of the world, not of the host. A root from a directory brings its own.
fn write_configuration(root: &RootView) -> io::Result<()> {
    const FILES: [(&str, &str); 5] = [
        (
            "/etc/passwd",
            "root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000:agent:/tmp/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        ),
        ("/etc/group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
        ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        (
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n",
        ),
        ("/etc/resolv.conf", ""),
    ];
    if *root != RootView::HostSystem {
        return Ok(());
    }
    for directory in ["/etc", "/run", "/var"] {
        tolerate_existing(rustix::fs::mkdir(directory, Mode::from_raw_mode(0o755)))?;
    }
    rustix::fs::symlink("/tmp", "/var/tmp")?;
    rustix::fs::symlink("/run", "/var/run")?;
    for (path, contents) in FILES {
        fs::write(path, contents)?;
    }
    Ok(())
}

/// Makes `base` the root and lets go of the old one, with whatever is mounted below it.
fn change_root(base: &OwnedFd) -> Result<(), StepError> {
    const HERE: &CStr = c".";
    move_mount(base, Path::new(WORKBENCH)).step("mount the root")?;
    rustix::process::chdir(WORKBENCH).step("enter the new root")?;
    // With both arguments the same, the old root ends up on top of the new one (pivot_root(2)).
    rustix::process::pivot_root(HERE, HERE).step("change the root")?;
    rustix::mount::unmount(HERE, UnmountFlags::DETACH).step("leave the old root")?;
    rustix::process::chdir("/").step("enter the new root")
}
