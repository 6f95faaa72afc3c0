//! Self-restriction of our own binaries: the powers that a process gives up before it reads hostile input.
//!
//! [`Lockdown::apply`] requires all restrictions, [`Lockdown::apply_available`] is for a program that also runs on
//! kernels with fewer features (gVisor has no Landlock). Both return exactly what is live.

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
    /// TCP ports that it may connect to, at any address. If empty, it cannot even create an internet socket.
    pub tcp_connect: Vec<u16>,
}

/// One restriction of a process. In the order in which they are applied, and in which reports list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restriction {
    /// No core file is ever written (`RLIMIT_CORE`).
    CoreDumps,
    /// Its memory is not accessible to other processes of the same user.
    Memory,
    /// No program that it starts gains privileges (`no_new_privs`).
    Privileges,
    /// Only the given paths and the harmless devices (Landlock).
    Paths,
    /// TCP to the given ports only, and no port can be bound (Landlock). Without a port, [`Self::Calls`] is stricter.
    TcpPorts,
    /// No signal and no abstract socket to other processes (Landlock).
    Scopes,
    /// Only the kept kinds of sockets, and none of the calls that widen powers (seccomp).
    Calls,
}

impl Restriction {
    /// All restrictions.
    pub const ALL: [Self; 7] =
        [Self::CoreDumps, Self::Memory, Self::Privileges, Self::Paths, Self::TcpPorts, Self::Scopes, Self::Calls];

    /// The Landlock ABI that it needs; 0 if it does not need Landlock.
    const fn needs_abi(self) -> i32 {
        match self {
            Self::CoreDumps | Self::Memory | Self::Privileges | Self::Calls => 0,
            Self::Paths => landlock::ABI_FILESYSTEM,
            Self::TcpPorts => landlock::ABI_TCP,
            Self::Scopes => landlock::ABI_SCOPES,
        }
    }
}

/// The restrictions of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockdownReport {
    /// The Landlock ABI of the kernel; 0 if there is none.
    pub landlock_abi: i32,
    /// The live restrictions.
    pub live: BTreeSet<Restriction>,
}

impl LockdownReport {
    /// The restrictions that the kernel does not support. Empty after [`Lockdown::apply`].
    pub fn missing(&self) -> BTreeSet<Restriction> {
        let all = Restriction::ALL.into_iter();
        all.filter(|restriction| !self.live.contains(restriction)).collect()
    }
}

