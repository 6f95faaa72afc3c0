//! The announcement of an executor's start, and the bridge's key for that start: two files beside `tools`.

use std::ops::RangeInclusive;

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::error::look_error;
use super::file::kind_behind;
use super::{Existing, FileKind, Volume, VolumeError};
use crate::auth::{KEY_BYTES, NONCE_BYTES, RequestKey, StartNonce, StartReport};
use crate::beneath;
use crate::names;

/// Limit for an announcement, in bytes; ours has a tenth of it.
pub const MAX_START_BYTES: usize = 4096;
/// Size of the key file: the nonce's digits, a space, the key's digits and a newline.
const HANDED_BYTES: usize = 2 * NONCE_BYTES + 1 + 2 * KEY_BYTES + 1;

/// The announcement on a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announced {
    /// There is none.
    Nothing,
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
    pub fn announced_start(&self) -> Result<Announced, VolumeError> {
        Ok(match self.read_beside(names::START, 1..=MAX_START_BYTES)? {
            Beside::Missing => Announced::Nothing,
            Beside::Other => Announced::Unusable,
            Beside::Content(content) => match StartReport::parse(&content) {
                Some(start) => Announced::Start(start),
                None => Announced::Unusable,
            },
        })
    }

    /// Hands the key to the executor that announced this start. Must be called once.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn hand_key(&self, start: &StartNonce, key: &RequestKey) -> Result<(), VolumeError> {
        let mut content = Zeroizing::new(String::with_capacity(HANDED_BYTES));
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
        let key = match self.read_beside(names::KEY, HANDED_BYTES..=HANDED_BYTES)? {
            Beside::Missing => return Ok(None),
            Beside::Other => None,
            Beside::Content(content) => parse_handed(&content, start),
        };
        match rustix::fs::unlinkat(self.root(), names::KEY, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(key),
            Err(error) => Err(VolumeError::Remove { name: names::KEY.to_owned(), source: error.into() }),
        }
    }

    /// Reads a regular file of a size in `sizes` beside `tools`. Never blocks.
    fn read_beside(&self, name: &str, sizes: RangeInclusive<usize>) -> Result<Beside, VolumeError> {
        let root = self.root();
        let opened = beneath::open(self.method(), root, name, OFlags::RDONLY, Mode::empty());
        let file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Beside::Missing),
            Err(error) if kind_behind(error, root, name).is_some() => return Ok(Beside::Other),
            Err(error) => return Err(look_error(name, error)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|error| look_error(name, error))?;
        let is_plain = FileKind::of(stat.st_mode) == FileKind::File && stat.st_nlink == 1;
        let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if !is_plain || !sizes.contains(&size) {
            // The file was removed since it was opened.
            return Ok(match stat.st_nlink {
                0 => Beside::Missing,
                _ => Beside::Other,
            });
        }
        let mut content = Zeroizing::new(vec![0; size]);
        let mut filled = 0;
        while filled < size {
            let rest = &mut content[filled..];
            match rustix::io::retry_on_intr(|| rustix::io::read(file.as_fd(), &mut *rest)) {
                Ok(0) => return Ok(Beside::Other),
                Ok(count) => filled += count,
                Err(error) => return Err(look_error(name, error)),
            }
        }
        Ok(Beside::Content(content))
    }
}

/// The state of a file beside `tools`.
enum Beside {
    Missing,
    /// Not a regular file, or not of the expected size.
    Other,
    Content(Zeroizing<Vec<u8>>),
}

fn parse_handed(content: &[u8], start: &StartNonce) -> Option<RequestKey> {
    let text = std::str::from_utf8(content).ok()?.strip_suffix('\n')?;
    let (nonce, key) = text.split_once(' ')?;
    if StartNonce::from_hex(nonce)? != *start {
        return None;
    }
    RequestKey::from_hex(key)
}
