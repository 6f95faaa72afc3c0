//! Which namespaces can be created, and what prevents it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use libc::{CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{Pid, getegid, geteuid};
use serde::{Deserialize, Serialize};

use super::Support;
use super::sys_probe::{ProbeFailure, Step, map_owners, try_steps};
use crate::guarantee::Layer;

/// An unprivileged UID and GID for the mapping when any can be mapped.
const UNPRIVILEGED_ID: u32 = 65_534;

/// Whether a user namespace can be created and used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum UserNamespaces {
    /// Created, mapped and used for a mount.
    Usable,
    /// Refused.
    Blocked {
        /// The cause, as far as it can be determined.
        cause: Obstacle,
        /// The step that was refused and the kernel's error.
        why: String,
    },
}

/// What prevents user namespaces from being created or used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// `user.max_user_namespaces` is 0.
    LimitIsZero,
    /// The limit `user.max_user_namespaces` is reached.
    LimitReached,
    /// They are nested as deep as the kernel allows.
    NestedTooDeep,
    /// `kernel.unprivileged_userns_clone` is 0 (Debian and derived kernels).
    SwitchedOffForUsers,
    /// AppArmor removes the capabilities (`kernel.apparmor_restrict_unprivileged_userns`, Ubuntu).
    Apparmor,
    /// A seccomp filter, such as that of a container runtime.
    SeccompFilter,
    /// The kernel was built without them.
    NotInKernel,
    /// None of the above.
    Unknown,
}

/// The settings from which the cause is determined.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NamespaceSettings {
    pub max_user_namespaces: Option<u64>,
    pub unprivileged_userns_clone: Option<u64>,
    pub apparmor_restricts: Option<u64>,
    pub has_sys_admin: bool,
    pub under_seccomp_filter: bool,
}

impl NamespaceSettings {
    pub fn read(has_system_administration: bool, under_seccomp_filter: bool) -> Self {
        let sysctl = |name: &str| {
            let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            text.trim().parse().ok()
        };
        Self {
            max_user_namespaces: sysctl("user/max_user_namespaces"),
            unprivileged_userns_clone: sysctl("kernel/unprivileged_userns_clone"),
            apparmor_restricts: sysctl("kernel/apparmor_restrict_unprivileged_userns"),
            has_sys_admin: has_system_administration,
            under_seccomp_filter,
        }
    }

    /// Determines the obstacle. The sysctls explain a refusal that was observed; they never count as one themselves.
    pub fn obstacle(&self, refused: Step, errno: Option<i32>) -> Obstacle {
        let making = refused == Step::Unshare(CLONE_NEWUSER);
        match errno {
            Some(libc::ENOSPC) if self.max_user_namespaces == Some(0) => Obstacle::LimitIsZero,
            Some(libc::ENOSPC) => Obstacle::LimitReached,
            Some(libc::EUSERS) => Obstacle::NestedTooDeep,
            Some(libc::EINVAL | libc::ENOSYS) if making => Obstacle::NotInKernel,
            Some(libc::EPERM | libc::EACCES) => {
                let unprivileged = !self.has_sys_admin;
                if making && unprivileged && self.unprivileged_userns_clone == Some(0) {
                    Obstacle::SwitchedOffForUsers
                } else if unprivileged && self.apparmor_restricts.is_some_and(|value| value > 0) {
                    Obstacle::Apparmor
                } else if self.under_seccomp_filter {
                    Obstacle::SeccompFilter
                } else {
                    Obstacle::Unknown
                }
            }
            _ => Obstacle::Unknown,
        }
    }
}

/// The steps up to a user namespace in which this process is mapped.
const IN_USER_NAMESPACE: [Step; 3] = [Step::Unshare(CLONE_NEWUSER), Step::Rendezvous, Step::BecomeMapped];

