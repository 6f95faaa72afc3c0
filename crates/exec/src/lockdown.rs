//! Self-restriction for our own binaries: what a process that reads hostile input gives up first.
//!
//! Two ways to ask for it: [`Lockdown::apply`] for whoever must have all of it, [`Lockdown::apply_available`] for a
//! program that also runs where the kernel has less (gVisor has no Landlock). Both say exactly what is live.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use serde::Serialize;

use crate::landlock::{self, TcpPorts, View};
use crate::seccomp;

/// What a process keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lockdown {
    /// Readable (and executable) paths, with everything below.
    pub readable: Vec<PathBuf>,
    /// Writable paths, with everything below.
    pub writable: Vec<PathBuf>,
    /// Ports that it may connect to by TCP, at any address. None: it cannot even make an internet socket.
    pub tcp_connect: Vec<u16>,
}

/// One thing that a process has given up. In the order in which it is done, and in which reports list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restriction {
    /// No core is ever written (`RLIMIT_CORE`).
    CoreDumps,
    /// Its memory is closed to other processes of the same user.
    Memory,
    /// No program that it starts has more rights (`no_new_privs`).
    Privileges,
    /// Only the named paths and the harmless devices (Landlock).
    Paths,
    /// TCP to the named ports only, and no port is bound (Landlock). Where no port is named, [`Self::Calls`] holds more.
    TcpPorts,
    /// No signal and no abstract socket to anybody outside (Landlock).
    Scopes,
    /// Sockets of the kept kinds only, and none of the calls that widen powers (seccomp).
    Calls,
}

impl Restriction {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::CoreDumps, Self::Memory, Self::Privileges, Self::Paths, Self::TcpPorts, Self::Scopes, Self::Calls];

    /// The Landlock ABI that brings it; 0 for what does not need Landlock.
    const fn needs_abi(self) -> i32 {
        match self {
            Self::CoreDumps | Self::Memory | Self::Privileges | Self::Calls => 0,
            Self::Paths => landlock::ABI_FILESYSTEM,
            Self::TcpPorts => landlock::ABI_TCP,
            Self::Scopes => landlock::ABI_SCOPES,
        }
    }
}

/// What a process has given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockedDown {
    /// The Landlock ABI of the kernel; 0 where there is none.
    pub landlock_abi: i32,
    /// What is live.
    pub live: BTreeSet<Restriction>,
}

impl LockedDown {
    /// What the kernel does not have. Empty after [`Lockdown::apply`].
    pub fn missing(&self) -> BTreeSet<Restriction> {
        let all = Restriction::ALL.into_iter();
        all.filter(|it| !self.live.contains(it)).collect()
    }
}

/// Why a process could not restrict itself. It must not go on.
#[derive(Debug, thiserror::Error)]
pub enum LockdownError {
    /// The kernel's Landlock is too old or switched off.
    #[error("this kernel offers Landlock ABI {found}, and self-restriction needs {needed} (Linux 6.12)")]
    Landlock {
        /// What the kernel offers; 0 for none.
        found: i32,
        /// What is needed.
        needed: i32,
    },
    /// Another thread already runs; it would stay unrestricted.
    #[error("self-restriction must come before the first thread, and this process has {0}")]
    Threads(usize),
    /// A step failed.
    #[error("cannot {step}")]
    Step {
        /// Which.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Lockdown {
    /// Restricts this process for good: sockets are Unix, or TCP to the named ports; only the given paths and the
    /// harmless devices; no signal and no abstract socket to anybody outside; memory unreadable for others; no core.
    ///
    /// Call it before the first thread is started and before any input is read. A path that is not there yet stays
    /// refused when it appears, so make directories first. Sockets that are open stay open.
    ///
    /// TCP ports cannot be bound, but a socket that was never bound can be made to listen at a port that the kernel
    /// chooses: no layer of Linux sees that without also refusing it to Unix sockets. A program whose own socket is
    /// open calls [`stop_listening`] to close that gap.
    ///
    /// # Errors
    ///
    /// The process is not restricted as promised, perhaps partly: end it.
    pub fn apply(&self) -> Result<LockedDown, LockdownError> {
        let abi = landlock::abi();
        if abi < landlock::ABI_SCOPES {
            return Err(LockdownError::Landlock { found: abi, needed: landlock::ABI_SCOPES });
        }
        self.apply_with(abi)
    }

    /// As [`Self::apply`], with every layer that this kernel has. What it has not is missing from the answer: say so
    /// wherever the run is reported, and refuse to go on where the run's floor needs it.
    ///
    /// # Errors
    ///
    /// A layer that the kernel has, or one that every kernel must have (seccomp), could not be applied: end the process.
    pub fn apply_available(&self) -> Result<LockedDown, LockdownError> {
        self.apply_with(landlock::abi())
    }

    fn apply_with(&self, abi: i32) -> Result<LockedDown, LockdownError> {
        let step = |step| move |source| LockdownError::Step { step, source };
        let threads = threads().map_err(step("count threads"))?;
        if threads != 1 {
            return Err(LockdownError::Threads(threads));
        }
        let live = live(abi);
        let no_core = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(Resource::Core, no_core).map_err(|error| step("forbid core dumps")(error.into()))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| step("become non-dumpable")(error.into()))?;
        rustix::thread::set_no_new_privs(true).map_err(|error| step("set no_new_privs")(error.into()))?;
        // Made while everything is still possible, entered after the paths.
        let scopes = (live.contains(&Restriction::Scopes))
            .then(landlock::scopes)
            .transpose()
            .map_err(step("make Landlock scopes"))?;
        let view = View {
            readable: self.readable.clone(),
            hidden: Vec::new(),
            writable: self.writable.clone(),
            terminals: false,
        };
        let tcp = TcpPorts { bind: Vec::new(), connect: self.tcp_connect.clone() };
        // Path rules from before `truncate` was covered are better than none, and are not counted as live.
        if abi > 0 {
            let tcp = live.contains(&Restriction::TcpPorts).then_some(&tcp);
            landlock::restrict(Some(&view), tcp).map_err(step("apply Landlock"))?;
        }
        if let Some(scopes) = scopes {
            landlock::enter(&scopes).map_err(step("enter Landlock scopes"))?;
        }
        let sockets =
            if self.tcp_connect.is_empty() { seccomp::OwnSockets::Unix } else { seccomp::OwnSockets::UnixAndTcp };
        // Last: it refuses calls that a layer above may need on a later kernel.
        seccomp::restrict_own_calls(sockets).map_err(step("apply seccomp"))?;
        Ok(LockedDown { landlock_abi: abi, live })
    }
}

