//! Resources that a command shares with the machine where it has no namespaces, and must not use.

use libc::c_long;

use super::bpf::{Condition, Pointer, Rules};

/// Linux 6.13; the number is the same on every architecture.
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;
/// Linux 6.17; the same.
const SYS_FILE_SETATTR: c_long = 469;

/// Without its own root, a command can reach every file of its user, and Landlock does not check calls that change only
/// modes, owners, times and attributes. By descriptor they stay allowed: a command could only open its own files.
pub(super) fn deny_metadata_by_path(rules: &mut Rules) {
    let calls = [
        libc::SYS_fchmodat,
        libc::SYS_fchmodat2,
        libc::SYS_fchownat,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
        SYS_SETXATTRAT,
        SYS_REMOVEXATTRAT,
        SYS_FILE_SETATTR,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chown,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lchown,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utime,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utimes,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_futimesat,
    ];
    for call in calls {
        rules.refuse(call, libc::EPERM);
    }
    // Without a path it applies to a descriptor.
    rules.refuse_when(libc::SYS_utimensat, &[Condition::not_null(Pointer(1))]);
}

/// System V IPC objects and POSIX message queues belong to an IPC namespace and not to a process: in the machine's own
/// namespace they outlive the run, and those of the user's other processes can be reached by a number that can be
/// guessed. Refused with `ENOSYS`, as by a kernel without them, which programs are prepared for. (POSIX shared memory
/// and semaphores are files in `/dev/shm`, to which Landlock gives no access.)
pub(super) fn deny_ipc_objects(rules: &mut Rules) {
    for call in [
        libc::SYS_shmget,
        libc::SYS_shmat,
        libc::SYS_shmctl,
        libc::SYS_semget,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_semctl,
        libc::SYS_msgget,
        libc::SYS_msgsnd,
        libc::SYS_msgrcv,
        libc::SYS_msgctl,
        libc::SYS_mq_open,
        libc::SYS_mq_unlink,
    ] {
        rules.refuse(call, libc::ENOSYS);
    }
}
