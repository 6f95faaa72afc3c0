use std::collections::BTreeSet;

use super::*;
use bpf::Pointer;

fn guarded() -> ProtectedProcesses<'static> {
    ProtectedProcesses { pids: &[1, 4_000_000], groups: &[1, 4_000_000] }
}

/// Every filter that is installed.
fn every_filter() -> Vec<Rules> {
    let of_commands = [Sockets::Network, Sockets::UnixOnly, Sockets::None];
    let of_ours = [OwnSockets::Unix, OwnSockets::UnixAndTcp];
    let of_commands = of_commands.map(|sockets| command_rules(sockets, Some(guarded())));
    of_commands.into_iter().chain(of_ours.map(own_rules)).collect()
}

#[test]
fn every_filter_fits_the_kernel() {
    // BPF_MAXINSNS; the filters of all ancestors together may have 32768 instructions.
    const MAX_INSTRUCTIONS: usize = 4096;
    for filter in every_filter() {
        let program = filter.compile();
        assert!(program.len() < MAX_INSTRUCTIONS, "{}", program.len());
    }
}

/// How wide an argument is in the kernel: `SYSCALL_DEFINE` of each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Width {
    /// Narrowed to 32 bits or fewer before it is used.
    Int,
    /// Used as a whole.
    Pointer,
}

/// Every argument that a filter compares, with its type in the kernel.
const ARGUMENTS: &[(c_long, u8, Width)] = &[
    // unsigned long, of which kernel_clone_args takes lower_32_bits().
    (libc::SYS_clone, 0, Width::Int),
    // unsigned int cmd.
    (libc::SYS_ioctl, 1, Width::Int),
    // unsigned int cmd; of F_SETOWN's unsigned long, f_setown() takes an int.
    (libc::SYS_fcntl, 1, Width::Int),
    (libc::SYS_fcntl, 2, Width::Int),
    // umode_t.
    (libc::SYS_fchmod, 1, Width::Int),
    (libc::SYS_fchmodat, 2, Width::Int),
    (libc::SYS_fchmodat2, 2, Width::Int),
    (libc::SYS_mknodat, 2, Width::Int),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1, Width::Int),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1, Width::Int),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1, Width::Int),
    // int flags, umode_t mode.
    (libc::SYS_openat, 2, Width::Int),
    (libc::SYS_openat, 3, Width::Int),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, Width::Int),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2, Width::Int),
    // unsigned int.
    (libc::SYS_personality, 0, Width::Int),
    // const char __user *filename.
    (libc::SYS_utimensat, 1, Width::Pointer),
    // int family, type, protocol.
    (libc::SYS_socket, 0, Width::Int),
    (libc::SYS_socket, 1, Width::Int),
    (libc::SYS_socket, 2, Width::Int),
    (libc::SYS_socketpair, 0, Width::Int),
    // unsigned int flags.
    (libc::SYS_sendto, 3, Width::Int),
    (libc::SYS_sendmsg, 2, Width::Int),
    (libc::SYS_sendmmsg, 3, Width::Int),
    // pid_t, or int which and who.
    (libc::SYS_prlimit64, 0, Width::Int),
    (libc::SYS_setpriority, 0, Width::Int),
    (libc::SYS_setpriority, 1, Width::Int),
    (libc::SYS_ioprio_set, 0, Width::Int),
    (libc::SYS_ioprio_set, 1, Width::Int),
    (libc::SYS_sched_setscheduler, 0, Width::Int),
    (libc::SYS_sched_setparam, 0, Width::Int),
    (libc::SYS_sched_setattr, 0, Width::Int),
    (libc::SYS_kill, 0, Width::Int),
    (libc::SYS_tkill, 0, Width::Int),
    (libc::SYS_tgkill, 0, Width::Int),
    (libc::SYS_tgkill, 1, Width::Int),
    (libc::SYS_rt_sigqueueinfo, 0, Width::Int),
    (libc::SYS_rt_tgsigqueueinfo, 0, Width::Int),
    (libc::SYS_pidfd_open, 0, Width::Int),
];

#[test]
fn every_comparison_has_the_width_of_its_argument() {
    let expected: BTreeSet<(u32, u8, Width)> =
        ARGUMENTS.iter().map(|&(call, argument, width)| (u32::try_from(call).unwrap(), argument, width)).collect();
    let comparisons = every_filter().into_iter().flat_map(|filter| {
        let all = filter.comparisons().map(|(call, condition)| {
            let (argument, width) = match condition {
                Condition::Int { argument, .. } => (argument.0, Width::Int),
                Condition::NotNull { argument: Pointer(argument) } => (argument, Width::Pointer),
            };
            (call, argument, width)
        });
        all.collect::<Vec<_>>()
    });
    let found: BTreeSet<(u32, u8, Width)> = comparisons.collect();
    assert_eq!(found, expected);
}
