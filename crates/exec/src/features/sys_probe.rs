//! System calls for probing that rustix does not have, and the child process in which they are tried.
//!
//! `unshare`, a seccomp filter or a lowered limit cannot be undone, so they are tried in a child process. It is created
//! by `fork`, also from a process with many threads. There POSIX allows the child only async-signal-safe calls until it
//! execs, because a lock that another thread held at that moment stays locked for ever in the copy. So the child
//! allocates nothing, formats nothing, takes no lock and cannot panic: it makes system calls on values prepared before
//! the fork, reports through a pipe and `_exit`s.
#![expect(unsafe_code, reason = "fork and system calls that rustix does not offer safely")]

mod calls;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

pub(super) use calls::*;

/// How long a child may take. Its work takes microseconds; only a stuck kernel needs this.
const CHILD_TIMEOUT: Duration = Duration::from_secs(10);

/// One step of a sequence that the child tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Leave namespaces, by `CLONE_NEW*` flags.
    Unshare(libc::c_int),
    /// Wait for the parent, which meanwhile writes the maps of the new user namespace.
    Rendezvous,
    /// Become UID and GID 0 of the new user namespace.
    BecomeMapped,
    /// Detach every mount from the namespace it was copied from.
    PrivateMounts,
    /// Mount a tmpfs.
    MountTmpfs,
    /// Fork once more: only a child is in the new pid namespace.
    EnterPidNamespace,
    /// Mount a `/proc` of the new pid namespace.
    MountProc,
    /// Install a seccomp filter that allows everything.
    Filter,
    /// Verify that RLIMIT_NPROC counts inside the user namespace alone: with a limit of two, this process may have one
    /// child and no second one. `EAGAIN`: not even one; `EOPNOTSUPP`: two.
    ProcessLimit,
}

/// The step that failed, and its error.
#[derive(Debug)]
pub(super) struct ProbeFailure {
    pub step: Step,
    pub error: io::Error,
}

/// A report of the child: the number of a step, and its errno; or that it waits, or that all steps succeeded.
type Message = [u8; 8];
const WAITING: i32 = -1;

/// The parent's replies.
const CONTINUE: &[u8; 1] = b"!";
const ABORT: &[u8; 1] = b".";

/// Tries `steps` in a child, one after the other, up to the first failure. At [`Step::Rendezvous`] the child waits
/// while `meanwhile` runs here with its pid; an error from there ends the attempt.
///
/// # Errors
/// The child could not be created or did not report. A refused step is not an error, but the inner result.
pub(super) fn try_steps(
    steps: &[Step],
    meanwhile: &mut dyn FnMut(Pid) -> io::Result<()>,
) -> io::Result<Result<(), ProbeFailure>> {
    let (reports, report_end) = pipe_with(PipeFlags::CLOEXEC)?;
    let (wait_end, releases) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: the child runs `run_steps` and nothing else, which keeps to async-signal-safe calls (see
    // the module's text) and never returns. It works on `steps` and the two descriptors, which exist in
    // its copy of the memory as they do here.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: this is the child, and nothing follows.
        unsafe { run_steps(steps, report_end.as_raw_fd(), wait_end.as_raw_fd()) }
    }
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        return Err(io::Error::last_os_error());
    };
    // Our copies must be closed, or the end of the child would not be seen.
    drop((report_end, wait_end));
    let outcome = receive_reports(steps, reports, releases, || meanwhile(pid));
    // After its report the child ends by itself, when its own child has. Killing it then would leave that one to us, as
    // a zombie, if we are a subreaper. Not reaped yet, so the pid is still its own.
    if outcome.is_err() {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
    outcome
}

fn receive_reports(
    steps: &[Step],
    reports: OwnedFd,
    releases: OwnedFd,
    mut meanwhile: impl FnMut() -> io::Result<()>,
) -> io::Result<Result<(), ProbeFailure>> {
    let mut reports = std::fs::File::from(reports);
    let mut releases = std::fs::File::from(releases);
    loop {
        wait_readable(reports.as_fd())?;
        let mut message = Message::default();
        reports.read_exact(&mut message)?;
        let [a, b, c, d, e, f, g, h] = message;
        let number = usize::try_from(i32::from_ne_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let errno = i32::from_ne_bytes([e, f, g, h]);
        let Some(&step) = steps.get(number) else {
            return Ok(Ok(()));
        };
        if errno != WAITING {
            let error = io::Error::from_raw_os_error(errno);
            return Ok(Err(ProbeFailure { step, error }));
        }
        // A refusal is written too. Closing the pipe would not be enough: a child that another thread forks just now
        // has a copy of our end.
        let outcome = meanwhile();
        releases.write_all(if outcome.is_ok() { CONTINUE } else { ABORT })?;
        if let Err(error) = outcome {
            return Ok(Err(ProbeFailure { step, error }));
        }
    }
}

fn wait_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let timeout = Timespec::try_from(CHILD_TIMEOUT).map_err(io::Error::other)?;
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))?;
    if ready == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(())
}

