//! Looking into processes that are not ours, and meeting them through System V IPC and message queues.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use crate::attempt::{Attempt, Input, Verdict, plain, with, with_default};
use crate::sys::{self, Arg, Errno, call};

const fn row(name: &'static str, what: &'static str, run: fn(&Input<'_>) -> Verdict) -> Attempt {
    with_default(name, "[PID]", "", what, run)
}

pub const ATTEMPTS: &[Attempt] = &[
    row("proc-environ", "read the executor's environment", |input| read_proc(input, "environ")),
    row("proc-cmdline", "read the executor's command line", |input| read_proc(input, "cmdline")),
    row("proc-maps", "read the executor's memory map", |input| read_proc(input, "maps")),
    row("proc-auxv", "read the executor's auxiliary vector", |input| read_proc(input, "auxv")),
    row("proc-mem", "open the executor's memory", |input| {
        on_proc(input, "mem", |path| File::open(path).map(|_| "opened".to_owned()))
    }),
    row("proc-mem-write", "open the executor's memory for writing", |input| {
        on_proc(input, "mem", |path| OpenOptions::new().write(true).open(path).map(|_| "opened".to_owned()))
    }),
    row("proc-fd", "list the executor's open files", |input| {
        on_proc(input, "fd", |path| fs::read_dir(path).map(|entries| format!("{} entries", entries.count())))
    }),
    row("proc-cwd", "reach the executor's working directory", |input| {
        on_proc(input, "cwd/", |path| fs::read_dir(path).map(|_| "listed".to_owned()))
    }),
    row("proc-root", "reach the executor's root directory", |input| {
        on_proc(input, "root/", |path| fs::read_dir(path).map(|_| "listed".to_owned()))
    }),
    row("proc-exe", "open the executor's program file", |input| {
        on_proc(input, "exe", |path| File::open(path).map(|_| "opened".to_owned()))
    }),
    row("proc-oom-score", "make the executor the first to die of memory", |input| {
        on_proc(input, "oom_score_adj", |path| OpenOptions::new().write(true).open(path).map(|_| "opened".to_owned()))
    }),
    row("ptrace", "trace the executor", |input| {
        // SEIZE does not stop it, and our end lets go of it.
        at(input, |pid| call(libc::SYS_ptrace, [Arg::Int(0x4206), Arg::Int(pid), Arg::Int(0), Arg::Int(0)]))
    }),
    row("read-memory", "read the executor's memory by process_vm_readv", |input| {
        at(input, |pid| vector(libc::SYS_process_vm_readv, pid))
    }),
    row("write-memory", "write the executor's memory by process_vm_writev", |input| {
        at(input, |pid| vector(libc::SYS_process_vm_writev, pid))
    }),
    row("steal-descriptor", "copy an open file of the executor (pidfd_getfd)", |input| {
        at(input, |pid| {
            let pidfd = sys::owned(call(libc::SYS_pidfd_open, [Arg::Int(pid), Arg::Int(0)])?);
            let fd = Arg::Int(pidfd.as_raw_fd().into());
            call(libc::SYS_pidfd_getfd, [fd, Arg::Int(0), Arg::Int(0)])
        })
    }),
    row("compare", "ask about the executor's kernel objects (kcmp)", |input| {
        let own = i64::from(std::process::id());
        at(input, |pid| call(libc::SYS_kcmp, [Arg::Int(own), Arg::Int(pid), Arg::Int(1), Arg::Int(0), Arg::Int(0)]))
    }),
    row("set-priority", "change the executor's priority", |input| {
        at(input, |pid| {
            // The kernel answers 20 minus the value, so that it is never negative; the same value is set again.
            let now = 20 - call(libc::SYS_getpriority, [Arg::Int(0), Arg::Int(pid)])?;
            call(libc::SYS_setpriority, [Arg::Int(0), Arg::Int(pid), Arg::Int(now)])
        })
    }),
    row("set-scheduler", "change the executor's scheduling policy", |input| {
        at(input, |pid| {
            // SCHED_OTHER, which it has already.
            call(libc::SYS_sched_setscheduler, [Arg::Int(pid), Arg::Int(0), Arg::In(&[0; 4])])
        })
    }),
    row("set-scheduler-parameters", "change the executor's scheduling parameters", |input| {
        at(input, |pid| call(libc::SYS_sched_setparam, [Arg::Int(pid), Arg::In(&[0; 4])]))
    }),
    row("set-scheduler-attributes", "change the executor's scheduling attributes", |input| {
        at(input, |pid| {
            const LENGTH: usize = 48;
            let mut attributes = [0; LENGTH];
            call(
                libc::SYS_sched_getattr,
                [Arg::Int(pid), Arg::Out(&mut attributes), Arg::Int(LENGTH as i64), Arg::Int(0)],
            )?;
            // What it has already.
            call(libc::SYS_sched_setattr, [Arg::Int(pid), Arg::In(&attributes), Arg::Int(0)])
        })
    }),
    row("set-affinity", "choose the executor's processors", |input| {
        at(input, |pid| {
            let mut processors = [0; 128];
            let length = call(libc::SYS_sched_getaffinity, [Arg::Int(pid), Arg::Int(128), Arg::Out(&mut processors)])?;
            // What it has already.
            call(libc::SYS_sched_setaffinity, [Arg::Int(pid), Arg::Int(length), Arg::In(&processors)])
        })
    }),
    plain("set-priority-of-user", "change the priority of all processes of the user", |_| {
        const PRIO_USER: i64 = 2;
        // What they have already, if none differs.
        let set = call(libc::SYS_getpriority, [Arg::Int(PRIO_USER), Arg::Int(0)]).and_then(|highest| {
            let value = Arg::Int(20 - highest);
            call(libc::SYS_setpriority, [Arg::Int(PRIO_USER), Arg::Int(0), value])
        });
        Verdict::of(set, "changed")
    }),
    row("change-limits", "change the executor's resource limits", |input| {
        at(input, |pid| {
            let core = || Arg::Int(libc::RLIMIT_CORE as i64);
            let mut limits = [0_u8; 16];
            call(libc::SYS_prlimit64, [Arg::Int(pid), core(), Arg::Null, Arg::Out(&mut limits)])?;
            // What it has already.
            call(libc::SYS_prlimit64, [Arg::Int(pid), core(), Arg::In(&limits), Arg::Null])
        })
    }),
    plain("see-processes", "see processes that are not ours", see_processes),
    with("sysv-shared-memory", "KEY", "find shared memory of others", |input| {
        let key = Arg::Int(input.number() as i64);
        Verdict::of(call(libc::SYS_shmget, [key, Arg::Int(0), Arg::Int(0)]), "found it")
    }),
    with("sysv-semaphore", "KEY", "find semaphores of others", |input| {
        let key = Arg::Int(input.number() as i64);
        Verdict::of(call(libc::SYS_semget, [key, Arg::Int(0), Arg::Int(0)]), "found it")
    }),
    with("sysv-queue", "KEY", "find a message queue of others", |input| {
        Verdict::of(call(libc::SYS_msgget, [Arg::Int(input.number() as i64), Arg::Int(0)]), "found it")
    }),
    with("posix-queue", "NAME", "open a POSIX message queue of others", |input| {
        let name = CString::new(input.argument.trim_start_matches('/')).unwrap_or_default();
        let opened = call(libc::SYS_mq_open, [Arg::Text(&name), Arg::Int(0), Arg::Int(0), Arg::Null]);
        Verdict::of(opened.map(sys::owned), "opened it")
    }),
    plain("become-subreaper", "adopt orphans instead of the executor", |_| {
        Verdict::of(call(libc::SYS_prctl, [Arg::Int(libc::PR_SET_CHILD_SUBREAPER.into()), Arg::Int(1)]), "adopted")
    }),
];

fn at(input: &Input<'_>, act: impl FnOnce(i64) -> Result<i64, Errno>) -> Verdict {
    match input.target() {
        Ok(pid) => Verdict::of(act(pid.into()), format!("done to process {pid}")),
        Err(verdict) => verdict,
    }
}

fn on_proc(input: &Input<'_>, name: &str, act: impl FnOnce(&str) -> std::io::Result<String>) -> Verdict {
    match input.target() {
        Ok(pid) => match act(&format!("/proc/{pid}/{name}")) {
            Ok(seen) => Verdict::Possible(format!("process {pid}: {seen}")),
            Err(error) => Verdict::Refused(Errno::from(error).to_string()),
        },
        Err(verdict) => verdict,
    }
}

fn read_proc(input: &Input<'_>, name: &str) -> Verdict {
    let Ok(pid) = input.target() else {
        return Verdict::Refused("no such process in sight".into());
    };
    let mut bytes = [0; 64];
    match File::open(format!("/proc/{pid}/{name}")).and_then(|mut file| file.read(&mut bytes)) {
        // Kernel threads and zombies have nothing to show.
        Ok(0) => Verdict::Refused("empty".into()),
        Ok(_) => Verdict::Possible(format!("process {pid}: read it")),
        Err(error) => Verdict::Refused(Errno::from(error).to_string()),
    }
}

/// Reads or writes one byte at address 0, where nothing is: permission is checked before the address.
fn vector(number: i64, pid: i64) -> Result<i64, Errno> {
    let mut byte = [0_u8; 8];
    let mut local = [0_u8; 16];
    local[..8].copy_from_slice(&(byte.as_mut_ptr() as usize).to_ne_bytes());
    local[8] = 1;
    let mut remote = [0_u8; 16];
    remote[8] = 1;
    let one = || Arg::Int(1);
    match call(number, [Arg::Int(pid), Arg::In(&local), one(), Arg::In(&remote), one(), Arg::Int(0)]) {
        Err(Errno(libc::EFAULT)) => Ok(0),
        result => result,
    }
}

fn see_processes(input: &Input<'_>) -> Verdict {
    let ours = [input.start.pid, std::process::id() as i32];
    let entries = match fs::read_dir("/proc") {
        Ok(entries) => entries,
        Err(error) => return Verdict::Refused(Errno::from(error).to_string()),
    };
    let mut others: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| !ours.contains(pid))
        .collect();
    others.sort_unstable();
    let first: Vec<_> = others.iter().take(8).collect();
    Verdict::from_condition(!others.is_empty(), format!("{} processes {first:?}", others.len()))
}
