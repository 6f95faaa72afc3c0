//! Resource limits of one sandbox, enforced by the kernel's control groups, v2 or v1.
//!
//! A [`Cgroup`] is one group of processes with one set of limits, whatever the hierarchies are: one directory in the v2
//! hierarchy, or one per v1 controller, or both. A limit that cannot be applied is not an error here but is reported,
//! with the reason: the isolation floor decides whether a run may continue without it.
//!
//! Invariant: only directories whose names show that we created them are ever removed, and only processes listed in
//! them are ever killed.

mod create;
pub(crate) mod hierarchies;
pub(crate) mod owner;
pub(crate) mod teardown;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::guarantee::Layer;
use create::CreatedGroup;
use hierarchies::Controller;
pub use hierarchies::{Hierarchies, Version};
use owner::Owner;
use teardown::{DROP_TIMEOUT, END_TIMEOUT};

/// Limits of one sandbox. `None`: no limit of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Memory including swap, in bytes. The kernel rounds down to whole pages.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// CPU in thousandths of a core. Raised to 10, the least that the kernel can enforce.
    pub cpu_millis: Option<u32>,
}

impl Limits {
    fn value(&self, controller: Controller) -> Option<u64> {
        match controller {
            Controller::Memory => self.memory_bytes,
            Controller::Pids => self.pids.map(u64::from),
            Controller::Cpu => self.cpu_millis.map(u64::from),
        }
    }
}

