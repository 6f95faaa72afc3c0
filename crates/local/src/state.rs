//! Our directories on this machine: `STATE/runs/UID/…`, `STATE/volumes/…`, `STATE/secrets/…`, `CONFIG/…`.
//!
//! They are for their owner alone. A directory that others can write to is refused: its contents decide what runs may
//! do.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::{FlockOperation, flock};
use sympozium_api::text::quote;

use crate::record::{FORMAT, LocalRunRecord};
use sympozium_runs::HintedError;
use sympozium_runs::RunEnd;

/// Runs that are examined when runs are listed.
pub const MAX_RUNS: usize = 100_000;
/// Bytes of a `run.json`.
const MAX_RECORD_BYTES: u64 = 8 << 20;

/// The state directory of this user.
#[derive(Debug, Clone)]
pub struct StateDirectory {
    root: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

/// Held by the process that realises the run. The kernel releases it, however that process ends.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl StateDirectory {
    /// Opens `$SYMPOZIUM_STATE`, `$XDG_STATE_HOME/sympozium` or `~/.local/state/sympozium`, and creates it if needed.
    /// Fails if others can write to it.
    pub fn open() -> Result<Self, HintedError> {
        let root = base_directory("SYMPOZIUM_STATE", "XDG_STATE_HOME", ".local/state");
        let root = root.and_then(|it| it.context("none of SYMPOZIUM_STATE, XDG_STATE_HOME and HOME is set"));
        let root = root.map_err(|error| HintedError::new(error, "set SYMPOZIUM_STATE to a directory of your own"))?;
        Self::open_at(root)
    }

    /// Opens this directory, like [`Self::open`].
    pub fn open_at(root: PathBuf) -> Result<Self, HintedError> {
        let private = |path: &Path| {
            make_private_directory(path).map_err(|error| {
                HintedError::new(
                    error,
                    "the directory must belong to you with mode 700; or set SYMPOZIUM_STATE to another directory",
                )
            })
        };
        private(&root)?;
        private(&root.join("runs"))?;
        // Sandboxes are built from paths without links: a directory that is later replaced by a link is not followed.
        let real = root.canonicalize().context("cannot resolve the path of the state directory");
        let root = real.map_err(|error| HintedError::new(error, "set SYMPOZIUM_STATE to another directory"))?;
        Ok(Self { root })
    }

    pub fn runs_directory(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// A subdirectory, created if needed. Fails if others can write to it.
    pub fn make_subdirectory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.root.join(name);
        make_private_directory(&path)?;
        Ok(path)
    }

    /// The path of a file or directory, which need not exist.
    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The directory of a run, which need not exist.
    pub fn run_directory(&self, uid: &str) -> RunDirectory {
        RunDirectory { path: self.runs_directory().join(uid) }
    }

    /// Lists every run with a record, newest first. Unreadable records are skipped.
    pub fn list_runs(&self) -> anyhow::Result<Vec<(RunDirectory, LocalRunRecord)>> {
        let runs = self.runs_directory();
        let entries = fs::read_dir(&runs).with_context(|| format!("cannot read {}", runs.display()))?;
        let mut found = Vec::new();
        for entry in entries.take(MAX_RUNS).flatten() {
            let directory = RunDirectory { path: entry.path() };
            if let Ok(record) = directory.read_record() {
                found.push((directory, record));
            }
        }
        found.sort_by(|(_, a), (_, b)| (b.started_ms, &b.uid).cmp(&(a.started_ms, &a.uid)));
        Ok(found)
    }

    /// Finds a run by name, UID, or unique beginning of a UID of at least four characters. Of several runs with one
    /// name, the newest.
    pub fn find_run(&self, wanted: &str) -> Result<(RunDirectory, LocalRunRecord), HintedError> {
        // A UID is the name of a directory.
        if Path::new(wanted).file_name() == Some(wanted.as_ref()) {
            let directory = self.run_directory(wanted);
            if let Ok(record) = directory.read_record()
                && record.uid == wanted
            {
                return Ok((directory, record));
            }
        }
        let hint = "`sympozium runs` lists the runs";
        let mut runs = self.list_runs().map_err(|error| HintedError::new(error, hint))?;
        // UIDs first: a run may be named like the UID of another.
        let by_uid = runs.iter().position(|(_, run)| run.uid == wanted);
        if let Some(at) = by_uid.or_else(|| runs.iter().position(|(_, run)| run.name == wanted)) {
            return Ok(runs.swap_remove(at));
        }
        let mut fitting: Vec<_> =
            (runs.into_iter()).filter(|(_, run)| wanted.len() >= 4 && run.uid.starts_with(wanted)).collect();
        let wanted = quote(wanted);
        match (fitting.pop(), fitting.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(_), false) => Err(HintedError::new(
                anyhow!("several runs have a UID that begins with {wanted}"),
                "use a longer prefix; `sympozium runs` lists the runs",
            )),
            (None, _) => Err(HintedError::new(anyhow!("there is no run {wanted}"), hint)),
        }
    }
}

impl RunDirectory {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or directory of the run.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What is needed only while the run is running.
    pub fn live_directory(&self) -> PathBuf {
        self.join("live")
    }

    pub fn control_socket(&self) -> PathBuf {
        self.join("control.sock")
    }

    /// The logs of the parts, one file each.
    pub fn logs_directory(&self) -> PathBuf {
        self.join("logs")
    }

