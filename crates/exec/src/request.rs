//! What a caller asks for, and the bounds on it.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::lookup::SkillName;

/// Arguments of one command, program name included.
pub const MAX_ARGUMENTS: usize = 4096;
/// One argument or shell line. The kernel's own limit is 128 KiB with the final NUL.
pub const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;
/// All arguments together.
pub const MAX_ARGUMENTS_BYTES: usize = 1024 * 1024;
/// Standard input.
pub const MAX_STDIN_BYTES: usize = 16 * 1024 * 1024;
/// What is kept of one output stream, at most.
pub const MAX_OUTPUT_BYTES: usize = 64 * 1024 * 1024;
/// The longest a command may run.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time from TERM to KILL.
pub const MAX_GRACE: Duration = Duration::from_secs(60);
/// What is kept of one output stream unless the caller says otherwise.
pub const DEFAULT_OUTPUT_BYTES: usize = 51_200;
/// How long a command may run unless the caller says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// From TERM to KILL unless the caller says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(1);
/// How long descendants may go on writing once the command itself has ended.
pub const DRAIN_LIMIT: Duration = Duration::from_millis(250);
/// Open files of one process, unless the caller says otherwise.
pub const DEFAULT_OPEN_FILES: u64 = 1024;

/// One command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What to execute.
    pub invocation: Invocation,
    /// Absolute, or relative to the executor's default; `None` is that default.
    pub working_directory: Option<PathBuf>,
    /// Variables added for this command; only `SKILL_*` names are accepted.
    pub environment: Vec<(String, String)>,
    /// Fed to the command while its output is read.
    pub stdin: Vec<u8>,
    /// When the whole tree is ended. Counts from the start, feeding standard input included.
    pub timeout: Duration,
    /// From TERM to KILL; zero kills at once.
    pub grace: Duration,
    /// How much of each output stream is kept; the rest is read and thrown away.
    pub output_bytes: usize,
    /// The largest file the command may write.
    pub file_bytes: Option<u64>,
    /// Open files per process.
    pub open_files: u64,
}

/// What to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// A program and its arguments, never seen by a shell. The first is looked up in the executor's
    /// search path, or is itself a path if it holds a slash.
    Argv(Vec<OsString>),
    /// One line for the shell.
    Shell(OsString),
    /// A skill of the executor's skills directory, by its name and by the stricter rules of
    /// [`find_skill`](crate::lookup::find_skill).
    Skill {
        /// Which.
        name: SkillName,
        /// What follows the name in its argument list, never seen by a shell.
        arguments: Vec<OsString>,
    },
}

impl Request {
    /// A program with arguments, and defaults for everything else.
    pub fn argv<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Invocation::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// A shell line, and defaults for everything else.
    pub fn shell(line: impl Into<OsString>) -> Self {
        Self::new(Invocation::Shell(line.into()))
    }

    /// A skill with arguments, and defaults for everything else.
    pub fn skill<S: Into<OsString>>(name: SkillName, arguments: impl IntoIterator<Item = S>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self::new(Invocation::Skill { name, arguments })
    }

    fn new(invocation: Invocation) -> Self {
        Self {
            invocation,
            working_directory: None,
            environment: Vec::new(),
            stdin: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
            grace: DEFAULT_GRACE,
            output_bytes: DEFAULT_OUTPUT_BYTES,
            file_bytes: None,
            open_files: DEFAULT_OPEN_FILES,
        }
    }

