//! seccomp: the system calls that no command needs and that widen its powers or the attack surface.
//!
//! A deny list on purpose: skills are arbitrary programs, and an allow list breaks them one by one. What a
//! new kernel adds is caught by the other layers, because a command has no capability, no namespace but
//! its own and no way to make one.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};
use serde::{Deserialize, Serialize};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Which sockets a command may open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sockets {
    /// Unix, IPv4, IPv6 and routing netlink. No other family exists for a command: some (vsock, for one)
    /// are not bound to the network namespace and lead straight to the hypervisor.
    #[default]
    Network,
    /// Unix only.
    UnixOnly,
}

/// Linux 6.15; the number is the same on every architecture.
const SYS_OPEN_TREE_ATTR: c_long = 467;

/// Refused with "operation not permitted".
const REFUSED: &[c_long] = &[
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
    // Opening files by handle goes round every path check.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // The machine.
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

/// Refused as if the kernel were older, because programs then use what a filter can look into: the flags
/// of `clone3` and the mode of `openat2` are behind pointers.
const UNKNOWN: &[c_long] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Calls that a command may not make on the processes that look after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guarded<'a> {
    /// Executor and keeper.
    pub(crate) pids: &'a [i32],
    /// Their process groups.
    pub(crate) groups: &'a [i32],
}

/// Installs the filters for this process and all it starts. It also sets `no_new_privs`.
pub(crate) fn restrict(sockets: Sockets, guarded: Option<Guarded<'_>>) -> io::Result<()> {
    for program in programs(sockets, guarded)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Installs only the rule for sockets, in every thread: for our own binaries.
pub(crate) fn restrict_own_sockets() -> io::Result<()> {
    let mut rules = Rules::new();
    deny_sockets(&mut rules, Sockets::UnixOnly)?;
    let program = compile(rules, libc::EPERM)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

fn programs(sockets: Sockets, guarded: Option<Guarded<'_>>) -> io::Result<[BpfProgram; 2]> {
    let mut refused: Rules = REFUSED.iter().map(|&call| (call, Vec::new())).collect();
    deny_new_namespaces(&mut refused)?;
    deny_terminal_injection(&mut refused)?;
    deny_setuid_files(&mut refused)?;
    deny_personality(&mut refused)?;
    deny_sockets(&mut refused, sockets)?;
    deny_limits_of_others(&mut refused)?;
    if let Some(guarded) = guarded {
        deny_signals_to(&mut refused, guarded)?;
    }
    let unknown = UNKNOWN.iter().map(|&call| (call, Vec::new())).collect();
    Ok([
        compile(refused, libc::EPERM)?,
        compile(unknown, libc::ENOSYS)?,
    ])
}

fn compile(rules: Rules, errno: i32) -> io::Result<BpfProgram> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(u32::try_from(errno).map_err(io::Error::other)?),
        architecture,
    )
    .map_err(io::Error::other)?;
    let mut program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    if cfg!(target_arch = "x86_64") {
        program.splice(0..0, refuse_x32());
    }
    Ok(program)
}

/// The x32 ABI has the same architecture number as x86-64 and call numbers of its own: on a kernel that
/// has it, every rule above could be gone round. (The 32-bit ABI differs in architecture, and the library
/// ends a process that uses it.)
fn refuse_x32() -> [sock_filter; 3] {
    const X32_BIT: u32 = 0x4000_0000;
    // struct seccomp_data { int nr; … }
    const OFFSET_OF_NUMBER: u32 = 0;
    let instruction = |code: u32, jt, jf, k| sock_filter {
        code: u16::try_from(code).unwrap_or(u16::MAX),
        jt,
        jf,
        k,
    };
    let errno = u32::try_from(libc::ENOSYS).unwrap_or(u32::MAX);
    [
        instruction(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            0,
            0,
            OFFSET_OF_NUMBER,
        ),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, X32_BIT),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno,
        ),
    ]
}

fn deny_new_namespaces(rules: &mut Rules) -> io::Result<()> {
    for flag in [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ] {
        let flag = u64::from(flag.cast_unsigned());
        add(rules, libc::SYS_clone, &[has_bits(0, flag)?])?;
    }
    Ok(())
}

