//! Self-restriction for our own binaries: what a process that reads hostile input gives up first.

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::landlock::{self, View};
use crate::seccomp;

/// What a process keeps.
#[derive(Debug, Clone, Default)]
pub struct Lockdown {
    /// Readable (and executable) paths, with everything below.
    pub readable: Vec<PathBuf>,
    /// Writable paths, with everything below.
    pub writable: Vec<PathBuf>,
}

/// What [`Lockdown::apply`] achieved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockedDown {
    /// The Landlock ABI in force.
    pub landlock_abi: i32,
}

/// Why a process could not restrict itself. It must not go on.
#[derive(Debug, thiserror::Error)]
pub enum LockdownError {
    /// The kernel's Landlock is too old or switched off.
    #[error(
        "this kernel offers Landlock ABI {found}, and self-restriction needs {needed} (Linux 6.12)"
    )]
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
    /// Restricts this process for good: no sockets but Unix, only the given paths and the harmless devices, no
    /// signal and no abstract socket to anybody outside, memory unreadable for others.
    ///
    /// Call it before the first thread is started and before any input is read. An error means that the
    /// process is not restricted as promised, perhaps partly: end it.
    pub fn apply(&self) -> Result<LockedDown, LockdownError> {
        let step = |step| move |source| LockdownError::Step { step, source };
        let threads = std::fs::read_dir("/proc/self/task")
            .map_err(step("count threads"))?
            .count();
        if threads != 1 {
            return Err(LockdownError::Threads(threads));
        }
        let abi = landlock::abi();
        if abi < landlock::ABI_SCOPES {
            return Err(LockdownError::Landlock {
                found: abi,
                needed: landlock::ABI_SCOPES,
            });
        }
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
            .map_err(|error| step("become non-dumpable")(error.into()))?;
        rustix::thread::set_no_new_privs(true)
            .map_err(|error| step("set no_new_privs")(error.into()))?;
        let scopes = landlock::scopes().map_err(step("make Landlock scopes"))?;
        let view = View {
            readable: self.readable.clone(),
            hidden: Vec::new(),
            writable: self.writable.clone(),
        };
        landlock::restrict(Some(&view), None).map_err(step("apply Landlock"))?;
        landlock::enter(&scopes).map_err(step("enter Landlock scopes"))?;
        seccomp::restrict_own_sockets().map_err(step("apply seccomp"))?;
        Ok(LockedDown { landlock_abi: abi })
    }
}
