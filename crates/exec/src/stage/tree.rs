//! Kills a whole process tree.
//!
//! The caller is a subreaper (or pid 1), so a process of the tree that loses its parent becomes the caller's child: the
//! tree is gone exactly when the kernel reports that the caller has no child. Killing repeats until then, because a
//! process may fork between being listed and being killed. Enough chains of fork-and-exit outrun any listing, so a
//! caller in its own [`SignalScope`] lets the kernel do it in one step.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::landlock;
use crate::sys::{self, ReapResult, ReapedChild};

/// How long a tree may take to end after SIGKILL before it counts as unkillable (for example a process in an
/// uninterruptible wait on a dead network file system).
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Passes without a pause: a chain of fork-and-exit can only be caught by being faster.
const EAGER_PASSES: u32 = 32;
/// Limit for the processes that are reaped before the time is checked again.
pub(crate) const MAX_REAPED_PER_PASS: u32 = 256;
/// Pause between later passes.
const PASS_INTERVAL: Duration = Duration::from_micros(200);
/// A keeper cannot ask the kernel whether it has children besides its workers, so it checks this often.
const EMPTY_PASSES: u32 = 3;
/// A tree deeper than this is killed level by level: each pass makes its upper part our children.
const MAX_DEPTH: usize = 64;

/// Proof that this process is in its own Landlock signal scope: every process that it can signal is in that scope, and
/// so are all that it has started since.
#[derive(Debug)]
pub(crate) struct SignalScope(());

impl SignalScope {
    /// Enters the scope. `None`: it has no effect, and a signal to all processes would really reach all of them.
    pub(crate) fn enter(ruleset: &OwnedFd) -> io::Result<Option<Self>> {
        let reaches = |pid| rustix::process::test_kill_process(pid);
        let parent = rustix::process::getppid();
        // Reachable before and not now: only the scope can be the cause.
        let before = parent.map(reaches);
        landlock::enter(ruleset)?;
        let after = parent.map(reaches);
        let holds = before == Some(Ok(())) && after == Some(Err(Errno::PERM)) && rustix::process::getppid() == parent;
        Ok(holds.then_some(Self(())))
    }

    /// Signals all processes in the scope except this one, in one step: the kernel blocks forks while it iterates over
    /// the processes, and a process with a fatal signal cannot fork (kill(2), `-1`).
    fn signal_all(&self, signal: Signal) {
        sys::signal_all_in_reach(signal);
    }
}

/// The descendants that are addressed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Targets<'a> {
    /// All except these children (a keeper's workers) and their descendants, as far as a listing shows them.
    AllExcept(&'a [Pid]),
    /// All; with a scope, independent of a listing.
    All(Option<&'a SignalScope>),
}

impl Targets<'_> {
    fn excluded(&self) -> &[Pid] {
        match self {
            Self::AllExcept(spare) => spare,
            Self::All(_) => &[],
        }
    }
}

/// Kills the addressed descendants and reaps them, passing each to `on_reaped`.
///
/// Returns the number of remaining children besides the excluded ones: 0, unless [`KILL_TIMEOUT`] has passed.
pub(crate) fn kill(whom: Targets<'_>, mut on_reaped: impl FnMut(ReapedChild)) -> io::Result<usize> {
    let spare = whom.excluded();
    let deadline = Instant::now() + KILL_TIMEOUT;
    let mut empty_passes = 0;
    for pass in 0.. {
        let living = match whom {
            Targets::All(Some(scope)) if pass < EAGER_PASSES => {
                scope.signal_all(Signal::KILL);
                1
            }
            // They take long to end: count them.
            Targets::All(Some(scope)) => match signal_listed(Signal::KILL, spare) {
                // The scope is that of the commands, which may have no access to `/proc`. The kernel still reaches them
                // all.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    scope.signal_all(Signal::KILL);
                    1
                }
                counted => counted?,
            },
            _ => signal_listed(Signal::KILL, spare)?,
        };
        // Bounded, because a continuous stream of ending processes would never let the loop end.
        for _ in 0..MAX_REAPED_PER_PASS {
            match sys::reap()? {
                ReapResult::One(reaped) => on_reaped(reaped),
                // The only proof: whatever a listing showed, a process may have been missed.
                ReapResult::Childless => return Ok(0),
                ReapResult::NoneYet => break,
            }
        }
        empty_passes = if living == 0 { empty_passes + 1 } else { 0 };
        if !spare.is_empty() && empty_passes == EMPTY_PASSES {
            return Ok(0);
        }
        if Instant::now() > deadline {
            return Ok(living.max(1));
        }
        if pass >= EAGER_PASSES {
            std::thread::sleep(PASS_INTERVAL);
        }
    }
    unreachable!("the loop above has no end but its returns")
}

/// Sends `signal` to the addressed descendants, once.
pub(crate) fn signal(signal: Signal, whom: Targets<'_>) -> io::Result<()> {
    match whom {
        Targets::All(Some(scope)) => scope.signal_all(signal),
        _ => {
            signal_listed(signal, whom.excluded())?;
        }
    }
    Ok(())
}

