//! `skill-sidecar healthcheck`: reports by its exit code whether the sidecar in this container works, for exec probes.
//!
//! A server is asked over HTTP. The executor on a volume is asked with a file, [`probe_file_name`], which its loop
//! removes, also while every slot is busy: a full executor must not be taken for a dead one.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::fs::{AtFlags, Mode, OFlags};
use sympozium_program::Failure;

use crate::arguments::HealthcheckArguments;
use crate::serve;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub fn run(arguments: &HealthcheckArguments) -> Result<(), Failure> {
    let timeout = Duration::from_secs(arguments.timeout);
    let pack = arguments.pack.as_deref().filter(|pack| !pack.is_empty());
    let directory = match (&arguments.ipc_dir, pack) {
        (Some(directory), _) => Some(directory.as_path()),
        (None, Some(_)) => Some(Path::new("/ipc")),
        (None, None) => None,
    };
    match directory {
        Some(directory) => probe_executor(directory, pack, timeout)
            .map_err(|error| Failure::new(error, "look at the log of the container that runs the executor")),
        None => serve::healthcheck(arguments.listen, timeout),
    }
}

/// The file that asks the executor of `pack`. One that was left behind is overwritten by the next probe.
pub fn probe_file_name(pack: Option<&str>) -> String {
    // A pack has a Kubernetes name; any other value must not lead to another directory.
    let word: String = (pack.unwrap_or_default().chars())
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .take(128)
        .collect();
    format!(".healthcheck-{word}")
}

fn probe_executor(directory: &Path, pack: Option<&str>, timeout: Duration) -> anyhow::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let volume = rustix::fs::open(directory, flags, Mode::empty())
        .with_context(|| format!("{} cannot be opened", directory.display()))?;
    let name = probe_file_name(pack);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&volume, &name, flags | OFlags::NONBLOCK, Mode::from_raw_mode(0o660))
        .with_context(|| format!("{} cannot be written to", directory.display()))?;
    let deadline = Instant::now() + timeout;
    loop {
        match rustix::fs::statat(&volume, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(io::Error::from(error).into()),
            Ok(_) if Instant::now() >= deadline => break,
            Ok(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
    // The executor did not remove it, so the probe does.
    let _ = rustix::fs::unlinkat(&volume, &name, AtFlags::empty());
    bail!("no executor answered on {} within {} s", directory.display(), timeout.as_secs());
}
