//! Signals to processes that are not ours. Signal 0 asks and sends nothing; a real signal goes only to a process that
//! the test names.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::attempt::{Attempt, Input, Verdict, plain, with, with_default};
use crate::sys::{self, Arg, Errno, call};

const fn row(name: &'static str, what: &'static str, run: fn(&Input<'_>) -> Verdict) -> Attempt {
    with_default(name, "[PID]", "", what, run)
}

pub const ATTEMPTS: &[Attempt] = &[
    row("signal", "signal the executor: kill", |input| {
        at(input, |pid| call(libc::SYS_kill, [Arg::Int(pid), Arg::Int(0)]))
    }),
    row("signal-by-tkill", "signal the executor: tkill", |input| {
        at(input, |pid| call(libc::SYS_tkill, [Arg::Int(pid), Arg::Int(0)]))
    }),
    row("signal-by-tgkill", "signal the executor: tgkill", |input| {
        at(input, |pid| call(libc::SYS_tgkill, [Arg::Int(pid), Arg::Int(pid), Arg::Int(0)]))
    }),
    row("signal-by-sigqueue", "signal the executor: rt_sigqueueinfo", |input| {
        at(input, |pid| call(libc::SYS_rt_sigqueueinfo, [Arg::Int(pid), Arg::Int(0), Arg::In(&queued())]))
    }),
    row("signal-by-tgsigqueue", "signal the executor: rt_tgsigqueueinfo", |input| {
        at(input, |pid| {
            call(libc::SYS_rt_tgsigqueueinfo, [Arg::Int(pid), Arg::Int(pid), Arg::Int(0), Arg::In(&queued())])
        })
    }),
    row("signal-by-pidfd", "signal the executor: pidfd_send_signal", |input| {
        at(input, |pid| {
            let pidfd = sys::owned(call(libc::SYS_pidfd_open, [Arg::Int(pid), Arg::Int(0)])?);
            let fd = Arg::Int(pidfd.as_raw_fd().into());
            call(libc::SYS_pidfd_send_signal, [fd, Arg::Int(0), Arg::Null, Arg::Int(0)])
        })
    }),
    row("signal-by-proc-directory", "signal the executor: pidfd_send_signal, by its directory in /proc", |input| {
        at(input, |pid| {
            let directory = fs::File::open(format!("/proc/{pid}"))?;
            let fd = Arg::Int(directory.as_raw_fd().into());
            call(libc::SYS_pidfd_send_signal, [fd, Arg::Int(0), Arg::Null, Arg::Int(0)])
        })
    }),
    row("signal-group", "signal the executor's process group", |input| {
        at(input, |pid| {
            let group = call(libc::SYS_getpgid, [Arg::Int(pid)])?;
            if group <= 1 {
                // -1 and 0 mean something else to kill, and group 0 is outside our namespace.
                return Err(Errno(libc::ESRCH));
            }
            call(libc::SYS_kill, [Arg::Int(-group), Arg::Int(0)])
        })
    }),
    with("kill-by-descriptor-owner", "PID", "kill a process by way of F_SETOWN and F_SETSIG", |input| {
        by_owner(input, Owner::Fcntl)
    }),
    with("kill-by-socket-owner", "PID", "kill a process by way of FIOSETOWN and F_SETSIG", |input| {
        by_owner(input, Owner::Fiosetown)
    }),
    with("kill-by-socket-group", "PID", "kill a process by way of SIOCSPGRP and F_SETSIG", |input| {
        by_owner(input, Owner::Siocspgrp)
    }),
    with("kill-for-real", "PID", "kill a process", |input| {
        let Ok(pid) = input.target() else {
            return Verdict::Refused("no such process".into());
        };
        Verdict::of(sys::kill(pid, libc::SIGKILL), "sent SIGKILL")
    }),
    plain("signal-everyone", "signal any process that is not ours", everyone),
];

fn at(input: &Input<'_>, send: impl FnOnce(i64) -> Result<i64, Errno>) -> Verdict {
    match input.target() {
        Ok(pid) => Verdict::of(send(pid.into()), format!("process {pid} can be signalled")),
        Err(verdict) => verdict,
    }
}

/// A `siginfo_t` that says SI_QUEUE (-1), the only code an ordinary process may claim.
fn queued() -> [u8; 128] {
    let mut info = [0; 128];
    info[8..12].copy_from_slice(&(-1_i32).to_ne_bytes());
    info
}

/// By which call a descriptor gets its owner.
#[derive(Clone, Copy)]
enum Owner {
    Fcntl,
    Fiosetown,
    Siocspgrp,
}

/// The kernel sends the signal on our behalf when the socket becomes readable. Setting it up is always allowed; only
/// the victim's death shows whether the signal got through.
fn by_owner(input: &Input<'_>, owner: Owner) -> Verdict {
    let Ok(pid) = input.target() else {
        return Verdict::Refused("no such process".into());
    };
    let armed = (|| {
        let (ours, theirs) = UnixStream::pair()?;
        let control = |command: i32, value: i64| {
            let fd = Arg::Int(ours.as_raw_fd().into());
            call(libc::SYS_fcntl, [fd, Arg::Int(command.into()), Arg::Int(value)])
        };
        let request = |number| {
            let fd = Arg::Int(ours.as_raw_fd().into());
            let pid = pid.to_ne_bytes();
            call(libc::SYS_ioctl, [fd, Arg::Int(number), Arg::In(&pid)])
        };
        match owner {
            Owner::Fcntl => control(libc::F_SETOWN, pid.into())?,
            Owner::Fiosetown => request(0x8901)?,
            Owner::Siocspgrp => request(0x8902)?,
        };
        // F_SETSIG, which the libc crate does not name on every target.
        control(10, libc::SIGKILL.into())?;
        control(libc::F_SETFL, (libc::O_ASYNC | libc::O_NONBLOCK).into())?;
        let byte = b"x";
        call(
            libc::SYS_sendto,
            [Arg::Int(theirs.as_raw_fd().into()), Arg::In(byte), Arg::Int(1), Arg::Int(0), Arg::Null, Arg::Int(0)],
        )?;
        Ok::<_, Errno>((ours, theirs))
    })();
    let Ok(_armed) = armed.as_ref() else {
        return Verdict::of(armed, "");
    };
    let deadline = Instant::now() + Duration::from_millis(500);
    loop {
        // Asked before the look: a machine that stalls in between does not turn a slow yes into a no.
        let is_over = Instant::now() >= deadline;
        if is_gone(pid) {
            return Verdict::Possible(format!("process {pid} is gone"));
        }
        if is_over {
            return Verdict::Refused("armed, but the process lives".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether it has ended, or has a SIGKILL that it has had no time to die of: on a busy machine that takes a while.
fn is_gone(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let zombie = field("State:").starts_with(['Z', 'X']);
    let pending = u64::from_str_radix(field("SigPnd:"), 16).unwrap_or(0);
    let killed = pending & (1 << (libc::SIGKILL - 1)) != 0;
    zombie || killed || sys::kill(pid, 0) == Err(Errno(libc::ESRCH))
}

/// What `kill(-1, …)` would reach. Asked one by one, because our own processes do not count.
fn everyone(input: &Input<'_>) -> Verdict {
    let ours = [input.start.pid, std::process::id() as i32];
    let highest =
        fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65_536);
    let mut reached = Vec::new();
    // Ends by time as well as by number: a machine may allow four million pids.
    let deadline = Instant::now() + Duration::from_secs(8);
    for pid in 1..=highest {
        if !ours.contains(&pid) && sys::kill(pid, 0).is_ok() {
            reached.push(pid);
        }
        if pid % 4096 == 0 && Instant::now() > deadline {
            break;
        }
    }
    let first: Vec<_> = reached.iter().take(8).collect();
    Verdict::from_condition(!reached.is_empty(), format!("{} processes {first:?}", reached.len()))
}
