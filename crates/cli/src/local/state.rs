//! Where everything of ours is on this machine: `STATE/runs/UID/…`, `STATE/volumes/…`, `STATE/secrets/…`, `CONFIG/…`.
//!
//! Directories are for their owner alone. One that others could write to is refused: what is in it decides what runs may do.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::{FlockOperation, flock};

use super::record::{FORMAT, Outcome, RunRecord};
use crate::failure::Failure;

/// Runs that are looked at when they are listed.
pub const MAX_RUNS: usize = 100_000;
/// Bytes of a `run.json`.
const MAX_RECORD_BYTES: u64 = 8 << 20;

/// Our directory in the user's state.
#[derive(Debug, Clone)]
pub struct State {
    root: PathBuf,
}

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

/// Held by whoever runs a run, for as long as it lives. The kernel lets go of it, however that process ends.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl State {
    /// `$SYMPOZIUM_STATE`, `$XDG_STATE_HOME/sympozium` or `~/.local/state/sympozium`; made if it is not there.
    ///
    /// # Errors
    ///
    /// When there is no such place, or others could write to it.
    pub fn open() -> Result<Self, Failure> {
        let root = base("SYMPOZIUM_STATE", "XDG_STATE_HOME", ".local/state");
        let root = root.and_then(|it| it.context("none of SYMPOZIUM_STATE, XDG_STATE_HOME and HOME is set"));
        let root = root.map_err(|error| Failure::new(error, "set SYMPOZIUM_STATE to a directory of your own"))?;
        Self::at(root)
    }

    /// In this directory.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn at(root: PathBuf) -> Result<Self, Failure> {
        let private = |path: &Path| {
            private_directory(path).map_err(|error| {
                Failure::new(error, "it must be yours alone: chmod 700, or set SYMPOZIUM_STATE to another directory")
            })
        };
        private(&root)?;
        private(&root.join("runs"))?;
        // Sandboxes are made from paths without links: what is swapped for one later is not followed.
        let real = root.canonicalize().context("the state directory cannot be found");
        let root = real.map_err(|error| Failure::new(error, "set SYMPOZIUM_STATE to another directory"))?;
        Ok(Self { root })
    }

    /// Where the directories of runs are.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// A directory of ours for something else, made if it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be made, or others could write to it.
    pub fn directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.root.join(name);
        private_directory(&path)?;
        Ok(path)
    }

    /// Where something of ours is, whether it is there or not.
    pub fn at_root(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The directory of a run, whether it is there or not.
    pub fn run(&self, uid: &str) -> RunDirectory {
        RunDirectory { path: self.runs().join(uid) }
    }

    /// Every run that has a record, newest first. What cannot be read is left out.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn list(&self) -> anyhow::Result<Vec<(RunDirectory, RunRecord)>> {
        let runs = self.runs();
        let entries = fs::read_dir(&runs).with_context(|| format!("cannot read {}", runs.display()))?;
        let mut found = Vec::new();
        for entry in entries.take(MAX_RUNS).flatten() {
            let directory = RunDirectory { path: entry.path() };
            if let Ok(record) = directory.record() {
                found.push((directory, record));
            }
        }
        found.sort_by(|(_, a), (_, b)| (b.started_ms, &b.uid).cmp(&(a.started_ms, &a.uid)));
        Ok(found)
    }

    /// The run of this name, UID, or beginning of a UID. Of several of one name, the newest.
    ///
    /// # Errors
    ///
    /// When there is none, or a beginning fits several.
    pub fn find(&self, wanted: &str) -> Result<(RunDirectory, RunRecord), Failure> {
        let hint = "`sympozium runs` lists them";
        let mut runs = self.list().map_err(|error| Failure::new(error, hint))?;
        // A run may be named as another's UID.
        let by_uid = runs.iter().position(|(_, run)| run.uid == wanted);
        if let Some(at) = by_uid.or_else(|| runs.iter().position(|(_, run)| run.name == wanted)) {
            return Ok(runs.swap_remove(at));
        }
        let mut fitting: Vec<_> =
            (runs.into_iter()).filter(|(_, run)| wanted.len() >= 4 && run.uid.starts_with(wanted)).collect();
        let wanted = crate::manifests::problem::quoted(wanted);
        match (fitting.pop(), fitting.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(_), false) => Err(Failure::new(
                anyhow!("several runs have a UID that begins with {wanted}"),
                "write more of it; `sympozium runs` lists them",
            )),
            (None, _) => Err(Failure::new(anyhow!("there is no run {wanted}"), hint)),
        }
    }
}

impl RunDirectory {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or directory in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What is needed only while the run lasts.
    pub fn live(&self) -> PathBuf {
        self.at("live")
    }

    /// The socket for approvals and for following.
    pub fn control(&self) -> PathBuf {
        self.at("control.sock")
    }

    /// What the parts log, a file each.
    pub fn logs(&self) -> PathBuf {
        self.at("logs")
    }

    /// Makes it, for a run that is new.
    ///
    /// # Errors
    ///
    /// When it cannot be made, or is there.
    pub fn create(&self) -> anyhow::Result<RunLock> {
        let make = |path: &Path| {
            let made = DirBuilder::new().mode(0o700).create(path);
            made.with_context(|| format!("cannot make {}", path.display()))
        };
        make(&self.path)?;
        // First of all, so that whoever clears up after the dead knows that this one lives. Somebody may be looking at it
        // for a moment: that is waited for.
        let file = self.lock_file()?;
        flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", self.path.display()))?;
        make(&self.live())?;
        make(&self.logs())?;
        Ok(RunLock { _file: file })
    }

