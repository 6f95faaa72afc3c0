//! Files relative to a directory descriptor: no path is resolved twice, no link is followed, no open blocks.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fchmod, fstat, mkdirat, open, openat, renameat, unlinkat};
use rustix::io::Errno;
use sympozium_api::names::Uid;

use super::RecordStoreError;

/// Access for the owner only.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The permission bits of group and others.
const OTHERS_MODE: u32 = 0o077;
/// Flags for every open: it follows no link and does not block.
const OPEN_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The directory of all runs.
#[derive(Debug)]
pub(super) struct RecordsDirectory {
    descriptor: OwnedFd,
}

#[derive(Debug)]
pub(super) struct RunDirectory {
    descriptor: OwnedFd,
    run: String,
}

impl RecordsDirectory {
    pub(super) fn open(path: &Path) -> Result<Self, RecordStoreError> {
        let failed = |error: io::Error| RecordStoreError::Io { path: path.display().to_string(), error };
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(DIRECTORY_MODE).create(path);
        made.map_err(failed)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = open(path, flags, Mode::empty());
        let descriptor = descriptor.map_err(|error| failed(error.into()))?;
        Ok(Self { descriptor })
    }

    /// Opens the directory of a run, if it exists.
    pub(super) fn open_run(&self, uid: &str) -> Result<Option<RunDirectory>, RecordStoreError> {
        // A valid UID is one path component, and never `.` or `..`.
        if Uid::new(uid).check().is_err() {
            return Err(RecordStoreError::Uid(uid.to_owned()));
        }
        let flags = OFlags::DIRECTORY | OPEN_FLAGS;
        let descriptor = match openat(&self.descriptor, uid, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(RecordStoreError::NotPrivate(uid.to_owned()));
            }
            Err(error) => return Err(errno_error(uid, error)),
        };
        let about = fstat(&descriptor).map_err(|error| errno_error(uid, error))?;
        let is_ours = about.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours || about.st_mode & OTHERS_MODE != 0 {
            return Err(RecordStoreError::NotPrivate(uid.to_owned()));
        }
        Ok(Some(RunDirectory { descriptor, run: uid.to_owned() }))
    }

    /// Opens the directory of a run, and creates it if it does not exist.
    pub(super) fn create_run(&self, uid: &str) -> Result<RunDirectory, RecordStoreError> {
        if let Some(directory) = self.open_run(uid)? {
            return Ok(directory);
        }
        let mode = Mode::from_raw_mode(DIRECTORY_MODE);
        let made = mkdirat(&self.descriptor, uid, mode);
        made.map_err(|error| errno_error(uid, error))?;
        let gone = || RecordStoreError::NotPrivate(uid.to_owned());
        self.open_run(uid)?.ok_or_else(gone)
    }
}

impl RunDirectory {
    /// Reads a whole file, if it exists.
    pub(super) fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, RecordStoreError> {
        let flags = OFlags::RDONLY | OPEN_FLAGS;
        let descriptor = match openat(&self.descriptor, name, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.open_error(name, error)),
        };
        let file = self.check_regular(name, descriptor)?;
        let mut bytes = Vec::new();
        let read = file.take(most + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.io_error(name, error))?;
        if bytes.len() as u64 > most {
            return Err(self.changed_error(name));
        }
        Ok(Some(bytes))
    }

    /// Writes after the first `before` bytes of a file, and truncates it after them.
    pub(super) fn append(&self, name: &str, before: u64, bytes: &[u8]) -> Result<File, RecordStoreError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OPEN_FLAGS;
        let mut file = self.create(name, flags)?;
        let length = file.metadata().map(|metadata| metadata.len());
        let length = length.map_err(|error| self.io_error(name, error))?;
        if length < before {
            return Err(self.changed_error(name));
        }
        let written = (|| {
            if length > before {
                file.set_len(before)?;
            }
            file.seek(SeekFrom::Start(before))?;
            file.write_all(bytes)
        })();
        written.map_err(|error| self.io_error(name, error))?;
        Ok(file)
    }

    /// Replaces a file atomically. If `durable` is set, it survives a power failure.
    pub(super) fn replace(&self, name: &str, new: &str, bytes: &[u8], durable: bool) -> Result<(), RecordStoreError> {
        match unlinkat(&self.descriptor, new, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(self.open_error(new, error)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OPEN_FLAGS;
        let mut file = self.create(new, flags)?;
        let written = file.write_all(bytes);
        written.map_err(|error| self.io_error(new, error))?;
        if durable {
            self.sync(&file, new)?;
        }
        renameat(&self.descriptor, new, &self.descriptor, name).map_err(|error| self.open_error(name, error))?;
        if durable {
            let synced = rustix::fs::fsync(&self.descriptor);
            synced.map_err(|error| self.open_error(name, error))?;
        }
        Ok(())
    }

    pub(super) fn sync(&self, file: &File, name: &str) -> Result<(), RecordStoreError> {
        file.sync_data().map_err(|error| self.io_error(name, error))
    }

    pub(super) fn changed_error(&self, name: &str) -> RecordStoreError {
        RecordStoreError::Changed(format!("{}/{name}", self.run))
    }

    fn create(&self, name: &str, flags: OFlags) -> Result<File, RecordStoreError> {
        let mode = Mode::from_raw_mode(FILE_MODE);
        let descriptor = openat(&self.descriptor, name, flags, mode);
        let descriptor = descriptor.map_err(|error| self.open_error(name, error))?;
        // Independent of the umask of this process.
        fchmod(&descriptor, mode).map_err(|error| self.open_error(name, error))?;
        self.check_regular(name, descriptor)
    }

    fn check_regular(&self, name: &str, descriptor: OwnedFd) -> Result<File, RecordStoreError> {
        let file = File::from(descriptor);
        let about = file.metadata().map_err(|error| self.io_error(name, error))?;
        if !about.is_file() {
            return Err(self.not_private_error(name));
        }
        Ok(file)
    }

    fn not_private_error(&self, name: &str) -> RecordStoreError {
        RecordStoreError::NotPrivate(format!("{}/{name}", self.run))
    }

    fn open_error(&self, name: &str, error: Errno) -> RecordStoreError {
        match error {
            // A link, a FIFO without a reader, a directory.
            Errno::LOOP | Errno::NXIO | Errno::ISDIR => self.not_private_error(name),
            _ => self.io_error(name, error.into()),
        }
    }

    fn io_error(&self, name: &str, error: io::Error) -> RecordStoreError {
        RecordStoreError::Io { path: format!("{}/{name}", self.run), error }
    }
}

fn errno_error(path: &str, error: Errno) -> RecordStoreError {
    RecordStoreError::Io { path: path.to_owned(), error: error.into() }
}