    /// Creates the directory of a new run, and takes its lock.
    pub fn create(&self) -> anyhow::Result<RunLock> {
        let make = |path: &Path| {
            let made = DirBuilder::new().mode(0o700).create(path);
            made.with_context(|| format!("cannot create {}", path.display()))
        };
        make(&self.path)?;
        // First of all, so that a sweep sees that the run is alive. A process that checks the lock holds it for a
        // moment: wait for that.
        let file = self.open_lock_file()?;
        flock(&file, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", self.path.display()))?;
        make(&self.live_directory())?;
        make(&self.logs_directory())?;
        Ok(RunLock { _file: file })
    }

    fn open_lock_file(&self) -> anyhow::Result<File> {
        let path = self.join("lock");
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nofollow_flag())
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    }

    /// Tries to take the lock. `None` if another process holds it.
    pub fn try_lock(&self) -> anyhow::Result<Option<RunLock>> {
        let file = self.open_lock_file()?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(RunLock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", self.path.display())),
        }
    }

    /// Whether a process realises the run. Decided by the lock, not by the record: a killed process writes nothing.
    pub fn is_running(&self) -> bool {
        let file = OpenOptions::new().read(true).custom_flags(nofollow_flag()).open(self.join("lock"));
        // No lock file: the directory is just being created, or is not that of a run.
        let Ok(file) = file else {
            return false;
        };
        // Shared, so that two concurrent checks do not take each other for the run.
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// Reads the record. Fails if it has the format of another release.
    pub fn read_record(&self) -> anyhow::Result<LocalRunRecord> {
        let path = self.join("run.json");
        let bytes = read_bounded(&path, MAX_RECORD_BYTES)?;
        let record: LocalRunRecord = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is not a valid record of a run", path.display()))?;
        if record.format != FORMAT {
            bail!("{} has the format of another release", path.display());
        }
        Ok(record)
    }

    /// How the run ended, according to record and lock; `None` while it is running.
    pub fn run_end(&self, record: &LocalRunRecord) -> Option<RunEnd> {
        match &record.outcome {
            Some(outcome) => Some(outcome.clone()),
            None if self.is_running() => None,
            // It may have ended between reading the record and checking the lock.
            None => match self.read_record() {
                Ok(LocalRunRecord { outcome: Some(outcome), .. }) => Some(outcome),
                _ => Some(RunEnd::Interrupted),
            },
        }
    }

    /// Replaces the record. On an error the previous one stays.
    pub fn write_record(&self, record: &LocalRunRecord) -> anyhow::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(record).context("cannot serialize the record as JSON")?;
        bytes.push(b'\n');
        replace_file(&self.join("run.json"), &bytes)
    }
}

/// Replaces a file atomically, by rename.
pub fn replace_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let write = || -> io::Result<()> {
        // A killed process may have left one.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a file of at most `most` bytes; a longer one is an error.
pub fn read_bounded(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    use std::io::Read as _;
    let read = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new().read(true).custom_flags(nofollow_flag()).open(path)?;
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

/// The configuration directory: `$SYMPOZIUM_CONFIG`, `$XDG_CONFIG_HOME/sympozium` or `~/.config/sympozium`. It need not
/// exist. Fails if others can write to it.
pub fn config_directory() -> anyhow::Result<Option<PathBuf>> {
    check_trusted(base_directory("SYMPOZIUM_CONFIG", "XDG_CONFIG_HOME", ".config")?)
}

/// The directory with root file systems of images: `$SYMPOZIUM_DATA`, `$XDG_DATA_HOME/sympozium` or
/// `~/.local/share/sympozium`. It need not exist. Fails if others can write to it.
pub fn data_directory() -> anyhow::Result<Option<PathBuf>> {
    check_trusted(base_directory("SYMPOZIUM_DATA", "XDG_DATA_HOME", ".local/share")?)
}

/// Refuses a directory that others can write to: its contents decide what runs may do.
fn check_trusted(path: Option<PathBuf>) -> anyhow::Result<Option<PathBuf>> {
    let Some(path) = path else {
        return Ok(None);
    };
    match fs::metadata(&path) {
        Ok(found) if !is_exclusively_ours(&found) => {
            bail!("{} belongs to another user, or other users can write to it", path.display())
        }
        _ => Ok(Some(path)),
    }
}

/// Whether only this user and root can write to it.
pub fn is_exclusively_ours(found: &fs::Metadata) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    [0, ours].contains(&found.uid()) && found.mode() & 0o022 == 0
}

fn base_directory(own: &str, xdg: &str, home: &str) -> anyhow::Result<Option<PathBuf>> {
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

/// Creates a directory with mode 700, and its parents; or checks that an existing one belongs to this user, and that
/// others cannot write to it.
pub fn make_private_directory(path: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot create {}", path.display()))?;
    let found =
        fs::symlink_metadata(path).with_context(|| format!("cannot read the attributes of {}", path.display()))?;
    let followed = fs::metadata(path).with_context(|| format!("cannot read the attributes of {}", path.display()))?;
    let ours = rustix::process::geteuid().as_raw();
    if !followed.is_dir() || found.uid() != ours || followed.uid() != ours || followed.mode() & 0o022 != 0 {
        bail!("{} belongs to another user, or other users can write to it", path.display());
    }
    Ok(())
}

const fn nofollow_flag() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}
