//! The outcome of a command.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::report::IsolationReport;

/// The outcome of a command that was started.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How the command itself ended.
    pub termination: Termination,
    /// Standard output.
    pub stdout: CapturedOutput,
    /// Standard error.
    pub stderr: CapturedOutput,
    /// Our timer ended it. A command that exits with 124 by itself has not timed out.
    pub timed_out: bool,
    /// The caller cancelled it.
    pub cancelled: bool,
    /// The kernel killed a process of the sandbox while this command ran, because the memory limit was reached. With
    /// several concurrent commands it may have been a process of another one: the limit is the sandbox's.
    pub oom_killed: bool,
    /// From the start of the command until all of its processes had ended.
    pub duration: Duration,
    /// Resources that it used.
    pub usage: Usage,
    /// The layers that were live.
    pub isolation: Arc<IsolationReport>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// It exited with this code.
    Exited(u8),
    /// It was killed by this signal.
    Signaled(i32),
}

impl Termination {
    /// From the raw status of `wait(2)`.
    pub(crate) fn from_status(status: i32) -> Self {
        let signal = status & 0x7f;
        if signal == 0 {
            // The exit code is the second byte, and only that.
            Self::Exited(status.to_le_bytes()[1])
        } else {
            Self::Signaled(signal)
        }
    }

    /// The code that a shell would report: 128 + the signal's number for a signal.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => i32::from(code),
            Self::Signaled(signal) => 128 + signal,
        }
    }
}

/// An output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The captured part of one output stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// The first bytes, up to the limit.
    pub bytes: Vec<u8>,
    /// Number of bytes that the command wrote in total.
    pub total_bytes: u64,
}

impl CapturedOutput {
    /// Whether the command wrote more than was captured.
    pub fn is_truncated(&self) -> bool {
        self.total_bytes > self.bytes.len() as u64
    }

    /// The text. `Owned` means that invalid UTF-8 was replaced; the original is in `bytes`.
    ///
    /// A character that the limit cuts in two is left out rather than marked as invalid.
    pub fn text(&self) -> Cow<'_, str> {
        let whole = if self.is_truncated() { trim_partial_character(&self.bytes) } else { &self.bytes };
        String::from_utf8_lossy(whole)
    }

    /// Whether [`text`](Self::text) had to replace anything.
    pub fn has_invalid_utf8(&self) -> bool {
        matches!(self.text(), Cow::Owned(_))
    }

    pub(crate) fn append(&mut self, bytes: &[u8], cap: usize) {
        let room = cap.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.total_bytes += bytes.len() as u64;
    }
}

fn trim_partial_character(bytes: &[u8]) -> &[u8] {
    // Only the end matters: invalid bytes before it were written by the command.
    let last = bytes.utf8_chunks().last();
    let last = last.map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => &bytes[..bytes.len() - last.len()],
        _ => bytes,
    }
}

/// The resources that a command and its descendants used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// The largest resident set of any of its processes.
    pub max_resident_bytes: u64,
    /// Descendants that outlived the command and were killed.
    pub killed_descendants: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(bytes: &[u8], cap: usize) -> CapturedOutput {
        let mut captured = CapturedOutput::default();
        captured.append(bytes, cap);
        captured
    }

    #[test]
    fn the_cap_is_exact() {
        assert!(!captured(b"abc", 3).is_truncated());
        let cut = captured(b"abcd", 3);
        assert!(cut.is_truncated());
        assert_eq!((cut.text().as_ref(), cut.total_bytes), ("abc", 4));
    }

    #[test]
    fn a_character_cut_by_the_cap_is_not_invalid() {
        let cut = captured("aé".as_bytes(), 2);
        assert_eq!((cut.text().as_ref(), cut.has_invalid_utf8()), ("a", false));
        let really_invalid = captured(b"a\xff", 2);
        assert!(really_invalid.has_invalid_utf8());
        // The same bytes without truncation were written by the command.
        assert!(captured(b"a\xc3", 2).has_invalid_utf8());
        // Invalid bytes further up do not matter for the end.
        let both = captured(b"\xffa\xc3\xa9", 3);
        assert_eq!(both.text(), "\u{fffd}a");
    }

    #[test]
    fn endings_are_read_as_the_shell_reads_them() {
        assert_eq!(Termination::from_status(0x0700), Termination::Exited(7));
        assert_eq!(Termination::from_status(9), Termination::Signaled(9));
        // With a core dump's bit.
        assert_eq!(Termination::from_status(0x8b).exit_code(), 139);
    }
}
