//! Why a lookup refuses.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why there is no program to execute.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The name is empty, `.` or `..`, or contains a slash or a NUL.
    #[error("program name {name:?} is not one path component")]
    Name {
        /// As given.
        name: OsString,
    },
    /// A path that must start at the root does not.
    #[error("{path:?} is not an absolute path")]
    NotAbsolute {
        /// As given.
        path: PathBuf,
    },
    /// Nothing of that name in any place searched.
    #[error("{path:?} was not found")]
    NotFound {
        /// The name or path looked for.
        path: PathBuf,
    },
    /// The file, or something on the way to it, could not be opened.
    #[error("cannot open {path:?}")]
    Open {
        /// The program.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A directory, FIFO, device or socket.
    #[error("{path:?} is a {kind}, not a regular file")]
    NotAFile {
        /// The program.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The mode bits give the runner no permission to execute it.
    #[error("{path:?} is not executable by uid {uid}")]
    NotExecutable {
        /// The program.
        path: PathBuf,
        /// Who would have run it.
        uid: u32,
    },
    /// It lies on a mount that executes nothing.
    #[error("{path:?} is on a noexec mount")]
    NoExecMount {
        /// The program.
        path: PathBuf,
    },
    /// Neither ELF nor `#!`.
    #[error("{path:?} has no executable format: neither an elf file nor a #! script")]
    Format {
        /// The program.
        path: PathBuf,
    },
    /// Skills may not change identity.
    #[error("{path:?} has a setuid or setgid bit")]
    SetId {
        /// The program.
        path: PathBuf,
    },
    /// Skills may not be world-writable, wherever they are.
    #[error("{path:?} is world-writable")]
    WorldWritable {
        /// The program.
        path: PathBuf,
    },
    /// Whoever runs commands could put another file in its place.
    #[error("{path:?} cannot be trusted: {what:?} is writable by uid {uid}, which runs commands")]
    Writable {
        /// The program.
        path: PathBuf,
        /// The file, link or directory on the way, without links.
        what: PathBuf,
        /// Who could write it.
        uid: u32,
    },
    /// Found relative to a directory whose own path is unknown.
    #[error("script {path:?} can only be executed by an absolute path")]
    ScriptWithoutPath {
        /// The program.
        path: PathBuf,
    },
    /// It was one file when checked and another when opened.
    #[error("{path:?} was replaced while it was looked at")]
    Replaced {
        /// The program.
        path: PathBuf,
    },
}

impl LookupError {
    /// Whether `execvp(3)` would look in the next directory.
    pub(super) fn lets_the_search_go_on(&self) -> bool {
        match self {
            Self::NotAFile { .. } | Self::NotExecutable { .. } | Self::NoExecMount { .. } => true,
            Self::Open { source, .. } => Errno::from_io_error(source) == Some(Errno::ACCESS),
            _ => false,
        }
    }
}