    /// Checks every bound and turns the arguments into what the kernel takes.
    pub(crate) fn arguments(&self) -> Result<Vec<CString>, RequestError> {
        let bounded = |field, found: usize, limit: usize| {
            if found > limit {
                return Err(RequestError::TooLarge { field, limit });
            }
            Ok(())
        };
        bounded("stdin", self.stdin.len(), MAX_STDIN_BYTES)?;
        bounded("output bytes", self.output_bytes, MAX_OUTPUT_BYTES)?;
        if self.timeout.is_zero() || self.timeout > MAX_TIMEOUT {
            return Err(RequestError::Timeout);
        }
        if self.grace > MAX_GRACE {
            return Err(RequestError::Grace);
        }
        let count = match &self.invocation {
            Invocation::Argv(argv) => argv.len(),
            Invocation::Shell(_) => 3,
            Invocation::Skill { arguments, .. } => arguments.len() + 1,
        };
        bounded("arguments", count, MAX_ARGUMENTS)?;
        let arguments: Vec<OsString> = match &self.invocation {
            Invocation::Argv(argv) => argv.clone(),
            Invocation::Shell(line) => vec!["sh".into(), "-c".into(), line.clone()],
            Invocation::Skill { name, arguments } => {
                std::iter::once(name.as_str().into()).chain(arguments.iter().cloned()).collect()
            }
        };
        if arguments.first().is_none_or(|program| program.is_empty()) {
            return Err(RequestError::NoProgram);
        }
        let mut total = 0;
        let mut strings = Vec::with_capacity(arguments.len());
        for (index, argument) in arguments.into_iter().enumerate() {
            bounded("bytes of one argument", argument.len(), MAX_ARGUMENT_BYTES)?;
            total += argument.len() + 1;
            bounded("bytes of all arguments", total, MAX_ARGUMENTS_BYTES)?;
            strings.push(CString::new(argument.into_vec()).map_err(|_| RequestError::Nul { index })?);
        }
        Ok(strings)
    }
}

/// A request that is refused before anything happens.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    /// The argument list is empty, or the program's name is.
    #[error("there is no program to run")]
    NoProgram,
    /// An argument cannot be passed on.
    #[error("argument {index} contains a NUL byte")]
    Nul {
        /// Which, counting from 0.
        index: usize,
    },
    /// Something is larger than its bound.
    #[error("{field} exceed the limit of {limit}")]
    TooLarge {
        /// What.
        field: &'static str,
        /// How much is allowed.
        limit: usize,
    },
    /// The timeout is zero or too long.
    #[error("the timeout must be above zero and at most {} seconds", MAX_TIMEOUT.as_secs())]
    Timeout,
    /// The grace period is too long.
    #[error("the grace period must be at most {} seconds", MAX_GRACE.as_secs())]
    Grace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_has_two_sides() {
        let long = "x".repeat(MAX_ARGUMENT_BYTES);
        let ok = Request::argv(["true", &long]);
        assert_eq!(ok.arguments().unwrap().len(), 2);

        let cases = [
            (Request::argv(Vec::<OsString>::new()), RequestError::NoProgram),
            (Request::argv([""]), RequestError::NoProgram),
            (Request::argv(["true", "a\0b"]), RequestError::Nul { index: 1 }),
            (
                Request::argv(["true".to_owned(), format!("{long}x")]),
                RequestError::TooLarge { field: "bytes of one argument", limit: MAX_ARGUMENT_BYTES },
            ),
            (
                Request::argv(vec!["x"; MAX_ARGUMENTS + 1]),
                RequestError::TooLarge { field: "arguments", limit: MAX_ARGUMENTS },
            ),
            (
                Request::skill(SkillName::parse("true").unwrap(), vec!["x"; MAX_ARGUMENTS]),
                RequestError::TooLarge { field: "arguments", limit: MAX_ARGUMENTS },
            ),
            (
                Request::argv(vec![long.clone(); 9]),
                RequestError::TooLarge { field: "bytes of all arguments", limit: MAX_ARGUMENTS_BYTES },
            ),
            (
                Request { stdin: vec![0; MAX_STDIN_BYTES + 1], ..Request::argv(["true"]) },
                RequestError::TooLarge { field: "stdin", limit: MAX_STDIN_BYTES },
            ),
            (Request { timeout: Duration::ZERO, ..Request::argv(["true"]) }, RequestError::Timeout),
            (
                Request { timeout: MAX_TIMEOUT + Duration::from_nanos(1), ..Request::argv(["true"]) },
                RequestError::Timeout,
            ),
            (Request { grace: MAX_GRACE + Duration::from_nanos(1), ..Request::argv(["true"]) }, RequestError::Grace),
        ];
        for (request, error) in cases {
            assert_eq!(request.arguments(), Err(error));
        }
    }
}
