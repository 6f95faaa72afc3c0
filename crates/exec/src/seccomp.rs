//! seccomp: refuses system calls that no command needs and that widen its powers or the attack surface.
//!
//! A deny list on purpose: skills are arbitrary programs, and an allow list breaks them one by one. Calls that a new
//! kernel adds are covered by the other layers, because a command has no capability, no namespace but its own and no
//! way to create one.

mod bpf;
mod shared_resources;

use std::io;

use libc::c_long;
use serde::{Deserialize, Serialize};

use bpf::{Condition, Int, Rules};

/// Which sockets a command may open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sockets {
    /// Unix, IPv4, IPv6 and routing netlink. No other family is available to a command: some (vsock, for example) are
    /// not bound to the network namespace and lead straight to the hypervisor.
    #[default]
    Network,
    /// Unix only.
    UnixOnly,
    /// No sockets: for places where only file permissions protect the sockets of the machine. A command there has no
    /// namespaces, so metadata calls by path and the machine's IPC objects are refused as well.
    None,
}

/// Linux 6.15; the number is the same on every architecture.
const SYS_OPEN_TREE_ATTR: c_long = 467;

/// A socket's type is in the low four bits; flags such as close-on-exec are above them.
const SOCKET_TYPE_MASK: u32 = 0xf;

/// Refused with `EPERM`.
const DENIED_CALLS: &[c_long] = &[
    // Namespaces and mounts. (`clone` is refused by its flags below.)
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    SYS_OPEN_TREE_ATTR,
    // Other processes' memory, descriptors and state.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Kernel attack surface with a history.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    // Opening files by handle bypasses every path check.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // Control of the machine.
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Refused with `ENOSYS`, as by an older kernel, because programs then use calls that a filter can inspect: the flags
/// of `clone3` and the mode of `openat2` are behind pointers.
const HIDDEN_CALLS: &[c_long] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Processes that a command must not signal or control.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProtectedProcesses<'a> {
    /// Executor and keeper.
    pub(crate) pids: &'a [i32],
    /// Their process groups.
    pub(crate) groups: &'a [i32],
}

/// Installs the filter for this process and its descendants. It also sets `no_new_privs`.
pub(crate) fn restrict(sockets: Sockets, guarded: Option<ProtectedProcesses<'_>>) -> io::Result<()> {
    let program = command_rules(sockets, guarded).compile();
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

/// Which sockets a binary of ours keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnSockets {
    Unix,
    /// Also TCP over IPv4 and IPv6. Landlock restricts the destinations.
    UnixAndTcp,
}

