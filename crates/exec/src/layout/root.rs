//! The private root: assembled from detached mount trees, read-only except for the writable parts.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use super::{Bind, Layout, READ_ONLY_ATTRIBUTES, RootView, bind_step};
use crate::stage::setup::{StepContext, StepError};
use crate::sys;

/// Directories with the system's programs and libraries.
const SYSTEM_DIRECTORIES: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// The files of `/etc` that programs need and that are public.
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
/// The mount point of the new root for the moment before it becomes the root. No other process sees it, and no source
/// of a mount is ever below it.
const STAGING_MOUNT: &str = "/proc";

pub(super) fn build_root(
    layout: &Layout,
    lower: Option<OwnedFd>,
    binds: &[(&Bind, OwnedFd)],
    own_pids: bool,
) -> Result<(), StepError> {
    // Our mounts must not be visible outside, and later mounts outside must not appear here.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("make mounts private")?;
    // Everything from the old root is cloned as a detached tree before we leave it…
    let system = match &layout.root {
        RootView::HostSystem => system_trees()?,
        RootView::Directory(_) => Vec::new(),
    };
    let devices = DEVICES
        .map(|name| format!("/dev/{name}"))
        .map(|path| clone_tree(Path::new(&path)).step(format!("bind {path}")).map(|tree| (path, tree)));
    let devices = devices.into_iter().collect::<Result<Vec<_>, _>>()?;
    let proc = new_proc(own_pids).step("mount /proc")?;
    let base = match &layout.root {
        RootView::HostSystem => new_tmpfs(&[("size", "1m"), ("mode", "0755")]).step("mount the root")?,
        RootView::Directory(directory) => {
            let lower = lower.map_or_else(|| clone_tree(directory), Ok);
            let base = lower.and_then(|lower| new_overlay(&lower));
            base.step(format!("overlay {}", directory.display()))?
        }
    };
    // …and everything is mounted inside the new one: a link in a foreign root file system (`/workspace` → `/etc`) leads
    // only into that root.
    change_root(&base)?;

    for (target, source) in &system {
        match source {
            SystemEntry::Link(to) => {
                let what = || format!("link {}", target.display());
                make_parents(target).step(what())?;
                rustix::fs::symlink(to, *target).step(what())?;
            }
            SystemEntry::Tree(tree) => {
                sys::mount_setattr(tree.as_fd(), true, READ_ONLY_ATTRIBUTES, None).step(bind_step(target))?;
                attach(tree, target)?;
            }
        }
    }
    write_configuration(layout).step("write /etc")?;
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
    let inodes = layout.tmp_inodes.to_string();
    for (target, size) in [("/tmp", layout.tmp_bytes), ("/dev/shm", layout.shm_bytes)] {
        let size = size.to_string();
        let options = [("size", size.as_str()), ("nr_inodes", inodes.as_str()), ("mode", "1777")];
        let mount = new_tmpfs(&options).step(format!("mount {target}"))?;
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

enum SystemEntry {
    Link(std::ffi::CString),
    Tree(OwnedFd),
}

/// The paths of the host that a [`RootView::HostSystem`] shows, if they exist.
pub fn system_paths() -> impl Iterator<Item = &'static Path> {
    SYSTEM_DIRECTORIES.iter().chain(&SYSTEM_CONFIGURATION).map(Path::new)
}

/// The host's system directories: links stay links (`/bin` → `usr/bin`), directories are bound.
fn system_trees() -> Result<Vec<(&'static Path, SystemEntry)>, StepError> {
    let mut found = Vec::new();
    for path in system_paths() {
        match rustix::fs::readlink(path, Vec::new()) {
            Ok(to) => found.push((path, SystemEntry::Link(to))),
            Err(rustix::io::Errno::NOENT) => {}
            Err(_) => {
                let tree = clone_tree(path).step(bind_step(path))?;
                found.push((path, SystemEntry::Tree(tree)));
            }
        }
    }
    Ok(found)
}

fn new_tmpfs(options: &[(&str, &str)]) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)?;
    }
    create_mount(&context, MountAttrFlags::empty())
}

fn create_mount(context: &OwnedFd, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    rustix::mount::fsconfig_create(context)?;
    rustix::mount::fsmount(
        context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | attributes,
    )
    .map_err(Into::into)
}

/// A root file system from a directory: mount points may have to be created in it, so a scratch layer is on top, which
/// becomes read-only with the rest.
fn new_overlay(directory: &OwnedFd) -> io::Result<OwnedFd> {
    let scratch = new_tmpfs(&[("size", "1m"), ("mode", "0755")])?;
    move_mount(&scratch, Path::new(STAGING_MOUNT))?;
    let upper = Path::new(STAGING_MOUNT).join("upper");
    let work = Path::new(STAGING_MOUNT).join("work");
    let lower = Path::new(STAGING_MOUNT).join("lower");
    for layer in [&upper, &work, &lower] {
        fs::create_dir(layer)?;
    }
    move_mount(directory, &lower)?;
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("lowerdir", lower.as_path()), ("upperdir", upper.as_path()), ("workdir", work.as_path())] {
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    // In a user namespace overlayfs stores its metadata in user.* attributes.
    rustix::mount::fsconfig_set_flag(&context, "userxattr")?;
    create_mount(&context, MountAttrFlags::empty())
}

/// A `/proc` of this pid namespace, read-only. It must be created while the old one is still visible: the kernel does
/// not let a user namespace see more of `/proc` than it could before.
fn new_proc(own_pids: bool) -> io::Result<OwnedFd> {
    if !own_pids {
        // Only when a test disables the pid namespace: then the host's is used.
        return clone_tree(Path::new("/proc"));
    }
    let context = rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    create_mount(&context, MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

fn move_mount(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    rustix::mount::move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(Into::into)
}

/// Mounts `tree` at `target`, creating the directory or empty file it needs and the directories above.
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

/// Accounts, name service and hosts of the sandbox, not of the host. A root from a directory has its own.
fn write_configuration(layout: &Layout) -> io::Result<()> {
    const FILES: [(&str, &str); 4] = [
        (
            "/etc/passwd",
            "root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000:agent:/tmp/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        ),
        ("/etc/group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("/etc/resolv.conf", ""),
    ];
    if layout.root != RootView::HostSystem {
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
    let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for (address, name) in &layout.hosts {
        hosts.push_str(&format!("{address} {name}\n"));
    }
    fs::write("/etc/hosts", hosts)
}

/// Makes `base` the root and detaches the old one, with everything that is mounted below it.
fn change_root(base: &OwnedFd) -> Result<(), StepError> {
    const HERE: &CStr = c".";
    move_mount(base, Path::new(STAGING_MOUNT)).step("mount the root")?;
    rustix::process::chdir(STAGING_MOUNT).step("enter the new root")?;
    // With both arguments the same, the old root ends up on top of the new one (pivot_root(2)).
    rustix::process::pivot_root(HERE, HERE).step("change the root")?;
    rustix::mount::unmount(HERE, UnmountFlags::DETACH).step("leave the old root")?;
    rustix::process::chdir("/").step("enter the new root")
}

/// Clones the tree at a path without symbolic links: the path was checked some time ago, and another process may have
/// replaced a component by a link since.
pub(super) fn clone_tree_no_symlinks(path: &Path) -> io::Result<OwnedFd> {
    let opened = rustix::fs::openat2(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?;
    rustix::mount::open_tree(
        &opened,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH,
    )
    .map_err(Into::into)
}

pub(super) fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    rustix::mount::open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE,
    )
    .map_err(Into::into)
}
