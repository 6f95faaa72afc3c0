//! Kinds of entries, and errors of a volume.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::fs::FileType;
use rustix::io::Errno;

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// A mount point, whatever is mounted there.
    MountPoint,
}

impl fmt::Display for FileKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Link => "a symbolic link",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::MountPoint => "a mount point",
        })
    }
}

impl FileKind {
    pub(super) fn from_mode(mode: u32) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => Self::Device,
            _ => Self::File,
        }
    }
}

/// An error of the volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The IPC directory cannot be opened.
    #[error("cannot open the IPC directory {path}")]
    Open {
        /// The IPC directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// `tools` cannot be created or opened.
    #[error("cannot open {path}/tools")]
    Tools {
        /// The IPC directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// `tools` exists and is not a directory of this volume.
    #[error("{path}/tools must be a directory of the volume itself, and is {kind}")]
    ToolsKind {
        /// The IPC directory.
        path: PathBuf,
        /// The kind of the entry.
        kind: FileKind,
    },
    /// `tools` was removed or replaced by another directory.
    #[error("{path}/tools was removed or replaced while it was in use")]
    Gone {
        /// The IPC directory.
        path: PathBuf,
    },
    /// A file cannot be written, for example because the volume is full or read-only. No part of it is left.
    #[error("cannot write {name}")]
    Write {
        /// The file's final name.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file cannot be removed.
    #[error("cannot remove {name}")]
    Remove {
        /// The file's name.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The metadata of an entry cannot be read.
    #[error("cannot look at {name}")]
    Stat {
        /// The entry's name.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

pub(super) fn stat_error(name: &str, error: Errno) -> VolumeError {
    VolumeError::Stat { name: name.to_owned(), source: error.into() }
}