/// Installs the filter of our own binaries, in every thread. They need less than a command: no call that widens powers,
/// and no network except `sockets`.
pub(crate) fn restrict_own_calls(sockets: OwnSockets) -> io::Result<()> {
    let program = own_rules(sockets).compile();
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

/// Installs one more filter, in every thread: refuses new listeners.
pub(crate) fn refuse_listening() -> io::Result<()> {
    let mut rules = Rules::default();
    for call in [libc::SYS_bind, libc::SYS_listen] {
        rules.refuse(call, libc::EPERM);
    }
    seccompiler::apply_filter_all_threads(&rules.compile()).map_err(io::Error::other)
}

/// Installs one more filter, in every thread: refuses to execute programs.
pub(crate) fn refuse_exec() -> io::Result<()> {
    let mut rules = Rules::default();
    for call in [libc::SYS_execve, libc::SYS_execveat] {
        rules.refuse(call, libc::EPERM);
    }
    seccompiler::apply_filter_all_threads(&rules.compile()).map_err(io::Error::other)
}

fn own_rules(sockets: OwnSockets) -> Rules {
    let mut rules = Rules::default();
    for &call in DENIED_CALLS {
        rules.refuse(call, libc::EPERM);
    }
    // io_uring can create sockets as well, invisibly to a filter. `openat2` stays: our own code uses it to keep paths
    // beneath a directory.
    for &call in HIDDEN_CALLS {
        if call != libc::SYS_openat2 {
            rules.refuse(call, libc::ENOSYS);
        }
    }
    // Root could create a device node of the disk in a writable directory, and read every file.
    #[cfg(target_arch = "x86_64")]
    rules.refuse(libc::SYS_mknod, libc::EPERM);
    rules.refuse(libc::SYS_mknodat, libc::EPERM);
    // They use none, and without an IPC namespace an object outlives its process.
    shared_resources::deny_ipc_objects(&mut rules);
    deny_new_namespaces(&mut rules);
    deny_terminal_injection(&mut rules);
    deny_personality(&mut rules);
    match sockets {
        OwnSockets::Unix => deny_sockets(&mut rules, Sockets::UnixOnly),
        OwnSockets::UnixAndTcp => deny_all_but_unix_and_tcp(&mut rules),
    }
    rules
}

fn command_rules(sockets: Sockets, guarded: Option<ProtectedProcesses<'_>>) -> Rules {
    let mut rules = Rules::default();
    for &call in DENIED_CALLS {
        rules.refuse(call, libc::EPERM);
    }
    for &call in HIDDEN_CALLS {
        rules.refuse(call, libc::ENOSYS);
    }
    deny_new_namespaces(&mut rules);
    deny_terminal_injection(&mut rules);
    deny_setuid_files(&mut rules);
    deny_personality(&mut rules);
    deny_sockets(&mut rules, sockets);
    if sockets == Sockets::None {
        shared_resources::deny_metadata_by_path(&mut rules);
        shared_resources::deny_ipc_objects(&mut rules);
    }
    deny_limits_of_others(&mut rules);
    if let Some(guarded) = guarded {
        deny_signals_to(&mut rules, guarded);
    }
    rules
}

fn deny_new_namespaces(rules: &mut Rules) {
    for flag in [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ] {
        rules.refuse_when(libc::SYS_clone, &[Condition::has_bits(Int(0), flag.cast_unsigned())]);
    }
}

/// Refuses to inject input into a terminal of another process.
fn deny_terminal_injection(rules: &mut Rules) {
    const TIOCSTI: u32 = 0x5412;
    const TIOCLINUX: u32 = 0x541C;
    for request in [TIOCSTI, TIOCLINUX] {
        rules.refuse_when(libc::SYS_ioctl, &[Condition::equals(Int(1), request)]);
    }
}

/// Refuses to create setuid or setgid files: in a workspace that is idmapped to its owner they would carry the owner's
/// identity — root's, if root owns the directory — out of the sandbox.
fn deny_setuid_files(rules: &mut Rules) {
    // O_TMPFILE includes O_DIRECTORY's bit; its own bit is the rest.
    let temporary = libc::O_TMPFILE & !libc::O_DIRECTORY;
    for bit in [libc::S_ISUID, libc::S_ISGID] {
        for (call, mode) in [
            (libc::SYS_fchmod, 1),
            (libc::SYS_fchmodat, 2),
            (libc::SYS_fchmodat2, 2),
            (libc::SYS_mknodat, 2),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_chmod, 1),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_creat, 1),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_mknod, 1),
        ] {
            rules.refuse_when(call, &[Condition::has_bits(Int(mode), bit)]);
        }
        for creating in [libc::O_CREAT, temporary].map(i32::cast_unsigned) {
            for (call, flags) in [
                (libc::SYS_openat, 2),
                #[cfg(target_arch = "x86_64")]
                (libc::SYS_open, 1),
            ] {
                rules.refuse_when(
                    call,
                    &[Condition::has_bits(Int(flags), creating), Condition::has_bits(Int(flags + 1), bit)],
                );
            }
        }
    }
}

/// A changed personality disables address randomisation and enables old behaviours. Querying it is allowed.
fn deny_personality(rules: &mut Rules) {
    const ASK: u32 = u32::MAX;
    rules.refuse_when(libc::SYS_personality, &[Condition::not_equals(Int(0), 0), Condition::not_equals(Int(0), ASK)]);
}

fn deny_sockets(rules: &mut Rules, sockets: Sockets) {
    let families: &[i32] = match sockets {
        Sockets::None => {
            for call in [libc::SYS_socket, libc::SYS_socketpair] {
                rules.refuse(call, libc::EPERM);
            }
            return;
        }
        Sockets::Network => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
        Sockets::UnixOnly => &[libc::AF_UNIX],
    };
    let is = |argument, value: i32| Condition::equals(Int(argument), value.cast_unsigned());
    let none_of = |argument, values: &[i32]| -> Vec<Condition> {
        values.iter().map(|value| Condition::not_equals(Int(argument), value.cast_unsigned())).collect()
    };
    rules.refuse_when(libc::SYS_socket, &none_of(0, families));
    rules.refuse_when(libc::SYS_socketpair, &none_of(0, &[libc::AF_UNIX]));
    if sockets == Sockets::UnixOnly {
        return;
    }
    // Of netlink only routing: other protocols are kernel attack surface.
    let mut not_routing = none_of(2, &[libc::NETLINK_ROUTE]);
    not_routing.push(is(0, libc::AF_NETLINK));
    rules.refuse_when(libc::SYS_socket, &not_routing);
    deny_fast_open(rules);
    for family in [libc::AF_INET, libc::AF_INET6] {
        // Multipath TCP, which Landlock's TCP rules do not cover; SCTP, DCCP and others are attack surface.
        let mut other_protocol = none_of(
            2,
            &[libc::IPPROTO_IP, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6],
        );
        other_protocol.push(is(0, family));
        rules.refuse_when(libc::SYS_socket, &other_protocol);
        let raw = Condition::masked(Int(1), SOCKET_TYPE_MASK, libc::SOCK_RAW.cast_unsigned());
        rules.refuse_when(libc::SYS_socket, &[is(0, family), raw]);
    }
}

