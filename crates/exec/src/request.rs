//! The request to run a command, and its limits.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::lookup::SkillName;

/// Limit for the arguments of one command, including the program name.
pub const MAX_ARGUMENTS: usize = 4096;
/// Limit for one argument or shell line, in bytes. The kernel's own limit is 128 KiB with the final NUL.
pub const MAX_ARGUMENT_BYTES: usize = 128 * 1024 - 1;
/// Limit for all arguments together, in bytes.
pub const MAX_ARGUMENTS_BYTES: usize = 1024 * 1024;
/// Limit for standard input, in bytes.
pub const MAX_STDIN_BYTES: usize = 16 * 1024 * 1024;
/// Limit for the captured part of one output stream, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 64 * 1024 * 1024;
/// The longest timeout.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time from SIGTERM to SIGKILL.
pub const MAX_GRACE: Duration = Duration::from_secs(60);
/// Default for the captured part of one output stream, in bytes.
pub const DEFAULT_OUTPUT_BYTES: usize = 51_200;
/// Default timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time from SIGTERM to SIGKILL.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(1);
/// How long descendants may continue to write once the command itself has ended.
pub const DRAIN_LIMIT: Duration = Duration::from_millis(250);
/// Default limit for the open files of one process.
pub const DEFAULT_OPEN_FILES: u64 = 1024;

/// One command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub invocation: Invocation,
    /// Absolute, or relative to the executor's default; `None` is that default.
    pub working_directory: Option<PathBuf>,
    /// Variables that are added for this command; only `SKILL_*` names are accepted.
    pub environment: Vec<(String, String)>,
    /// Standard input. It is written while the output is read.
    pub stdin: Vec<u8>,
    /// When the whole tree is terminated. Counts from the start, including the time for writing standard input.
    pub timeout: Duration,
    /// Time from SIGTERM to SIGKILL; zero kills at once.
    pub grace: Duration,
    /// How much of each output stream is captured; the rest is read and discarded.
    pub output_bytes: usize,
    /// Size limit for files that the command writes.
    pub file_bytes: Option<u64>,
    /// Limit for the open files of each process.
    pub open_files: u64,
}

/// The command to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// A program and its arguments, without a shell. The first is looked up in the executor's search path, or is a path
    /// if it contains a slash.
    Argv(Vec<OsString>),
    /// One line for the shell.
    Shell(OsString),
    /// A skill of the executor's skills directory, by its name and with the stricter rules of
    /// [`find_skill`](crate::lookup::find_skill).
    Skill {
        /// The skill's name.
        name: SkillName,
        /// The arguments after the name, without a shell.
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

    /// Checks every limit and converts the arguments for the kernel.
    pub(crate) fn to_arguments(&self) -> Result<Vec<CString>, RequestError> {
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

/// Why a request is refused before anything is executed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    /// The argument list is empty, or the program's name is.
    #[error("there is no program to run")]
    NoProgram,
    /// An argument cannot be passed to the kernel.
    #[error("argument {index} contains a NUL byte")]
    Nul {
        /// Its index, from 0.
        index: usize,
    },
    /// A field exceeds its limit.
    #[error("{field} exceed the limit of {limit}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// The limit.
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
        assert_eq!(ok.to_arguments().unwrap().len(), 2);

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
            assert_eq!(request.to_arguments(), Err(error));
        }
    }
}
