//! Calls that widen powers or attack surface. Each is made so that it does no harm where it is allowed: with arguments
//! that are checked only after the permission, or on something that ends with this process.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use super::programs::{own_bytes, run};
use crate::attempt::{Attempt, Verdict, in_child, plain};
use crate::sys::{self, Arg, Ending, Errno, call};

const NOWHERE: &CStr = c"/no/such/path";
/// A row whose arguments are wrong in a way that the kernel notices only after it has let the call through.
macro_rules! let_through {
    ($name:literal, $what:literal, $number:expr, [$($argument:expr),* $(,)?]) => {
        plain($name, $what, |_| Verdict::of_call(call($number, [$($argument),*])))
    };
}

const fn int(value: i64) -> Arg<'static> {
    Arg::Int(value)
}

pub const ATTEMPTS: &[Attempt] = &[
    plain("join-namespace", "join a namespace (setns)", |_| {
        let joined = call(libc::SYS_pidfd_open, [int(std::process::id().into()), int(0)]).and_then(|pidfd| {
            let pidfd = sys::owned(pidfd);
            call(libc::SYS_setns, [int(pidfd.as_raw_fd().into()), int(libc::CLONE_NEWUTS.into())])
        });
        Verdict::of(joined, "joined")
    }),
    let_through!(
        "mount",
        "mount a file system",
        libc::SYS_mount,
        [Arg::Text(c"none"), Arg::Text(c"/"), Arg::Text(c"no-such-fs"), int(0), Arg::Null]
    ),
    // MNT_EXPIRE with MNT_DETACH is refused, but only after the permission.
    let_through!("unmount", "unmount a file system", libc::SYS_umount2, [Arg::Text(c"/"), int(2 | 4)]),
    let_through!("fsopen", "mount by the new interface: fsopen", libc::SYS_fsopen, [Arg::Text(c"no-such-fs"), int(0)]),
    let_through!(
        "open-tree",
        "mount by the new interface: open_tree",
        libc::SYS_open_tree,
        [int(libc::AT_FDCWD.into()), Arg::Text(c"/"), int(1 | libc::O_CLOEXEC as i64)]
    ),
    let_through!(
        "move-mount",
        "mount by the new interface: move_mount",
        libc::SYS_move_mount,
        [int(-1), Arg::Text(c""), int(-1), Arg::Text(c""), int(0)]
    ),
    let_through!(
        "mount-setattr",
        "change a mount's flags",
        libc::SYS_mount_setattr,
        [int(-1), Arg::Text(c""), int(libc::AT_EMPTY_PATH.into()), Arg::In(&[0; 32]), int(32)]
    ),
    let_through!("pivot-root", "change the root mount", libc::SYS_pivot_root, [Arg::Text(NOWHERE), Arg::Text(NOWHERE)]),
    plain("bpf", "load into the kernel's virtual machine", |_| {
        // A map of one entry, gone with its descriptor: type array, key 4, value 4, one entry.
        let mut attributes = [0_u8; 48];
        for (at, value) in [(0, 2_u8), (4, 4), (8, 4), (12, 1)] {
            attributes[at] = value;
        }
        Verdict::of(call(libc::SYS_bpf, [int(0), Arg::In(&attributes), int(48)]), "made a map")
    }),
    plain("perf-events", "watch the machine by performance counters", |_| {
        // struct perf_event_attr: software (1), size, cpu-clock (0), flags disabled | exclude_kernel | exclude_hv.
        let mut attributes = [0_u8; 112];
        attributes[0] = 1;
        attributes[4] = 112;
        attributes[40] = 1 | 1 << 5 | 1 << 6;
        let opened = call(libc::SYS_perf_event_open, [Arg::In(&attributes), int(0), int(-1), int(-1), int(0)]);
        Verdict::of(opened, "opened one")
    }),
    let_through!("keyctl", "use the kernel's keyrings: keyctl", libc::SYS_keyctl, [int(0), int(-3), int(0)]),
    let_through!(
        "add-key",
        "use the kernel's keyrings: add_key",
        libc::SYS_add_key,
        [Arg::Text(c"user"), Arg::Text(c"sympozium-probe"), Arg::In(b"x"), int(1), int(-2)]
    ),
    let_through!(
        "request-key",
        "use the kernel's keyrings: request_key",
        libc::SYS_request_key,
        [Arg::Text(c"user"), Arg::Text(c"sympozium-probe-none"), Arg::Null, int(0)]
    ),
    plain("io-uring", "make calls through io_uring", |_| {
        Verdict::of_call(call(libc::SYS_io_uring_setup, [int(1), Arg::Out(&mut [0; 120])]))
    }),
    // UFFD_USER_MODE_ONLY: the kind that needs no privilege.
    let_through!("userfaultfd", "handle page faults itself", libc::SYS_userfaultfd, [int(1 | libc::O_CLOEXEC as i64)]),
    let_through!(
        "kexec-load",
        "load another kernel: kexec_load",
        libc::SYS_kexec_load,
        [int(0), int(0), Arg::Null, int(0xffff)]
    ),
    let_through!(
        "kexec-file-load",
        "load another kernel: kexec_file_load",
        libc::SYS_kexec_file_load,
        [int(-1), int(-1), int(0), Arg::Null, int(0xffff)]
    ),
    let_through!("reboot", "reboot the machine", libc::SYS_reboot, [int(0), int(0), int(0), Arg::Null]),
    let_through!(
        "init-module",
        "load a kernel module: init_module",
        libc::SYS_init_module,
        [Arg::Null, int(0), Arg::Text(c"")]
    ),
    let_through!(
        "finit-module",
        "load a kernel module: finit_module",
        libc::SYS_finit_module,
        [int(-1), Arg::Text(c""), int(0)]
    ),
    let_through!(
        "delete-module",
        "unload a kernel module",
        libc::SYS_delete_module,
        [Arg::Text(c"sympozium_none"), int(libc::O_NONBLOCK.into())]
    ),
    plain("ptrace-me", "be traced by its parent", |_| {
        let ending = in_child(|| i32::from(call(libc::SYS_ptrace, [int(0), int(0), int(0), int(0)]).is_err()));
        Verdict::from_condition(ending == Ok(Ending::Exited(0)), format!("{ending:?}"))
    }),
    plain("personality", "switch off address randomisation", |_| {
        Verdict::of_call(call(libc::SYS_personality, [int(libc::ADDR_NO_RANDOMIZE.into())]))
    }),
    #[cfg(target_arch = "x86_64")]
    plain("modify-ldt", "change the segment table", |_| {
        Verdict::of_call(call(libc::SYS_modify_ldt, [int(0), Arg::Out(&mut [0; 16]), int(16)]))
    }),
    plain("open-by-handle", "open a file by its number, around every directory", |_| open_by_handle()),
    plain("type-into-terminal", "type into a terminal (TIOCSTI)", |_| on_terminal(libc::TIOCSTI as i64)),
    plain("terminal-selection", "use the console's selection (TIOCLINUX)", |_| on_terminal(libc::TIOCLINUX as i64)),
    #[cfg(target_arch = "x86_64")]
    plain("call-32bit", "make calls by the 32-bit door (int 0x80)", |_| {
        Verdict::of(sys::call_32bit(20, 0), "getpid answered")
    }),
    #[cfg(target_arch = "x86_64")]
    plain("call-32bit-unshare", "make a new user namespace by the 32-bit door", |_| {
        Verdict::of(sys::call_32bit(310, libc::CLONE_NEWUSER as u32), "made one")
    }),
    #[cfg(target_arch = "x86_64")]
    plain("call-x32", "make calls by the x32 door", |_| {
        Verdict::of(call(0x4000_0000 | libc::SYS_getpid, []), "getpid answered")
    }),
    #[cfg(target_arch = "x86_64")]
    let_through!(
        "call-x32-mount",
        "mount by the x32 door",
        0x4000_0000 | libc::SYS_mount,
        [Arg::Text(c"none"), Arg::Text(c"/"), Arg::Text(c"no-such-fs"), int(0), Arg::Null]
    ),
    let_through!("set-hostname", "rename the machine", libc::SYS_sethostname, [Arg::Text(c""), int(-1)]),
    let_through!("set-domainname", "rename the machine's domain", libc::SYS_setdomainname, [Arg::Text(c""), int(-1)]),
    // A time zone of 16 hours: permission first, then the range.
    let_through!(
        "set-time",
        "set the clock: settimeofday",
        libc::SYS_settimeofday,
        [Arg::Null, Arg::In(&[0xc0, 3, 0, 0, 0, 0, 0, 0])]
    ),
    plain("adjust-time", "set the clock: adjtimex", |_| {
        // struct timex with ADJ_TICK and a tick of 0: permission first, then the range.
        let mut adjustment = [0_u8; 208];
        adjustment[1] = 0x40;
        Verdict::of_call(call(libc::SYS_adjtimex, [Arg::Out(&mut adjustment)]))
    }),
    let_through!("swap-on", "add swap space", libc::SYS_swapon, [Arg::Text(NOWHERE), int(0)]),
    let_through!("swap-off", "remove swap space", libc::SYS_swapoff, [Arg::Text(NOWHERE)]),
    let_through!("accounting", "switch process accounting", libc::SYS_acct, [Arg::Text(NOWHERE)]),
    // Q_SYNC of a device that is not there: only a filter refuses it before that shows.
    let_through!(
        "quota",
        "change disk quotas",
        libc::SYS_quotactl,
        [int(0x80_0001 << 8), Arg::Text(NOWHERE), int(0), Arg::Null]
    ),
    let_through!("kernel-log", "read the kernel's log", libc::SYS_syslog, [int(10), Arg::Null, int(0)]),
    plain("run-from-memory", "run a program that is in no file", |_| run_from_memory()),
];