fn deny_all_but_unix_and_tcp(rules: &mut Rules) {
    let none_of = |argument, values: &[i32]| -> Vec<Condition> {
        values.iter().map(|value| Condition::not_equals(Int(argument), value.cast_unsigned())).collect()
    };
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    rules.refuse_when(libc::SYS_socket, &none_of(0, &families));
    rules.refuse_when(libc::SYS_socketpair, &none_of(0, &[libc::AF_UNIX]));
    for family in [libc::AF_INET, libc::AF_INET6] {
        let family = Condition::equals(Int(0), family.cast_unsigned());
        let no_stream = Condition::not_masked(Int(1), SOCKET_TYPE_MASK, libc::SOCK_STREAM.cast_unsigned());
        rules.refuse_when(libc::SYS_socket, &[family, no_stream]);
        // Landlock's TCP rules do not cover streams of other protocols (Multipath TCP, SCTP).
        let mut other_protocol = none_of(2, &[libc::IPPROTO_IP, libc::IPPROTO_TCP]);
        other_protocol.push(family);
        rules.refuse_when(libc::SYS_socket, &other_protocol);
    }
    deny_fast_open(rules);
}

/// TCP Fast Open connects without a check by Landlock, whose TCP rules apply to `connect`.
fn deny_fast_open(rules: &mut Rules) {
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        let fast_open = libc::MSG_FASTOPEN.cast_unsigned();
        rules.refuse_when(call, &[Condition::has_bits(Int(flags), fast_open)]);
    }
}

/// Refuses to change resource limits, priorities and scheduling classes of other processes of the same user: a CPU
/// limit of one second on the supervisor would be as effective as a signal, and a supervisor that only runs when the
/// CPU is idle meets no deadline. For itself (0), a process may set anything. A filter cannot distinguish a thread that
/// names itself by number from the supervisor; affinity, which programs set that way, cannot stop another process and
/// stays allowed.
fn deny_limits_of_others(rules: &mut Rules) {
    for (call, process) in [
        (libc::SYS_prlimit64, 0),
        (libc::SYS_setpriority, 1),
        (libc::SYS_ioprio_set, 1),
        (libc::SYS_sched_setscheduler, 0),
        (libc::SYS_sched_setparam, 0),
        (libc::SYS_sched_setattr, 0),
    ] {
        rules.refuse_when(call, &[Condition::not_equals(Int(process), 0)]);
    }
    // All processes of the user: here 0 means the caller's user, and so includes the supervisor.
    const PRIO_USER: u32 = 2;
    const IOPRIO_WHO_USER: u32 = 3;
    rules.refuse_when(libc::SYS_setpriority, &[Condition::equals(Int(0), PRIO_USER)]);
    rules.refuse_when(libc::SYS_ioprio_set, &[Condition::equals(Int(0), IOPRIO_WHO_USER)]);
}

/// Replaces Landlock's signal scope where there is none: no signal to the given processes, by any call that sends one,
/// nor to all processes.
fn deny_signals_to(rules: &mut Rules, guarded: ProtectedProcesses<'_>) {
    const F_SETOWN_EX: u32 = 15;
    const FIOSETOWN: u32 = 0x8901;
    const SIOCSPGRP: u32 = 0x8902;
    let is = |argument, value: i32| Condition::equals(Int(argument), value.cast_unsigned());
    for &pid in guarded.pids {
        for call in [
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_tgkill,
            libc::SYS_rt_sigqueueinfo,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_pidfd_open,
        ] {
            rules.refuse_when(call, &[is(0, pid)]);
        }
        rules.refuse_when(libc::SYS_tgkill, &[is(1, pid)]);
        rules.refuse_when(libc::SYS_fcntl, &[is(1, libc::F_SETOWN), is(2, pid)]);
    }
    // A process group is a negative number, and -1 means all processes.
    for &group in guarded.groups {
        rules.refuse_when(libc::SYS_kill, &[is(0, -group)]);
        rules.refuse_when(libc::SYS_fcntl, &[is(1, libc::F_SETOWN), is(2, -group)]);
    }
    rules.refuse_when(libc::SYS_kill, &[is(0, -1)]);
    // A directory of /proc can be used as a pidfd, and a descriptor does not show its process.
    rules.refuse(libc::SYS_pidfd_send_signal, libc::EPERM);
    // The owner is behind a pointer.
    for request in [FIOSETOWN, SIOCSPGRP] {
        rules.refuse_when(libc::SYS_ioctl, &[Condition::equals(Int(1), request)]);
    }
    rules.refuse_when(libc::SYS_fcntl, &[Condition::equals(Int(1), F_SETOWN_EX)]);
}

#[cfg(test)]
mod tests;