/// Creating one is not enough: where AppArmor restricts them, the namespace is created and mapped, and only what a
/// private root needs is refused in it.
pub(super) fn probe_user(settings: &NamespaceSettings) -> UserNamespaces {
    let then = [Step::Unshare(CLONE_NEWNS), Step::PrivateMounts, Step::MountTmpfs];
    match try_mapped(&then) {
        Ok(()) => UserNamespaces::Usable,
        Err(failure) => UserNamespaces::Blocked {
            cause: settings.obstacle(failure.step, failure.error.raw_os_error()),
            why: describe_failure(&failure),
        },
    }
}

/// The other namespaces, each in its own user namespace, as the host profiles create them.
pub(super) fn probe_others() -> BTreeMap<Layer, Support> {
    [
        (Layer::MountNamespace, CLONE_NEWNS),
        (Layer::PidNamespace, CLONE_NEWPID),
        (Layer::NetworkNamespace, CLONE_NEWNET),
        (Layer::IpcNamespace, CLONE_NEWIPC),
        (Layer::UtsNamespace, CLONE_NEWUTS),
        (Layer::CgroupNamespace, CLONE_NEWCGROUP),
    ]
    .into_iter()
    .map(|(layer, flag)| {
        let mut then = vec![Step::Unshare(flag)];
        match layer {
            Layer::MountNamespace => then.extend([Step::PrivateMounts, Step::MountTmpfs]),
            Layer::PidNamespace => then.push(Step::EnterPidNamespace),
            _ => {}
        }
        (layer, to_support(try_mapped(&then)))
    })
    .collect()
}

/// A `/proc` that shows only the new pid namespace. Container runtimes mask parts of theirs, and then the kernel
/// refuses a new one that would show what is masked.
pub(super) fn probe_private_proc() -> Support {
    to_support(try_mapped(&[
        Step::Unshare(CLONE_NEWNS | CLONE_NEWPID),
        Step::PrivateMounts,
        Step::EnterPidNamespace,
        Step::MountProc,
    ]))
}

/// RLIMIT_NPROC counted per user namespace. Where it counts all processes of a UID on the machine, a limit stops the
/// wrong ones.
pub(super) fn probe_process_limit() -> Support {
    to_support(try_mapped(&[Step::ProcessLimit]))
}

/// A seccomp filter.
pub(super) fn probe_filter() -> Support {
    let outcome = try_steps(&[Step::Filter], &mut |_| Ok(()));
    to_support(outcome.unwrap_or_else(|error| {
        let step = Step::Filter;
        Err(ProbeFailure { step, error })
    }))
}

/// Mounts with mapped owners, tried on a detached copy of the directory for temporary files. The copy is attached
/// nowhere and gone when this returns.
pub(super) fn probe_idmapped_mounts() -> Support {
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    let steps = [Step::Unshare(CLONE_NEWUSER), Step::Rendezvous];
    let reached = try_steps(&steps, &mut |child| {
        write_maps(child)?;
        outcome = map_temporary_directory(child);
        Ok(())
    });
    match (reached, outcome) {
        (_, Ok(())) => Support::present(""),
        (Ok(Err(failure)), _) => Support::absent(describe_failure(&failure)),
        (_, Err(error)) => Support::absent(format!("mapping the owners of a mount: {error}")),
    }
}

fn map_temporary_directory(child: Pid) -> io::Result<()> {
    let namespace = fs::File::open(proc_file(child, "ns/user"))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, std::env::temp_dir(), flags)?;
    map_owners(tree.as_fd(), namespace.as_fd())
}

fn try_mapped(then: &[Step]) -> Result<(), ProbeFailure> {
    let steps: Vec<Step> = IN_USER_NAMESPACE.iter().chain(then).copied().collect();
    try_steps(&steps, &mut write_maps).unwrap_or_else(|error| {
        let step = Step::Unshare(CLONE_NEWUSER);
        Err(ProbeFailure { step, error })
    })
}