    fn lock_file(&self) -> anyhow::Result<File> {
        let path = self.at("lock");
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc_nofollow())
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    }

    /// The lock, if nobody holds it.
    ///
    /// # Errors
    ///
    /// When its file cannot be used.
    pub fn lock(&self) -> anyhow::Result<Option<RunLock>> {
        let file = self.lock_file()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(RunLock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", self.path.display())),
        }
    }

    /// Whether somebody runs it. By the lock, not by what is written: a process that was killed writes nothing.
    pub fn is_alive(&self) -> bool {
        let file = OpenOptions::new().read(true).custom_flags(libc_nofollow()).open(self.at("lock"));
        // No lock file: either it is being made, or it is no run.
        let Ok(file) = file else {
            return false;
        };
        // Shared: of two who look at the same time, neither takes the other for the run.
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// What is written about it.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is of another release.
    pub fn record(&self) -> anyhow::Result<RunRecord> {
        let path = self.at("run.json");
        let bytes = read_bounded(&path, MAX_RECORD_BYTES)?;
        let record: RunRecord =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is not what we wrote", path.display()))?;
        if record.format != FORMAT {
            bail!("{} is of another release", path.display());
        }
        Ok(record)
    }

    /// What came of it, told by record and lock together; nothing while it goes on.
    pub fn outcome(&self, record: &RunRecord) -> Option<Outcome> {
        match &record.outcome {
            Some(outcome) => Some(outcome.clone()),
            None if self.is_alive() => None,
            // It may have ended between the two looks.
            None => match self.record() {
                Ok(RunRecord { outcome: Some(outcome), .. }) => Some(outcome),
                _ => Some(Outcome::Interrupted),
            },
        }
    }

    /// Replaces what is written about it.
    ///
    /// # Errors
    ///
    /// When it cannot be written; what was written before stays.
    pub fn write(&self, record: &RunRecord) -> anyhow::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(record).context("the record has no JSON")?;
        bytes.push(b'\n');
        replace(&self.at("run.json"), &bytes)
    }
}

/// Puts a file in the place of another, whole or not at all.
///
/// # Errors
///
/// When it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let write = || -> io::Result<()> {
        // Somebody who was killed may have left one.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A file that is at most so long.
///
/// # Errors
///
/// When it cannot be read, or is longer.
pub fn read_bounded(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    use std::io::Read as _;
    let read = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new().read(true).custom_flags(libc_nofollow()).open(path)?;
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() as u64 > most {
        bail!("{} has more than {most} bytes", path.display());
    }
    Ok(bytes)
}

/// A directory of the user's configuration: `$SYMPOZIUM_CONFIG`, `$XDG_CONFIG_HOME/sympozium` or `~/.config/sympozium`. It
/// need not be there.
///
/// # Errors
///
/// When the environment does not say where.
pub fn configuration() -> anyhow::Result<Option<PathBuf>> {
    trusted(base("SYMPOZIUM_CONFIG", "XDG_CONFIG_HOME", ".config")?)
}

/// Where the user keeps root directories for images: `$SYMPOZIUM_DATA`, `$XDG_DATA_HOME/sympozium` or
/// `~/.local/share/sympozium`.
///
/// # Errors
///
/// When the environment does not say where.
pub fn data() -> anyhow::Result<Option<PathBuf>> {
    trusted(base("SYMPOZIUM_DATA", "XDG_DATA_HOME", ".local/share")?)
}

/// A directory whose contents decide what runs may do: refused when others may write to it.
fn trusted(path: Option<PathBuf>) -> anyhow::Result<Option<PathBuf>> {
    let Some(path) = path else {
        return Ok(None);
    };
    match fs::metadata(&path) {
        Ok(found) if !is_only_ours(&found) => {
            bail!("{} belongs to somebody else, or others may write to it", path.display())
        }
        _ => Ok(Some(path)),
    }
}

/// Whether nobody but this user and root may change it.
pub fn is_only_ours(found: &fs::Metadata) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    [0, ours].contains(&found.uid()) && found.mode() & 0o022 == 0
}

fn base(own: &str, xdg: &str, home: &str) -> anyhow::Result<Option<PathBuf>> {
    let variable = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty());
    let path = if let Some(own) = variable(own) {
        PathBuf::from(own)
    } else if let Some(xdg) = variable(xdg) {
        PathBuf::from(xdg).join("sympozium")
    } else if let Some(of_user) = variable("HOME") {
        PathBuf::from(of_user).join(home).join("sympozium")
    } else {
        return Ok(None);
    };
    if !path.is_absolute() {
        bail!("{} is not an absolute path", path.display());
    }
    Ok(Some(path))
}

/// Makes a directory for its owner alone, with those above it, or sees that it is one.
///
/// # Errors
///
/// When it cannot be made, belongs to somebody else, or others may write to it.
pub fn private_directory(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot make {}", path.display()))?;
    let found = fs::symlink_metadata(path).with_context(|| format!("cannot see {}", path.display()))?;
    let followed = fs::metadata(path).with_context(|| format!("cannot see {}", path.display()))?;
    let ours = rustix::process::geteuid().as_raw();
    if !followed.is_dir() || found.uid() != ours || followed.uid() != ours || followed.mode() & 0o022 != 0 {
        bail!("{} belongs to somebody else, or others may write to it", path.display());
    }
    Ok(())
}

const fn libc_nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}
