//! The announcement of an executor's start, and the bridge's key for that start: two files beside `tools`.

use std::ops::RangeInclusive;

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::error::stat_error;
use super::file::kind_for_error;
use super::{Existing, FileKind, Volume, VolumeError};
use crate::auth::{KEY_BYTES, NONCE_BYTES, RequestKey, StartNonce, StartReport};
use crate::beneath;
use crate::names;

/// Limit for an announcement, in bytes; ours has a tenth of it.
pub const MAX_START_BYTES: usize = 4096;
/// Size of the key file: the nonce's digits, a space, the key's digits and a newline.
const KEY_FILE_BYTES: usize = 2 * NONCE_BYTES + 1 + 2 * KEY_BYTES + 1;

/// The announcement on a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announcement {
    /// There is none.
    Absent,
    /// The announced start.
    Start(StartReport),
    /// The entry is not an announcement that our executors write.
    Unusable,
}

impl Volume {
    /// Announces the start of an executor, replacing an earlier announcement.
    ///
    /// # Errors
    /// When it cannot be written, for example because a directory is in its place.
    pub fn announce_start(&self, start: &StartReport) -> Result<(), VolumeError> {
        let content = start.to_line();
        let root = self.root();
        self.write_in(root, names::START, content.as_bytes(), Existing::Replace)?;
        Ok(())
    }

    /// Reads the latest announcement.
    ///
    /// # Errors
    /// When the volume cannot be read.
    pub fn read_start(&self) -> Result<Announcement, VolumeError> {
        Ok(match self.read_root_file(names::START, 1..=MAX_START_BYTES)? {
            RootFile::Missing => Announcement::Absent,
            RootFile::Other => Announcement::Unusable,
            RootFile::Content(content) => match StartReport::parse(&content) {
                Some(start) => Announcement::Start(start),
                None => Announcement::Unusable,
            },
        })
    }

    /// Hands the key to the executor that announced this start. Must be called once.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn hand_over_key(&self, start: &StartNonce, key: &RequestKey) -> Result<(), VolumeError> {
        let mut content = Zeroizing::new(String::with_capacity(KEY_FILE_BYTES));
        content.push_str(&start.to_hex());
        content.push(' ');
        content.push_str(&key.to_hex());
        content.push('\n');
        let root = self.root();
        self.write_in(root, names::KEY, content.as_bytes(), Existing::Replace)?;
        Ok(())
    }

    /// Takes the key for this start from the volume, if it is there. A key for another start is removed and ignored.
    ///
    /// # Errors
    /// When it cannot be read or, after reading, not removed: a command must never find it.
    pub fn take_key(&self, start: &StartNonce) -> Result<Option<RequestKey>, VolumeError> {
        let key = match self.read_root_file(names::KEY, KEY_FILE_BYTES..=KEY_FILE_BYTES)? {
            RootFile::Missing => return Ok(None),
            RootFile::Other => None,
            RootFile::Content(content) => parse_key_file(&content, start),
        };
        match rustix::fs::unlinkat(self.root(), names::KEY, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(key),
            Err(error) => Err(VolumeError::Remove { name: names::KEY.to_owned(), source: error.into() }),
        }
    }

    /// Reads a regular file of a size in `sizes` beside `tools`. Never blocks.
    fn read_root_file(&self, name: &str, sizes: RangeInclusive<usize>) -> Result<RootFile, VolumeError> {
        let root = self.root();
        let opened = beneath::open(self.method(), root, name, OFlags::RDONLY, Mode::empty());
        let file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(RootFile::Missing),
            Err(error) if kind_for_error(error, root, name).is_some() => return Ok(RootFile::Other),
            Err(error) => return Err(stat_error(name, error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|error| stat_error(name, error))?;
        let is_plain = FileKind::from_mode(stat.st_mode) == FileKind::File && stat.st_nlink == 1;
        let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if !is_plain || !sizes.contains(&size) {
            // The file was removed since it was opened.
            return Ok(match stat.st_nlink {
                0 => RootFile::Missing,
                _ => RootFile::Other,
            });
        }
        let mut content = Zeroizing::new(vec![0; size]);
        let mut filled = 0;
        while filled < size {
            let rest = &mut content[filled..];
            match rustix::io::retry_on_intr(|| rustix::io::read(file.as_fd(), &mut *rest)) {
                Ok(0) => return Ok(RootFile::Other),
                Ok(count) => filled += count,
                Err(error) => return Err(stat_error(name, error)),
            }
        }
        Ok(RootFile::Content(content))
    }
}

/// The state of a file beside `tools`.
enum RootFile {
    Missing,
    /// Not a regular file, or not of the expected size.
    Other,
    Content(Zeroizing<Vec<u8>>),
}

fn parse_key_file(content: &[u8], start: &StartNonce) -> Option<RequestKey> {
    let text = std::str::from_utf8(content).ok()?.strip_suffix('\n')?;
    let (nonce, key) = text.split_once(' ')?;
    if StartNonce::from_hex(nonce)? != *start {
        return None;
    }
    RequestKey::from_hex(key)
}