/// The child. Only async-signal-safe calls, no allocation, no panic.
///
/// # Safety
/// Call it in a process that was just forked, whose memory is not used afterwards.
unsafe fn run_steps(steps: &[Step], report: libc::c_int, wait: libc::c_int) -> ! {
    let mut number: i32 = 0;
    for &step in steps {
        // SAFETY: forwarded from the caller.
        let errno = unsafe { run_step(step, number, report, wait) };
        if errno != 0 {
            // SAFETY: writing to a descriptor that the caller passed, and leaving.
            unsafe {
                send_report(report, number, errno);
                libc::_exit(1);
            }
        }
        number += 1;
    }
    // SAFETY: as above.
    unsafe {
        send_report(report, number, 0);
        libc::_exit(0)
    }
}

/// Returns 0 or an errno.
///
/// # Safety
/// Like `run_steps`.
unsafe fn run_step(step: Step, number: i32, report: libc::c_int, wait: libc::c_int) -> i32 {
    const NONE: *const libc::c_char = ptr::null();
    // SAFETY: every pointer is null where the call allows it, or leads to a constant or to a local that
    // outlives the call; the process is the caller's to change.
    unsafe {
        match step {
            Step::Unshare(flags) => errno_of(libc::unshare(flags)),
            Step::Rendezvous => {
                send_report(report, number, WAITING);
                let mut answer = [0_u8];
                libc::read(wait, answer.as_mut_ptr().cast(), 1);
                if answer == *CONTINUE { 0 } else { libc::ECANCELED }
            }
            // Raw: glibc's wrappers change all threads, with locks and signals.
            Step::BecomeMapped => {
                let zero: libc::c_long = 0;
                if libc::syscall(libc::SYS_setresgid, zero, zero, zero) != 0 {
                    return errno();
                }
                if libc::syscall(libc::SYS_setresuid, zero, zero, zero) != 0 {
                    return errno();
                }
                0
            }
            Step::PrivateMounts => {
                let flags = libc::MS_REC | libc::MS_PRIVATE;
                errno_of(libc::mount(NONE, c"/".as_ptr(), NONE, flags, ptr::null()))
            }
            Step::MountTmpfs => {
                let (kind, flags) = (c"tmpfs".as_ptr(), libc::MS_NOSUID | libc::MS_NODEV);
                errno_of(libc::mount(kind, c"/".as_ptr(), kind, flags, ptr::null()))
            }
            Step::EnterPidNamespace => {
                let child = libc::fork();
                if child < 0 {
                    return errno();
                }
                if child == 0 {
                    // So that killing the first child is enough.
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    return 0;
                }
                libc::waitpid(child, ptr::null_mut(), 0);
                libc::_exit(0)
            }
            Step::MountProc => {
                let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                let (kind, target) = (c"proc".as_ptr(), c"/proc".as_ptr());
                errno_of(libc::mount(kind, target, kind, flags, ptr::null()))
            }
            Step::Filter => install_filter(),
            Step::ProcessLimit => try_process_limit(),
        }
    }
}

/// # Safety
/// Like `run_steps`.
unsafe fn install_filter() -> i32 {
    let mut allow = libc::sock_filter {
        code: 0x06, // BPF_RET | BPF_K
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let program = libc::sock_fprog { len: 1, filter: &raw mut allow };
    // SAFETY: `program` and the instruction it leads to outlive the calls.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return errno();
        }
        let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
        errno_of(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program))
    }
}

/// # Safety
/// Like `run_steps`.
unsafe fn try_process_limit() -> i32 {
    let limit = libc::rlimit { rlim_cur: 2, rlim_max: 2 };
    // SAFETY: `limit` outlives the call; the forked children do nothing but wait for their end.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) != 0 {
            return errno();
        }
        let first = fork_sleeper();
        if first < 0 {
            return errno();
        }
        let second = fork_sleeper();
        let refused = second < 0;
        let why = errno();
        for child in [first, second] {
            if child > 0 {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, ptr::null_mut(), 0);
            }
        }
        match (refused, why) {
            (true, libc::EAGAIN) => 0,
            (true, other) => other,
            (false, _) => libc::EOPNOTSUPP,
        }
    }
}

/// # Safety
/// Like `run_steps`.
unsafe fn fork_sleeper() -> libc::pid_t {
    // SAFETY: the child makes two async-signal-safe calls until it is killed, at the latest with its parent.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
        child
    }
}

/// # Safety
/// `report` is the writing end of a pipe.
unsafe fn send_report(report: libc::c_int, number: i32, errno: i32) {
    let ([a, b, c, d], [e, f, g, h]) = (number.to_ne_bytes(), errno.to_ne_bytes());
    let message: Message = [a, b, c, d, e, f, g, h];
    // SAFETY: the buffer has the given length. A write this short to a pipe is all or nothing.
    unsafe { libc::write(report, message.as_ptr().cast(), message.len()) };
}

fn errno_of(result: libc::c_int) -> i32 {
    if result == 0 { 0 } else { errno() }
}

/// Reading errno does not allocate: std returns an integer.
fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
