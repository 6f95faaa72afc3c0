//! Reads one file of a mounted directory: a regular file, bounded, into a buffer that is zeroised.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use zeroize::{Zeroize as _, Zeroizing};

use super::InputError;

/// Reads a whole file of at most `most` bytes.
///
/// Symbolic links are followed: the kubelet presents every file of a volume as one, and a process that can change the
/// directory can change its files as well.
pub fn read(path: &Path, most: usize) -> Result<Zeroizing<Vec<u8>>, InputError> {
    let unreadable = |source| read_error(path, source);
    // Does not block on a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(file.map_err(|error| unreadable(error.into()))?);
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(invalid_content(path, "is not a regular file"));
    }
    let too_long = || InputError::TooLong { path: path.to_owned(), most };
    let expected = usize::try_from(metadata.len()).map_err(|_| too_long())?;
    if expected > most {
        return Err(too_long());
    }
    // The full capacity from the start, and one byte to detect growth: reallocation would leave a copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(expected + 1));
    let limit = expected as u64 + 1;
    (file.take(limit).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() > expected {
        return Err(invalid_content(path, "changed while it was read"));
    }
    Ok(bytes)
}

/// Reads a file as text, without trailing line breaks.
pub fn read_text(path: &Path, most: usize) -> Result<Zeroizing<String>, InputError> {
    let mut bytes = read(path, most)?;
    while let Some(b'\n' | b'\r') = bytes.last() {
        bytes.pop();
    }
    match String::from_utf8(std::mem::take(&mut *bytes)) {
        Ok(text) => Ok(Zeroizing::new(text)),
        Err(error) => {
            error.into_bytes().zeroize();
            Err(invalid_content(path, "is not text in UTF-8"))
        }
    }
}

/// The names in a directory, sorted, without those that the kubelet uses internally (`..data` and the like).
pub fn list_names(directory: &Path, most: usize) -> Result<Vec<String>, InputError> {
    let unreadable = |source| read_error(directory, source);
    let entries = std::fs::read_dir(directory).map_err(unreadable)?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let name = name.to_str();
        let name = name.ok_or_else(|| invalid_content(directory, "has a name in it that is not text"))?;
        if name.starts_with("..") {
            continue;
        }
        if names.len() == most {
            return Err(InputError::TooMany { path: directory.to_owned(), most });
        }
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}

fn read_error(path: &Path, source: io::Error) -> InputError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => InputError::Missing(path),
        _ => InputError::Unreadable { path, source },
    }
}

pub fn invalid_content(path: impl Into<PathBuf>, why: &'static str) -> InputError {
    InputError::Content { path: path.into(), why }
}