fn open_by_handle() -> Verdict {
    // struct file_handle: bytes, type, then the handle.
    let mut handle = [0_u8; 136];
    handle[0] = 128;
    let mut mount = [0_u8; 8];
    let here = || int(libc::AT_FDCWD.into());
    let named = call(
        libc::SYS_name_to_handle_at,
        [here(), Arg::Text(c"/"), Arg::Out(&mut handle), Arg::Out(&mut mount), int(0)],
    );
    if named.is_err() {
        // A made-up handle will do: the permission comes first, then ESTALE.
        handle = [0; 136];
        handle[0] = 8;
        handle[4] = 1;
    }
    let root = match File::open("/") {
        Ok(root) => root,
        Err(error) => return Verdict::Refused(Errno::from(error).to_string()),
    };
    Verdict::of_call(call(
        libc::SYS_open_by_handle_at,
        [int(root.as_raw_fd().into()), Arg::Out(&mut handle), int((libc::O_PATH | libc::O_CLOEXEC).into())],
    ))
}

/// On a terminal of our own, never on one that a person sits at; on a pipe where there is none, which is enough to see
/// whether the request is let through.
fn on_terminal(request: i64) -> Verdict {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/ptmx");
    let fallback = crate::attempt::pipe();
    let fd = match (&terminal, &fallback) {
        (Ok(terminal), _) => terminal.as_raw_fd(),
        (_, Ok((pipe, _))) => pipe.as_raw_fd(),
        (_, Err(error)) => return Verdict::Refused(error.to_string()),
    };
    // Subcode 'x' means nothing to TIOCLINUX.
    Verdict::of_call(call(libc::SYS_ioctl, [int(fd.into()), int(request), Arg::In(b"x")]))
}

fn run_from_memory() -> Verdict {
    let prepared = own_bytes().and_then(|bytes| {
        let fd = call(libc::SYS_memfd_create, [Arg::Text(c"probe"), int(1)])?;
        let mut file = File::from(sys::owned(fd));
        file.write_all(&bytes)?;
        Ok(file)
    });
    let ending =
        prepared.and_then(|file| run(|| sys::execute_fd(file.as_raw_fd(), &[c"probe", c"do", c"exit", c"0"], &[])));
    Verdict::of(ending, "it ran")
}
