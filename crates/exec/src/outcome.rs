//! What came of a command.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::report::IsolationReport;

/// What came of a command that was started.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How the command itself ended.
    pub ending: Ending,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// Our timer ended it. A command that exits 124 by itself has not timed out.
    pub timed_out: bool,
    /// The caller cancelled it.
    pub cancelled: bool,
    /// The kernel killed a process of the sandbox while this command ran, because the memory limit was reached. With
    /// several commands at once it may have been another's: the limit is the sandbox's.
    pub oom_killed: bool,
    /// From the start of the command until nothing of it lived.
    pub duration: Duration,
    /// What it used.
    pub usage: Usage,
    /// Which layers were live.
    pub isolation: Arc<IsolationReport>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Exited(u8),
    /// This signal ended it.
    Signaled(i32),
}

impl Ending {
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

    /// The code a shell would report: 128 + the signal's number for a signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => i32::from(code),
            Self::Signaled(signal) => 128 + signal,
        }
    }
}

/// Which of its outputs a command writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One output stream, as far as it was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The first bytes, up to the cap.
    pub bytes: Vec<u8>,
    /// How much the command wrote in all.
    pub total_bytes: u64,
}

impl Captured {
    /// Whether the command wrote more than was kept.
    pub fn truncated(&self) -> bool {
        self.total_bytes > self.bytes.len() as u64
    }

    /// The text. `Owned` means that invalid UTF-8 was replaced, and the bytes say by what.
    ///
    /// A character cut in two by the cap is left out rather than marked as invalid.
    pub fn text(&self) -> Cow<'_, str> {
        let whole = if self.truncated() { without_cut_character(&self.bytes) } else { &self.bytes };
        String::from_utf8_lossy(whole)
    }

    /// Whether [`text`](Self::text) had to replace anything.
    pub fn invalid_utf8(&self) -> bool {
        matches!(self.text(), Cow::Owned(_))
    }

    pub(crate) fn keep(&mut self, bytes: &[u8], cap: usize) {
        let room = cap.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.total_bytes += bytes.len() as u64;
    }
}

fn without_cut_character(bytes: &[u8]) -> &[u8] {
    // Only the end matters: what is invalid before it is the command's own doing.
    let last = bytes.utf8_chunks().last();
    let last = last.map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => &bytes[..bytes.len() - last.len()],
        _ => bytes,
    }
}

/// What a command and its descendants used.
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

    fn captured(bytes: &[u8], cap: usize) -> Captured {
        let mut captured = Captured::default();
        captured.keep(bytes, cap);
        captured
    }

    #[test]
    fn the_cap_is_exact() {
        assert!(!captured(b"abc", 3).truncated());
        let cut = captured(b"abcd", 3);
        assert!(cut.truncated());
        assert_eq!((cut.text().as_ref(), cut.total_bytes), ("abc", 4));
    }

    #[test]
    fn a_character_cut_by_the_cap_is_not_invalid() {
        let cut = captured("aé".as_bytes(), 2);
        assert_eq!((cut.text().as_ref(), cut.invalid_utf8()), ("a", false));
        let really_invalid = captured(b"a\xff", 2);
        assert!(really_invalid.invalid_utf8());
        // The same bytes without a cut are the command's own doing.
        assert!(captured(b"a\xc3", 2).invalid_utf8());
        // Damage further up changes nothing for the end.
        let both = captured(b"\xffa\xc3\xa9", 3);
        assert_eq!(both.text(), "\u{fffd}a");
    }

    #[test]
    fn endings_are_read_as_the_shell_reads_them() {
        assert_eq!(Ending::from_status(0x0700), Ending::Exited(7));
        assert_eq!(Ending::from_status(9), Ending::Signaled(9));
        // With a core dump's bit.
        assert_eq!(Ending::from_status(0x8b).code(), 139);
    }
}
