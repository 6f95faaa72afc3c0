//! Kills all processes of a cgroup, and removes it.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::CgroupError;
use super::create::write_control_file;

/// How long a killed process may take to end. Killed processes are gone in well under a millisecond unless they hang in
/// the kernel, where no signal helps.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for `Drop`, which cannot report an error.
pub(super) const DROP_TIMEOUT: Duration = Duration::from_millis(250);

const MIN_POLL_INTERVAL: Duration = Duration::from_micros(100);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Kills everything in the v2 cgroup `directory` at once. `Ok(false)`: this kernel has no `cgroup.kill` (it was added
/// in 5.14).
pub(super) fn kill_by_file(directory: &Path) -> Result<bool, CgroupError> {
    match write_control_file(directory, "cgroup.kill", "1") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(CgroupError::Kill { path: directory.into(), source }),
    }
}

/// Sends SIGKILL to every process that `directory` lists, until it lists none or `deadline` has passed. A tree that
/// forks faster than this reads is only stopped by a pids limit of zero, which the caller sets.
pub(super) fn kill_one_by_one(directory: &Path, deadline: Duration) -> Result<(), CgroupError> {
    let listed = || members(directory).map_err(|source| read_error(directory, source));
    wait_until(deadline, || {
        let members = listed()?;
        // A pid may be reused between reading and killing. A pidfd pins one process; if the cgroup lists the pid after
        // that, the pinned process is the right one.
        let pinned: Vec<_> = members.iter().map(|&pid| (pid, pidfd_open(pid, PidfdFlags::empty()))).collect();
        let still_listed = listed()?;
        for (pid, pidfd) in pinned {
            if !still_listed.contains(&pid) {
                continue;
            }
            let _ = match pidfd {
                Ok(pidfd) => pidfd_send_signal(pidfd, Signal::KILL),
                Err(Errno::SRCH) => Ok(()),
                // No pidfds (Linux before 5.3, some sandboxes), or no descriptor left: the remaining race is the time
                // since the second reading, and not killing the process is worse.
                Err(_) => kill_process(pid, Signal::KILL),
            };
        }
        Ok(still_listed.is_empty())
    })
    .and_then(|done| if done { Ok(()) } else { survivors_error(directory, deadline) })
}

/// Waits until `directory` lists no process.
pub(super) fn wait_empty(directory: &Path, deadline: Duration) -> Result<(), CgroupError> {
    let done = wait_until(deadline, || match members(directory) {
        Ok(members) => Ok(members.is_empty()),
        Err(source) => Err(read_error(directory, source)),
    })?;
    if done { Ok(()) } else { survivors_error(directory, deadline) }
}

/// Removes `directory`, waiting for processes that are exiting.
pub(super) fn remove(directory: &Path, deadline: Duration) -> Result<(), CgroupError> {
    let failed = |source| CgroupError::Remove { path: directory.into(), source };
    let done = wait_until(deadline, || match fs::remove_dir(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
        Err(error) => Err(failed(error)),
    })?;
    if done { Ok(()) } else { Err(failed(io::ErrorKind::ResourceBusy.into())) }
}

/// The processes that `directory` lists. A process that our pid namespace does not show is listed as 0, and as a target
/// of `kill` that would be our own process group: it is left out.
pub(crate) fn members(directory: &Path) -> io::Result<HashSet<Pid>> {
    let procs = fs::read_to_string(directory.join("cgroup.procs"))?;
    let raw = procs.lines().filter_map(|line| line.parse::<i32>().ok());
    Ok(raw.filter(|&pid| pid > 0).filter_map(Pid::from_raw).collect())
}

/// Calls `done` until it returns true or fails, with growing pauses, at least once. `Ok(false)`: out of time.
fn wait_until(deadline: Duration, mut done: impl FnMut() -> Result<bool, CgroupError>) -> Result<bool, CgroupError> {
    let start = Instant::now();
    let mut pause = MIN_POLL_INTERVAL;
    loop {
        if done()? {
            return Ok(true);
        }
        if start.elapsed() >= deadline {
            return Ok(false);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(MAX_POLL_INTERVAL);
    }
}

fn survivors_error(directory: &Path, waited: Duration) -> Result<(), CgroupError> {
    Err(CgroupError::Survivors {
        path: directory.into(),
        count: members(directory).map_or(0, |members| members.len()),
        waited,
    })
}

fn read_error(directory: &Path, source: io::Error) -> CgroupError {
    CgroupError::Read { path: directory.join("cgroup.procs"), source }
}