/// Why a process could not restrict itself. It must not continue.
#[derive(Debug, thiserror::Error)]
pub enum LockdownError {
    /// The kernel's Landlock is too old or disabled.
    #[error("this kernel offers Landlock ABI {found}, and self-restriction needs {needed} (Linux 6.12)")]
    Landlock {
        /// The ABI of the kernel; 0 if there is none.
        found: i32,
        /// The ABI that is needed.
        needed: i32,
    },
    /// Another thread is running already, and would stay unrestricted.
    #[error("self-restriction must come before the first thread, and this process has {0}")]
    Threads(usize),
    /// A step failed.
    #[error("cannot {step}")]
    Step {
        /// The step.
        step: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl Lockdown {
    /// Restricts this process irrevocably: sockets are Unix, or TCP to the given ports; only the given paths and the
    /// harmless devices; no signal and no abstract socket to other processes; memory not readable by others; no core
    /// files.
    ///
    /// Call it before the first thread is started and before any input is read. A path that does not exist yet stays
    /// inaccessible when it appears, so create directories first. Open sockets stay open.
    ///
    /// TCP ports cannot be bound, but a socket that was never bound can be made to listen at a port that the kernel
    /// chooses: no layer of Linux can prevent that without also refusing it to Unix sockets. A program whose own socket
    /// is open calls [`stop_listening`] to close that gap.
    ///
    /// # Errors
    ///
    /// The process is not restricted as promised, perhaps partly: end it.
    pub fn apply(&self) -> Result<LockdownReport, LockdownError> {
        let abi = landlock::abi();
        if abi < landlock::ABI_SCOPES {
            return Err(LockdownError::Landlock { found: abi, needed: landlock::ABI_SCOPES });
        }
        self.apply_with(abi)
    }

    /// Like [`Self::apply`], with every layer that this kernel has. The others are missing from the result: report that
    /// wherever the run is reported, and refuse to continue where the run's floor needs them.
    ///
    /// # Errors
    ///
    /// A layer that the kernel has, or one that every kernel must have (seccomp), could not be applied: end the
    /// process.
    pub fn apply_available(&self) -> Result<LockdownReport, LockdownError> {
        self.apply_with(landlock::abi())
    }

    fn apply_with(&self, abi: i32) -> Result<LockdownReport, LockdownError> {
        let step = |step| move |source| LockdownError::Step { step, source };
        let threads = count_threads().map_err(step("count threads"))?;
        if threads != 1 {
            return Err(LockdownError::Threads(threads));
        }
        let live = supported_restrictions(abi);
        let no_core = Rlimit { current: Some(0), maximum: Some(0) };
        setrlimit(Resource::Core, no_core).map_err(|error| step("forbid core dumps")(error.into()))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| step("become non-dumpable")(error.into()))?;
        rustix::thread::set_no_new_privs(true).map_err(|error| step("set no_new_privs")(error.into()))?;
        // Created while everything is still permitted, entered after the paths.
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
        // Path rules from before `truncate` was covered are better than none, and do not count as live.
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
        Ok(LockdownReport { landlock_abi: abi, live })
    }
}

/// Restricts this process further, in all of its threads: no socket of any kind can be bound or made to listen any
/// more. Those that listen continue. To be called after the lock-down, once every listener is open.
///
/// # Errors
///
/// Nothing has changed: end the process.
pub fn stop_listening() -> Result<(), LockdownError> {
    seccomp::refuse_listening().map_err(|source| LockdownError::Step { step: "refuse further listeners", source })
}

/// Restricts this process further, in all of its threads: it cannot execute a program any more, not even its own image.
/// For programs that never do; Landlock lets a process execute whatever it may read.
///
/// # Errors
///
/// Nothing has changed: end the process.
pub fn stop_executing() -> Result<(), LockdownError> {
    seccomp::refuse_exec().map_err(|source| LockdownError::Step { step: "refuse to execute programs", source })
}

/// Restricts this process further to these paths, once it knows which ones it needs. Nothing that the lock-down removed
/// comes back. To be called after the lock-down and before the first thread: other threads would stay as they are. It
/// counts threads in `/proc`, so that path must have been kept before.
///
/// Without Landlock in the kernel this has no effect, like the lock-down itself.
///
/// # Errors
///
/// The process is not restricted as promised: end it.
pub fn narrow(readable: &[PathBuf], writable: &[PathBuf]) -> Result<(), LockdownError> {
    let step = |step| move |source| LockdownError::Step { step, source };
    let threads = count_threads().map_err(step("count threads"))?;
    if threads != 1 {
        return Err(LockdownError::Threads(threads));
    }
    if landlock::abi() == 0 {
        return Ok(());
    }
    let view = View { readable: readable.to_vec(), hidden: Vec::new(), writable: writable.to_vec(), terminals: false };
    landlock::restrict(Some(&view), None).map_err(step("apply Landlock"))
}

/// Number of threads of this process. Needs `/proc`, so it must be called before the lock-down.
pub(crate) fn count_threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// The restrictions that a kernel with this Landlock ABI supports.
fn supported_restrictions(abi: i32) -> BTreeSet<Restriction> {
    let all = Restriction::ALL.into_iter();
    all.filter(|restriction| abi >= restriction.needs_abi()).collect()
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
            let locked_down = LockdownReport { landlock_abi: abi, live: supported_restrictions(abi) };
            assert_eq!(locked_down.live, expected, "{abi}");
            assert_eq!(locked_down.missing().len() + locked_down.live.len(), Restriction::ALL.len());
        }
    }
}