/// Restricts this process further, in all of its threads: no socket of any kind is bound or made to listen any more. Those
/// that listen go on. For after the lock-down, once everything that others connect to is open.
///
/// # Errors
///
/// Nothing has changed: end the process.
pub fn stop_listening() -> Result<(), LockdownError> {
    seccomp::refuse_listening().map_err(|source| LockdownError::Step { step: "refuse further listeners", source })
}

/// Restricts this process further, in all of its threads: it starts no program any more, not even one of its own image. For
/// programs that never do; Landlock lets a process execute whatever it may read.
///
/// # Errors
///
/// Nothing has changed: end the process.
pub fn stop_executing() -> Result<(), LockdownError> {
    seccomp::refuse_programs().map_err(|source| LockdownError::Step { step: "refuse to execute programs", source })
}

/// Restricts this process further to these paths, when it has been told which it needs. Nothing that the lock-down took away
/// comes back. For after the lock-down and before the first thread: other threads would stay as they are. To see that there is
/// none it needs `/proc`, so what was kept before must have that.
///
/// Where the kernel has no Landlock, this changes nothing, as the lock-down did not.
///
/// # Errors
///
/// The process is not restricted as promised: end it.
pub fn narrow(readable: &[PathBuf], writable: &[PathBuf]) -> Result<(), LockdownError> {
    let step = |step| move |source| LockdownError::Step { step, source };
    let threads = threads().map_err(step("count threads"))?;
    if threads != 1 {
        return Err(LockdownError::Threads(threads));
    }
    if landlock::abi() == 0 {
        return Ok(());
    }
    let view = View { readable: readable.to_vec(), hidden: Vec::new(), writable: writable.to_vec(), terminals: false };
    landlock::restrict(Some(&view), None).map_err(step("apply Landlock"))
}

/// How many threads this process has. Needs `/proc`, so it is for before the lock-down.
pub(crate) fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// What a kernel with this Landlock can hold.
fn live(abi: i32) -> BTreeSet<Restriction> {
    let all = Restriction::ALL.into_iter();
    all.filter(|it| abi >= it.needs_abi()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_landlock_brings() {
        use Restriction::{Calls, CoreDumps, Memory, Paths, Privileges, Scopes, TcpPorts};
        let always = [CoreDumps, Memory, Privileges, Calls];
        for (abi, more) in [
            (0, &[][..]),
            (2, &[]),
            (3, &[Paths]),
            (4, &[Paths, TcpPorts]),
            (5, &[Paths, TcpPorts]),
            (6, &[Paths, TcpPorts, Scopes]),
            (7, &[Paths, TcpPorts, Scopes]),
        ] {
            let expected: BTreeSet<_> = always.iter().chain(more).copied().collect();
            let locked_down = LockedDown { landlock_abi: abi, live: live(abi) };
            assert_eq!(locked_down.live, expected, "{abi}");
            assert_eq!(locked_down.missing().len() + locked_down.live.len(), Restriction::ALL.len());
        }
    }
}
