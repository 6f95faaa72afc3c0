//! Errors of a lookup.

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
        /// The name as given.
        name: OsString,
    },
    /// The path is not absolute.
    #[error("{path:?} is not an absolute path")]
    NotAbsolute {
        /// The path as given.
        path: PathBuf,
    },
    /// There is no such program in any directory that was searched.
    #[error("{path:?} was not found")]
    NotFound {
        /// The name or path that was looked for.
        path: PathBuf,
    },
    /// The file, or a component of its path, could not be opened.
    #[error("cannot open {path:?}")]
    Open {
        /// The program.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// It is a directory, FIFO, device or socket.
    #[error("{path:?} is a {kind}, not a regular file")]
    NotAFile {
        /// The program.
        path: PathBuf,
        /// The kind of file.
        kind: &'static str,
    },
    /// The mode bits do not allow the runner to execute it.
    #[error("{path:?} is not executable by uid {uid}")]
    NotExecutable {
        /// The program.
        path: PathBuf,
        /// The runner.
        uid: u32,
    },
    /// It is on a `noexec` mount.
    #[error("{path:?} is on a noexec mount")]
    NoExecMount {
        /// The program.
        path: PathBuf,
    },
    /// It is neither ELF nor a `#!` script.
    #[error("{path:?} has no executable format: neither an elf file nor a #! script")]
    Format {
        /// The program.
        path: PathBuf,
    },
    /// Skills must not change identity.
    #[error("{path:?} has a setuid or setgid bit")]
    SetId {
        /// The program.
        path: PathBuf,
    },
    /// Skills must not be world-writable, wherever they are.
    #[error("{path:?} is world-writable")]
    WorldWritable {
        /// The program.
        path: PathBuf,
    },
    /// The identity that runs commands could put another file in its place.
    #[error("{path:?} cannot be trusted: {what:?} is writable by uid {uid}, which runs commands")]
    Writable {
        /// The program.
        path: PathBuf,
        /// The file, link or directory that is writable, without links.
        what: PathBuf,
        /// The runner.
        uid: u32,
    },
    /// It was found relative to a directory whose own path is unknown.
    #[error("script {path:?} can only be executed by an absolute path")]
    ScriptWithoutPath {
        /// The program.
        path: PathBuf,
    },
    /// It was one file when it was checked and another when it was opened.
    #[error("{path:?} was replaced while it was looked at")]
    Replaced {
        /// The program.
        path: PathBuf,
    },
}

impl LookupError {
    /// Whether `execvp(3)` would continue with the next directory.
    pub(super) fn continues_search(&self) -> bool {
        match self {
            Self::NotAFile { .. } | Self::NotExecutable { .. } | Self::NoExecMount { .. } => true,
            Self::Open { source, .. } => Errno::from_io_error(source) == Some(Errno::ACCESS),
            _ => false,
        }
    }
}