/// Sends `signal` to every descendant except `spare` and theirs. Returns their number.
fn signal_listed(signal: Signal, spare: &[Pid]) -> io::Result<usize> {
    let own = rustix::process::getpid();
    let mut level = Vec::new();
    let mut seen = 0;
    for child in children(own)? {
        if spare.contains(&child) {
            continue;
        }
        seen += 1;
        // Listed before it is signalled: afterwards its children may be ours and not be found here any more.
        level.extend(children(child)?.into_iter().map(|pid| (pid, child)));
        // Only we reap our children, so this number cannot refer to another process. A zombie is fine too.
        let _ = kill_process(child, signal);
    }
    for _ in 0..MAX_DEPTH {
        if level.is_empty() {
            break;
        }
        seen += level.len();
        let mut next = Vec::new();
        for (pid, parent) in level {
            next.extend(children(pid)?.into_iter().map(|child| (child, pid)));
            signal_grandchild(pid, parent, signal);
        }
        level = next;
    }
    Ok(seen)
}

/// Signals a process that another process may reap, so that its number may be reused: a pidfd pins the process that has
/// the number now, and only then its parent is checked.
fn signal_grandchild(pid: Pid, parent: Pid, signal: Signal) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let own = rustix::process::getpid().as_raw_pid();
    if parse_parent(&stat).is_some_and(|now| now == parent.as_raw_pid() || now == own) {
        send(&process, pid, signal);
    }
}

/// Signals the process behind a descriptor.
///
/// The guard in seccomp that holds commands off us refuses this call with EPERM, others with ENOSYS. Then the number
/// has to do, although the descriptor keeps the process and not its number: in the moment since it was looked at, the
/// process may have been reaped and its number given away. Any other error is about the process, which is gone then.
fn send(process: &OwnedFd, pid: Pid, signal: Signal) {
    if let Err(Errno::PERM | Errno::NOSYS) = pidfd_send_signal(process, signal) {
        let _ = kill_process(pid, signal);
    }
}

/// The children of a process of one or more threads, from `/proc`.
///
/// Only descendants are read. One that ends meanwhile has no children any more: they are listed as ours on the next
/// pass.
fn children(parent: Pid) -> io::Result<Vec<Pid>> {
    let tasks = match fs::read_dir(format!("/proc/{parent}/task")) {
        Ok(tasks) => tasks,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for task in tasks {
        let Ok(task) = task else { break };
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound && has_children_file() => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(_) => return children_by_scan(parent),
        }
    }
    Ok(found)
}

/// Whether this kernel was built with `CONFIG_PROC_CHILDREN`.
fn has_children_file() -> bool {
    fs::exists("/proc/thread-self/children").unwrap_or(false)
}

/// The same result from `/proc/*/stat`, for kernels without the `children` file.
fn children_by_scan(parent: Pid) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        if parse_parent(&stat) == Some(parent.as_raw_pid()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The parent's pid in a `/proc/<pid>/stat` line. The command name before it is chosen by the process and may contain
/// spaces and brackets, so fields count from the *last* closing bracket.
pub(crate) fn parse_parent(stat: &[u8]) -> Option<i32> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_name_cannot_forge_a_parent() {
        assert_eq!(parse_parent(b"7 (sh) S 42 7 7 0"), Some(42));
        assert_eq!(parse_parent(b"7 (x) S 1 (y) R 42 7"), Some(42));
        assert_eq!(parse_parent(b"7 (\xff\xfe)) R 42 7"), Some(42));
        assert_eq!(parse_parent(b"7 sh S 42"), None);
        assert_eq!(parse_parent(b""), None);
        assert_eq!(parse_parent(b"7 (sh)"), None);
    }

    #[test]
    fn a_number_that_was_given_away_is_not_signalled() {
        let sleeper = || sympozium_testkit::command("/bin/sleep").arg("600").spawn().unwrap();
        let (mut gone, mut other) = (sleeper(), sleeper());
        let process = pidfd_open(Pid::from_child(&gone), PidfdFlags::empty()).unwrap();
        gone.kill().unwrap();
        gone.wait().unwrap();
        // As if the other had got the number of the one that is gone.
        send(&process, Pid::from_child(&other), Signal::KILL);
        kill_process(Pid::from_child(&other), Signal::TERM).unwrap();
        assert_eq!(other.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn both_ways_of_listing_children_agree() {
        // Of a process of this test alone: the children of any other come and go between the two listings.
        let mut parent = sympozium_testkit::command("/bin/sh")
            .args(["-c", "sleep 600 & sleep 600 & echo up; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        parent.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
        let pid = Pid::from_child(&parent);
        let sorted = |list: Vec<Pid>| list.into_iter().map(Pid::as_raw_pid).collect::<std::collections::BTreeSet<_>>();
        let (quick, slow) = (children(pid).unwrap(), children_by_scan(pid).unwrap());
        for &child in &quick {
            let _ = kill_process(child, Signal::KILL);
        }
        parent.wait().unwrap();
        let (quick, slow) = (sorted(quick), sorted(slow));
        assert_eq!(quick.len(), 2);
        assert_eq!(quick, slow);
    }
}
