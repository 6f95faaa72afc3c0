//! Whether the sidecar of this container works, told by an exit code: for exec probes.
//!
//! A server is asked over HTTP. The executor of a volume is asked by a file, [`ping`], that its loop takes away: it
//! does so while every slot is busy, so that a full executor is not taken for a dead one.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::fs::{AtFlags, Mode, OFlags};
use sympozium_program::Failure;

use crate::arguments::HealthcheckArguments;
use crate::serve;

/// How often the probe looks whether the executor has answered.
const LOOK: Duration = Duration::from_millis(10);

/// Asks whatever runs in this container.
pub fn run(arguments: &HealthcheckArguments) -> Result<(), Failure> {
    let timeout = Duration::from_secs(arguments.timeout);
    let pack = arguments.pack.as_deref().filter(|pack| !pack.is_empty());
    let directory = match (&arguments.ipc_dir, pack) {
        (Some(directory), _) => Some(directory.as_path()),
        (None, Some(_)) => Some(Path::new("/ipc")),
        (None, None) => None,
    };
    match directory {
        Some(directory) => ask(directory, pack, timeout)
            .map_err(|error| Failure::new(error, "look at the log of the container whose executor this is")),
        None => serve::healthcheck(arguments.listen, timeout),
    }
}

/// The file by which the executor of `pack` is asked. One that no executor takes away is overwritten next time.
pub fn ping(pack: Option<&str>) -> String {
    // A pack's name is a Kubernetes name; whatever else there is must not lead elsewhere.
    let word: String = (pack.unwrap_or_default().chars())
        .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' })
        .take(128)
        .collect();
    format!(".healthcheck-{word}")
}

fn ask(directory: &Path, pack: Option<&str>, timeout: Duration) -> anyhow::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let volume = rustix::fs::open(directory, flags, Mode::empty())
        .with_context(|| format!("{} cannot be opened", directory.display()))?;
    let name = ping(pack);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&volume, &name, flags | OFlags::NONBLOCK, Mode::from_raw_mode(0o660))
        .with_context(|| format!("{} cannot be written to", directory.display()))?;
    let deadline = Instant::now() + timeout;
    loop {
        match rustix::fs::statat(&volume, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(io::Error::from(error).into()),
            Ok(_) if Instant::now() >= deadline => break,
            Ok(_) => std::thread::sleep(LOOK),
        }
    }
    // Nobody will; the next probe makes its own.
    let _ = rustix::fs::unlinkat(&volume, &name, AtFlags::empty());
    bail!("no executor answered on {} within {} s", directory.display(), timeout.as_secs());
}