/// Maps one ID. A process that may map any takes an unprivileged one, as the sandboxes of root do; any other can only
/// map its own, and must first give up `setgroups` (user_namespaces(7)).
fn write_maps(child: Pid) -> io::Result<()> {
    let write = |file: &str, text: String| fs::write(proc_file(child, file), text);
    if write("uid_map", format!("0 {UNPRIVILEGED_ID} 1")).is_err() {
        write("uid_map", format!("0 {} 1", geteuid().as_raw()))?;
    }
    if write("gid_map", format!("0 {UNPRIVILEGED_ID} 1")).is_err() {
        write("setgroups", "deny".to_owned())?;
        write("gid_map", format!("0 {} 1", getegid().as_raw()))?;
    }
    Ok(())
}

fn proc_file(process: Pid, file: &str) -> String {
    format!("/proc/{}/{file}", process.as_raw_nonzero())
}

fn to_support(outcome: Result<(), ProbeFailure>) -> Support {
    match outcome {
        Ok(()) => Support::present(""),
        Err(failure) => Support::absent(describe_failure(&failure)),
    }
}

fn describe_failure(ProbeFailure { step, error }: &ProbeFailure) -> String {
    let doing = match *step {
        Step::Unshare(CLONE_NEWUSER) => "making a user namespace",
        Step::Unshare(_) => "making the namespace inside a user namespace",
        Step::Rendezvous => "mapping user IDs",
        Step::BecomeMapped => "taking the mapped user ID",
        Step::PrivateMounts | Step::MountTmpfs => "mounting inside a user namespace",
        Step::EnterPidNamespace => "starting the first process of a pid namespace",
        Step::MountProc => "mounting /proc for a pid namespace",
        Step::Filter => "installing a seccomp filter",
        Step::ProcessLimit => match error.raw_os_error() {
            Some(libc::EAGAIN) => return "RLIMIT_NPROC counts processes outside too".to_owned(),
            Some(libc::EOPNOTSUPP) => return "RLIMIT_NPROC stops nothing".to_owned(),
            _ => "limiting the number of processes",
        },
    };
    format!("{doing}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obstacles_are_named_from_what_was_seen() {
        let make = Step::Unshare(CLONE_NEWUSER);
        let user = NamespaceSettings::default();
        let cases = [
            (NamespaceSettings { max_user_namespaces: Some(0), ..user }, make, libc::ENOSPC, Obstacle::LimitIsZero),
            (user, make, libc::ENOSPC, Obstacle::LimitReached),
            (user, make, libc::EUSERS, Obstacle::NestedTooDeep),
            (user, make, libc::EINVAL, Obstacle::NotInKernel),
            (
                NamespaceSettings { unprivileged_userns_clone: Some(0), under_seccomp_filter: true, ..user },
                make,
                libc::EPERM,
                Obstacle::SwitchedOffForUsers,
            ),
            // Ubuntu: created and mapped, and then every capability is missing.
            (
                NamespaceSettings { unprivileged_userns_clone: Some(1), apparmor_restricts: Some(1), ..user },
                Step::Unshare(CLONE_NEWNS),
                libc::EPERM,
                Obstacle::Apparmor,
            ),
            // The restriction is for unprivileged users: as root there must be another cause.
            (
                NamespaceSettings {
                    apparmor_restricts: Some(1),
                    has_sys_admin: true,
                    under_seccomp_filter: true,
                    ..user
                },
                make,
                libc::EPERM,
                Obstacle::SeccompFilter,
            ),
            (user, make, libc::EPERM, Obstacle::Unknown),
            (user, Step::MountTmpfs, libc::EINVAL, Obstacle::Unknown),
        ];
        for (settings, step, errno, expected) in cases {
            assert_eq!(settings.obstacle(step, Some(errno)), expected, "{settings:?} {step:?} {errno}");
        }
    }

    #[test]
    fn a_failed_rendezvous_is_reported_and_leaves_no_child() {
        let mut child = None;
        let outcome = try_steps(&[Step::Rendezvous], &mut |pid| {
            child = Some(pid);
            Err(io::ErrorKind::PermissionDenied.into())
        });
        assert_eq!(describe_failure(&outcome.unwrap().unwrap_err()), "mapping user IDs: permission denied");
        assert!(rustix::process::test_kill_process(child.unwrap()).is_err());
    }
}