/// Typing into somebody else's terminal.
fn deny_terminal_injection(rules: &mut Rules) -> io::Result<()> {
    // The kernel looks at 32 bits of the request only, so we do too: a set upper bit must not slip by.
    const TIOCLINUX: u64 = 0x541C;
    for request in [libc::TIOCSTI, TIOCLINUX] {
        let condition = compare(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, request)?;
        add(rules, libc::SYS_ioctl, &[condition])?;
    }
    Ok(())
}

/// No setuid or setgid file is made: in a workspace that is idmapped to its owner it would carry the
/// owner's identity — root's, if root owns the directory — out of the sandbox.
fn deny_setuid_files(rules: &mut Rules) -> io::Result<()> {
    let create = u64::from(libc::O_CREAT.cast_unsigned());
    // O_TMPFILE includes O_DIRECTORY's bit; its own bit is the rest.
    let temporary = u64::from((libc::O_TMPFILE & !libc::O_DIRECTORY).cast_unsigned());
    for bit in [libc::S_ISUID, libc::S_ISGID].map(u64::from) {
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
            add(rules, call, &[has_bits(mode, bit)?])?;
        }
        for creating in [create, temporary] {
            add(
                rules,
                libc::SYS_openat,
                &[has_bits(2, creating)?, has_bits(3, bit)?],
            )?;
            #[cfg(target_arch = "x86_64")]
            add(
                rules,
                libc::SYS_open,
                &[has_bits(1, creating)?, has_bits(2, bit)?],
            )?;
        }
    }
    Ok(())
}

/// A changed personality turns address randomisation off and old behaviours on. Asking is fine.
fn deny_personality(rules: &mut Rules) -> io::Result<()> {
    const ASK: u64 = 0xffff_ffff;
    let ne = |value| compare(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value);
    add(rules, libc::SYS_personality, &[ne(0)?, ne(ASK)?])
}