/// Why a cgroup could not be created, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A limit of zero would let nothing run.
    #[error("the limit for {layer} is zero")]
    ZeroLimit {
        /// The limit's layer.
        layer: Layer,
    },
    /// A file about our own cgroup could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A process could not be moved into the group.
    #[error("cannot add process {pid} to {}", path.display())]
    Add {
        /// The process.
        pid: i32,
        /// The `cgroup.procs` file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The processes could not be killed.
    #[error("cannot kill the processes in {}", path.display())]
    Kill {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Killed processes did not end.
    #[error("{count} processes in {} outlived SIGKILL by {waited:?}", path.display())]
    Survivors {
        /// The directory.
        path: PathBuf,
        /// Number of processes that are left.
        count: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// The directory could not be removed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The control group of one sandbox. Dropping it kills its processes and removes it, as far as possible;
/// [`Cgroup::remove`] reports whether that succeeded.
#[derive(Debug)]
pub struct Cgroup {
    directories: Vec<PathBuf>,
    v2: Option<PathBuf>,
    limit_directories: BTreeMap<Controller, PathBuf>,
    pids: Option<u32>,
    not_applied: Vec<(Layer, String)>,
    creator_pid: u32,
}

impl Cgroup {
    /// Creates a group with as many of `limits` as this machine allows.
    ///
    /// # Guarantees
    /// Every requested limit is either in the returned map, with a detail for the isolation report, or in
    /// [`Cgroup::not_applied`], with the reason.
    ///
    /// # The caller's duties
    /// Call [`Cgroup::remove`] once the processes have ended, and [`sweep_stale`] at start, for groups that an earlier
    /// process could not remove because it was killed. On v2 the group is usually a sibling of the caller's own cgroup,
    /// not a child: limits of that one do not apply to it.
    ///
    /// # Errors
    /// A limit of zero, or an unreadable `/proc`.
    pub fn create(limits: &Limits, name_hint: &str) -> Result<(Self, BTreeMap<Layer, String>), CgroupError> {
        Self::create_in(&Hierarchies::read()?, limits, name_hint, &|_| ())
    }

    fn create_in(
        layout: &Hierarchies,
        limits: &Limits,
        name_hint: &str,
        made: &dyn Fn(&Path),
    ) -> Result<(Self, BTreeMap<Layer, String>), CgroupError> {
        for controller in Controller::ALL {
            if limits.value(controller) == Some(0) {
                let layer = controller.layer();
                return Err(CgroupError::ZeroLimit { layer });
            }
        }
        let name = Owner::current()?.new_name(name_hint);
        let CreatedGroup { directories, v2, limit_directories: limited, applied, not_applied } =
            create::create_group(layout, limits, &name, made);
        let cgroup = Self {
            directories,
            v2,
            limit_directories: limited,
            pids: limits.pids,
            not_applied,
            creator_pid: std::process::id(),
        };
        Ok((cgroup, applied))
    }

    /// The requested limits that are not live, each with the reason.
    pub fn not_applied(&self) -> &[(Layer, String)] {
        &self.not_applied
    }

    /// Whether there is any directory at all. Without one, `add` and `kill` have no effect.
    pub fn is_live(&self) -> bool {
        !self.directories.is_empty()
    }

    /// The directory in the v2 hierarchy, for `CLONE_INTO_CGROUP`.
    pub fn v2_directory(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    /// Moves a process into the group; processes that it starts later are in it too, those that it has started already
    /// are not.
    pub fn add(&self, pid: Pid) -> Result<(), CgroupError> {
        let pid = pid.as_raw_nonzero().get();
        for directory in &self.directories {
            create::write_control_file(directory, PROCS, &pid.to_string()).map_err(|source| {
                let path = directory.join(PROCS);
                CgroupError::Add { pid, path, source }
            })?;
        }
        Ok(())
    }

    /// Opens every `cgroup.procs` for writing, for a helper that moves itself into the group by writing `0` to each of
    /// them and cannot open them by path any more.
    pub fn open_procs_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let open = |directory: &PathBuf| {
            let path = directory.join(PROCS);
            match std::fs::OpenOptions::new().write(true).open(&path) {
                Ok(file) => Ok(file.into()),
                Err(source) => Err(CgroupError::Read { path, source }),
            }
        };
        self.directories.iter().map(open).collect()
    }

    /// Number of processes of this group that the kernel has killed for lack of memory. Zero without a live memory
    /// limit.
    pub fn oom_kills(&self) -> u64 {
        let Some(directory) = self.limit_directories.get(&Controller::Memory) else {
            return 0;
        };
        let file = if self.v2.as_ref() == Some(directory) { "memory.events" } else { "memory.oom_control" };
        let text = std::fs::read_to_string(directory.join(file)).unwrap_or_default();
        parse_oom_kills(&text)
    }

    /// Kills every process in the group, and waits until none is listed any more. The group can be used again.
    ///
    /// # Errors
    /// [`CgroupError::Survivors`] when some are still there after two seconds.
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.kill_within(END_TIMEOUT)
    }

    fn kill_within(&self, deadline: Duration) -> Result<(), CgroupError> {
        if let Some(v2) = &self.v2
            && teardown::kill_by_file(v2)?
        {
            return teardown::wait_empty(v2, deadline);
        }
        let Some(directory) = self.directories.first() else {
            return Ok(());
        };
        // With a limit of zero processes, nothing can fork while the list is processed.
        let pids = self.limit_directories.get(&Controller::Pids).zip(self.pids);
        if let Some((limited, _)) = pids {
            let _ = create::write_control_file(limited, "pids.max", "0");
        }
        let killed = teardown::kill_one_by_one(directory, deadline);
        if let Some((limited, value)) = pids {
            create::write_control_file(limited, "pids.max", &value.to_string()).map_err(|source| {
                let path = limited.clone();
                CgroupError::Kill { path, source }
            })?;
        }
        killed
    }

    /// Removes the group. Waits for processes that are exiting; fails if others are left.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.remove_within(END_TIMEOUT)
    }

    /// Tries every directory, and returns the first error.
    fn remove_within(&mut self, deadline: Duration) -> Result<(), CgroupError> {
        let mut outcome = Ok(());
        self.directories.retain(|directory| match teardown::remove(directory, deadline) {
            Ok(()) => false,
            Err(error) => {
                if outcome.is_ok() {
                    outcome = Err(error);
                }
                true
            }
        });
        outcome
    }
}

const PROCS: &str = "cgroup.procs";

/// The count in `memory.events` (v2) or `memory.oom_control` (v1); both have one name and one number per line.
pub(crate) fn parse_oom_kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A fork of the owner has a copy of this value, but must not end the sandbox.
        if self.directories.is_empty() || std::process::id() != self.creator_pid {
            return;
        }
        let _ = self.kill_within(DROP_TIMEOUT);
        let _ = self.remove_within(DROP_TIMEOUT);
    }
}

/// Removes empty groups that an owner left behind because it was killed; returns the number of removed directories.
/// Groups of living owners, and directories of other programs, are left alone.
pub fn sweep_stale() -> Result<usize, CgroupError> {
    Ok(owner::sweep(&Hierarchies::read()?, Owner::current()?))
}

/// The existing groups of this process, wherever they can be: beside and below its own cgroup and its ancestors.
pub fn list_own() -> Result<Vec<PathBuf>, CgroupError> {
    let (layout, owner) = (Hierarchies::read()?, Owner::current()?);
    let hierarchies = layout.v1.values().chain(&layout.v2);
    let mut found = Vec::new();
    for directory in hierarchies.flat_map(hierarchies::Hierarchy::own_and_ancestors) {
        let Ok(entries) = std::fs::read_dir(directory) else {
            continue;
        };
        let ours = entries.flatten().filter(|entry| {
            let name = entry.file_name();
            name.to_str().and_then(Owner::from_name) == Some(owner)
        });
        found.extend(ours.map(|entry| entry.path()));
    }
    found.sort();
    found.dedup();
    Ok(found)
}
