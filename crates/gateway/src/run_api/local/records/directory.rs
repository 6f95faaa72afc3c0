//! Files relative to a directory descriptor: no path is resolved twice, no link is followed, no open blocks.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fchmod, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;
use sympozium_api::names::Uid;

use super::RecordsError;

/// Access for the owner only.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The permission bits of group and others.
const OTHERS: u32 = 0o077;
/// Flags for every open: it follows no link and does not block.
const NEVER_WAIT: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The directory of all runs.
#[derive(Debug)]
pub(super) struct Directory {
    descriptor: OwnedFd,
}

/// The directory of one run.
#[derive(Debug)]
pub(super) struct RunDirectory {
    descriptor: OwnedFd,
    run: String,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, RecordsError> {
        let failed = |error: io::Error| RecordsError::Io { path: path.display().to_string(), error };
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(DIRECTORY_MODE).create(path);
        made.map_err(failed)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = open(path, flags, Mode::empty());
        let descriptor = descriptor.map_err(|error| failed(error.into()))?;
        Ok(Self { descriptor })
    }

    /// Opens the directory of a run, if it exists.
    pub(super) fn run(&self, uid: &str) -> Result<Option<RunDirectory>, RecordsError> {
        // A valid UID is one path component, and never `.` or `..`.
        if Uid::new(uid).check().is_err() {
            return Err(RecordsError::Uid(uid.to_owned()));
        }
        let flags = OFlags::DIRECTORY | NEVER_WAIT;
        let descriptor = match openat(&self.descriptor, uid, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(RecordsError::NotOurs(uid.to_owned()));
            }
            Err(error) => return Err(failed(uid, error)),
        };
        let about = fstat(&descriptor).map_err(|error| failed(uid, error))?;
        let is_ours = about.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours || about.st_mode & OTHERS != 0 {
            return Err(RecordsError::NotOurs(uid.to_owned()));
        }
        Ok(Some(RunDirectory { descriptor, run: uid.to_owned() }))
    }

    /// Opens the directory of a run, and creates it if it does not exist.
    pub(super) fn make_run(&self, uid: &str) -> Result<RunDirectory, RecordsError> {
        if let Some(directory) = self.run(uid)? {
            return Ok(directory);
        }
        let mode = Mode::from_raw_mode(DIRECTORY_MODE);
        let made = mkdirat(&self.descriptor, uid, mode);
        made.map_err(|error| failed(uid, error))?;
        let gone = || RecordsError::NotOurs(uid.to_owned());
        self.run(uid)?.ok_or_else(gone)
    }
}

impl RunDirectory {
    /// Reads a whole file, if it exists.
    pub(super) fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, RecordsError> {
        let flags = OFlags::RDONLY | NEVER_WAIT;
        let descriptor = match openat(&self.descriptor, name, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.not_opened(name, error)),
        };
        let file = self.regular(name, descriptor)?;
        let mut bytes = Vec::new();
        let read = file.take(most + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.failed(name, error))?;
        if bytes.len() as u64 > most {
            return Err(self.changed(name));
        }
        Ok(Some(bytes))
    }

    /// Writes after the first `before` bytes of a file, and truncates it after them.
    pub(super) fn append(&self, name: &str, before: u64, bytes: &[u8]) -> Result<File, RecordsError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | NEVER_WAIT;
        let mut file = self.create(name, flags)?;
        let length = file.metadata().map(|it| it.len());
        let length = length.map_err(|error| self.failed(name, error))?;
        if length < before {
            return Err(self.changed(name));
        }
        let written = (|| {
            if length > before {
                file.set_len(before)?;
            }
            file.seek(SeekFrom::Start(before))?;
            file.write_all(bytes)
        })();
        written.map_err(|error| self.failed(name, error))?;
        Ok(file)
    }

    /// Replaces a file atomically. If `durable` is set, it survives a power failure.
    pub(super) fn replace(&self, name: &str, new: &str, bytes: &[u8], durable: bool) -> Result<(), RecordsError> {
        match unlinkat(&self.descriptor, new, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(self.not_opened(new, error)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NEVER_WAIT;
        let mut file = self.create(new, flags)?;
        let written = file.write_all(bytes);
        written.map_err(|error| self.failed(new, error))?;
        if durable {
            self.sync(&file, new)?;
        }
        renameat(&self.descriptor, new, &self.descriptor, name).map_err(|error| self.not_opened(name, error))?;
        if durable {
            let synced = rustix::fs::fsync(&self.descriptor);
            synced.map_err(|error| self.not_opened(name, error))?;
        }
        Ok(())
    }

    pub(super) fn sync(&self, file: &File, name: &str) -> Result<(), RecordsError> {
        file.sync_data().map_err(|error| self.failed(name, error))
    }

    pub(super) fn changed(&self, name: &str) -> RecordsError {
        RecordsError::Changed(format!("{}/{name}", self.run))
    }

    fn create(&self, name: &str, flags: OFlags) -> Result<File, RecordsError> {
        let mode = Mode::from_raw_mode(FILE_MODE);
        let descriptor = openat(&self.descriptor, name, flags, mode);
        let descriptor = descriptor.map_err(|error| self.not_opened(name, error))?;
        // Independent of the umask of this process.
        fchmod(&descriptor, mode).map_err(|error| self.not_opened(name, error))?;
        self.regular(name, descriptor)
    }

    fn regular(&self, name: &str, descriptor: OwnedFd) -> Result<File, RecordsError> {
        let file = File::from(descriptor);
        let about = file.metadata().map_err(|error| self.failed(name, error))?;
        if !about.is_file() {
            return Err(self.not_ours(name));
        }
        Ok(file)
    }

    fn not_ours(&self, name: &str) -> RecordsError {
        RecordsError::NotOurs(format!("{}/{name}", self.run))
    }

    fn not_opened(&self, name: &str, error: Errno) -> RecordsError {
        match error {
            // A link, a FIFO without a reader, a directory.
            Errno::LOOP | Errno::NXIO | Errno::ISDIR => self.not_ours(name),
            _ => self.failed(name, error.into()),
        }
    }

    fn failed(&self, name: &str, error: io::Error) -> RecordsError {
        RecordsError::Io { path: format!("{}/{name}", self.run), error }
    }
}

fn failed(path: &str, error: Errno) -> RecordsError {
    RecordsError::Io { path: path.to_owned(), error: error.into() }
}