fn deny_sockets(rules: &mut Rules, sockets: Sockets) -> io::Result<()> {
    let families: &[i32] = match sockets {
        Sockets::Network => &[
            libc::AF_UNIX,
            libc::AF_INET,
            libc::AF_INET6,
            libc::AF_NETLINK,
        ],
        Sockets::UnixOnly => &[libc::AF_UNIX],
    };
    let conditions = |families: &[i32]| {
        families
            .iter()
            .map(|&family| {
                let family = u64::from(family.cast_unsigned());
                compare(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)
            })
            .collect::<io::Result<Vec<_>>>()
    };
    add(rules, libc::SYS_socket, &conditions(families)?)?;
    add(rules, libc::SYS_socketpair, &conditions(&[libc::AF_UNIX])?)?;
    if sockets == Sockets::Network {
        // Of netlink only routing: other protocols are kernel attack surface.
        let is = |index, value: i32| {
            let value = u64::from(value.cast_unsigned());
            compare(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
        };
        let route = u64::from(libc::NETLINK_ROUTE.cast_unsigned());
        let not_route = compare(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, route)?;
        add(
            rules,
            libc::SYS_socket,
            &[is(0, libc::AF_NETLINK)?, not_route],
        )?;
        // Connects without asking Landlock, whose TCP rules hang on `connect`.
        let fast_open = u64::from(libc::MSG_FASTOPEN.cast_unsigned());
        for (call, flags) in [
            (libc::SYS_sendto, 3),
            (libc::SYS_sendmsg, 2),
            (libc::SYS_sendmmsg, 3),
        ] {
            add(rules, call, &[has_bits(flags, fast_open)?])?;
        }
        for family in [libc::AF_INET, libc::AF_INET6] {
            // Multipath TCP, which Landlock's TCP rules do not cover; SCTP, DCCP and others are attack surface.
            let mut other_protocol = vec![is(0, family)?];
            for known in [
                libc::IPPROTO_IP,
                libc::IPPROTO_TCP,
                libc::IPPROTO_UDP,
                libc::IPPROTO_ICMP,
                libc::IPPROTO_ICMPV6,
            ] {
                let known = u64::from(known.cast_unsigned());
                let differs = compare(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, known)?;
                other_protocol.push(differs);
            }
            add(rules, libc::SYS_socket, &other_protocol)?;
            // The type is in the low four bits; flags such as close-on-exec are above them.
            const TYPE_BITS: SeccompCmpOp = SeccompCmpOp::MaskedEq(0xf);
            let kind = u64::from(libc::SOCK_RAW.cast_unsigned());
            let raw = compare(1, SeccompCmpArgLen::Dword, TYPE_BITS, kind)?;
            add(rules, libc::SYS_socket, &[is(0, family)?, raw])?;
        }
    }
    Ok(())
}

/// Resource limits, priorities and scheduling of other processes of the same user: a CPU limit of one second
/// on the supervisor would be as good as a signal, and one that only runs when nobody else wants to keeps no
/// deadline. On itself (0), a process may do what it likes. (So a thread that names itself by number is refused:
/// a filter cannot tell it from the supervisor.)
fn deny_limits_of_others(rules: &mut Rules) -> io::Result<()> {
    for (call, process) in [
        (libc::SYS_prlimit64, 0),
        (libc::SYS_setpriority, 1),
        (libc::SYS_ioprio_set, 1),
        (libc::SYS_sched_setscheduler, 0),
        (libc::SYS_sched_setparam, 0),
        (libc::SYS_sched_setattr, 0),
        (libc::SYS_sched_setaffinity, 0),
    ] {
        let other = compare(process, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?;
        add(rules, call, &[other])?;
    }
    // All processes of the user: here 0 means the caller's user, and so the supervisor's.
    const PRIO_USER: u64 = 2;
    const IOPRIO_WHO_USER: u64 = 3;
    for (call, user) in [
        (libc::SYS_setpriority, PRIO_USER),
        (libc::SYS_ioprio_set, IOPRIO_WHO_USER),
    ] {
        let of_user = compare(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, user)?;
        add(rules, call, &[of_user])?;
    }
    Ok(())
}

/// Stands in for Landlock's signal scope where there is none: no signal to the given processes, by any
/// call that sends one, nor to "everybody".
fn deny_signals_to(rules: &mut Rules, guarded: Guarded<'_>) -> io::Result<()> {
    let is = |index, value: i64| {
        // Negative numbers (process groups, -1) as the low 32 bits that the kernel reads.
        let value = value.cast_unsigned() & 0xffff_ffff;
        compare(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    };
    for pid in guarded.pids.iter().map(|&pid| i64::from(pid)) {
        for call in [
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_tgkill,
            libc::SYS_rt_sigqueueinfo,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_pidfd_open,
        ] {
            add(rules, call, &[is(0, pid)?])?;
        }
        add(rules, libc::SYS_tgkill, &[is(1, pid)?])?;
    }
    let groups = guarded.groups.iter().map(|&group| -i64::from(group));
    for group in groups.clone() {
        add(rules, libc::SYS_kill, &[is(0, group)?])?;
    }
    for owner in guarded.pids.iter().map(|&pid| i64::from(pid)).chain(groups) {
        let set_owner = is(1, i64::from(libc::F_SETOWN))?;
        add(rules, libc::SYS_fcntl, &[set_owner, is(2, owner)?])?;
    }
    add(rules, libc::SYS_kill, &[is(0, -1)?])?;
    // A directory of /proc does for a pidfd, and a descriptor does not show whose it is.
    rules.insert(libc::SYS_pidfd_send_signal, Vec::new());
    // The owner is behind a pointer.
    const F_SETOWN_EX: i64 = 15;
    const FIOSETOWN: i64 = 0x8901;
    const SIOCSPGRP: i64 = 0x8902;
    for request in [FIOSETOWN, SIOCSPGRP] {
        add(rules, libc::SYS_ioctl, &[is(1, request)?])?;
    }
    add(rules, libc::SYS_fcntl, &[is(1, F_SETOWN_EX)?])
}

fn add(rules: &mut Rules, call: c_long, conditions: &[SeccompCondition]) -> io::Result<()> {
    let rule = SeccompRule::new(conditions.to_vec()).map_err(io::Error::other)?;
    rules.entry(call).or_default().push(rule);
    Ok(())
}

fn has_bits(index: u8, bits: u64) -> io::Result<SeccompCondition> {
    compare(
        index,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(bits),
        bits,
    )
}

fn compare(
    index: u8,
    length: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> io::Result<SeccompCondition> {
    SeccompCondition::new(index, length, operator, value).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_fits_the_kernel() {
        // BPF_MAXINSNS; the filters of all ancestors together may have 32768 instructions.
        const MAX_INSTRUCTIONS: usize = 4096;
        for sockets in [Sockets::Network, Sockets::UnixOnly] {
            let guarded = Guarded {
                pids: &[1, 4_000_000],
                groups: &[1, 4_000_000],
            };
            for program in programs(sockets, Some(guarded)).unwrap() {
                assert!(program.len() < MAX_INSTRUCTIONS, "{}", program.len());
            }
        }
    }

    /// What a program answers, by the rules of classic BPF: enough of a machine to run ours.
    fn answer(program: &[sock_filter], data: &[u32; 16]) -> u32 {
        let (mut accumulator, mut next) = (0u32, 0usize);
        loop {
            let instruction = &program[next];
            next += 1;
            let code = u32::from(instruction.code);
            let operand = instruction.k;
            let jump = |taken: bool| {
                usize::from(if taken {
                    instruction.jt
                } else {
                    instruction.jf
                })
            };
            match code & 0x07 {
                libc::BPF_LD => accumulator = data[usize::try_from(operand).unwrap() / 4],
                libc::BPF_ALU => accumulator &= operand,
                libc::BPF_RET => return operand,
                libc::BPF_JMP => {
                    next += match code & 0xf0 {
                        libc::BPF_JA => usize::try_from(operand).unwrap(),
                        libc::BPF_JEQ => jump(accumulator == operand),
                        libc::BPF_JGT => jump(accumulator > operand),
                        libc::BPF_JGE => jump(accumulator >= operand),
                        libc::BPF_JSET => jump(accumulator & operand != 0),
                        other => panic!("jump {other:#x}"),
                    };
                }
                other => panic!("class {other:#x}"),
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn other_abis_are_refused_on_kernels_that_have_them() {
        const ARCH_X86_64: u32 = 0xc000_003e;
        const ARCH_I386: u32 = 0x4000_0003;
        let call = |number: c_long, architecture| {
            let mut data = [0; 16];
            data[0] = u32::try_from(number).unwrap();
            data[1] = architecture;
            data
        };
        let [refused, unknown] = programs(Sockets::Network, None).unwrap();
        let no = libc::SECCOMP_RET_ERRNO;
        let x32 = 0x4000_0000;
        for program in [&refused, &unknown] {
            let getpid = call(libc::SYS_getpid, ARCH_X86_64);
            assert_eq!(answer(program, &getpid), libc::SECCOMP_RET_ALLOW);
            for number in [libc::SYS_getpid, libc::SYS_mount] {
                let data = call(number + x32, ARCH_X86_64);
                assert_eq!(answer(program, &data), no | libc::ENOSYS.cast_unsigned());
            }
            let data = call(libc::SYS_getpid, ARCH_I386);
            assert_eq!(answer(program, &data), libc::SECCOMP_RET_KILL_PROCESS);
        }
        let mount = call(libc::SYS_mount, ARCH_X86_64);
        assert_eq!(answer(&refused, &mount), no | libc::EPERM.cast_unsigned());
        let clone3 = call(libc::SYS_clone3, ARCH_X86_64);
        assert_eq!(answer(&unknown, &clone3), no | libc::ENOSYS.cast_unsigned());
    }

    #[test]
    fn a_rule_with_conditions_never_replaces_a_plain_refusal() {
        // An empty rule list means "always"; adding a condition to it would weaken it.
        for program in [REFUSED, UNKNOWN] {
            for call in [
                libc::SYS_clone,
                libc::SYS_ioctl,
                libc::SYS_socket,
                libc::SYS_openat,
                libc::SYS_fchmodat2,
                libc::SYS_kill,
                libc::SYS_fcntl,
                libc::SYS_personality,
            ] {
                assert!(!program.contains(&call));
            }
        }
    }
}
