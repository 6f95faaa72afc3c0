//! Questions on the terminal: shown whole, then answered by one line.
//!
//! Input from before the question was shown does not count: typing ahead would approve something unread. The terminal
//! edits lines itself (cooked mode), so nothing must be restored if the process is killed.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::termios::{QueueSelector, isatty, tcflush, tcgetpgrp};
use sympozium_gateway::run_api::local::Vote;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::display::humanize;
use super::display::line::{Line, Style};
use sympozium_runs::Question;

/// Bytes of a line of input; the limit of the kernel for terminals.
const MAX_INPUT_BYTES: usize = 4_096;
const MAX_REASON_CHARS: usize = 500;

/// A parsed line of input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptInput {
    /// A vote, with its reason.
    Vote(Vote, Option<String>),
    /// Show the question again.
    Show,
    /// An empty line.
    Empty,
    /// Anything else.
    Unclear,
}

/// Parses a line of input. What is not clearly a vote is none.
pub fn parse_input(line: &str, run_scope: bool) -> PromptInput {
    let line = line.trim();
    let (word, rest) = match line.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, Some(rest.trim())),
        None => (line, None),
    };
    match (word.to_ascii_lowercase().as_str(), rest) {
        ("", _) => PromptInput::Empty,
        ("y" | "yes", None) => PromptInput::Vote(Vote::Approve, None),
        ("a" | "allow", None) if run_scope => PromptInput::Vote(Vote::ApproveForRun, None),
        ("n" | "no", reason) => {
            let reason = reason.map(|it| it.chars().take(MAX_REASON_CHARS).collect());
            PromptInput::Vote(Vote::Deny, reason)
        }
        ("s" | "show", None) => PromptInput::Show,
        _ => PromptInput::Unclear,
    }
}

/// The question, each of its lines after a bar: exactly what is after a bar is asked about.
pub fn question_lines(question: &Question, now_ms: u64) -> Vec<Line> {
    let left = question.deadline_ms.saturating_sub(now_ms);
    let mut lines = vec![
        Line::wrapped(2)
            .plain("")
            .add(Style::Attention, &format!("── {}: may the agent do exactly this?", question.approval)),
    ];
    for line in question.shown.lines() {
        lines.push(Line::wrapped(4).add(Style::Attention, "│ ").plain(line));
    }
    let left = humanize::format_elapsed(left);
    let end = format!("── no answer in {left} means no");
    lines.push(Line::wrapped(2).add(Style::Attention, &end));
    lines
}

/// The possible answers.
pub fn choices_line(run_scope: bool) -> Line {
    let mut text = String::from("[y]es once / [n]o (and why) / [s]how again");
    if run_scope {
        text.push_str(" / [a]llow the identical action for the rest of this run");
    }
    Line::wrapped(2).plain(&text).plain(":")
}

/// The terminal of the user.
#[derive(Debug)]
pub struct Terminal {
    stream: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl Terminal {
    /// The terminal of this process, if its standard input is one.
    ///
    /// Opened anew, so that O_NONBLOCK does not affect other processes that share the descriptor.
    pub fn open() -> Option<Self> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return None;
        }
        let open = |path: &str| {
            let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
            OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)
        };
        let stream = open("/dev/tty").or_else(|_| open("/proc/self/fd/0")).ok()?;
        Self::new(stream.into()).ok()
    }

    /// On this terminal, which must be nonblocking.
    #[expect(
        deprecated,
        reason = "the successor is unsafe, for types that close before they are dropped; an owned descriptor does not"
    )]
    pub fn new(stream: OwnedFd) -> io::Result<Self> {
        Ok(Self { stream: AsyncFd::with_interest(stream, Interest::READABLE)?, buffer: Vec::new() })
    }

    /// The same terminal, to write to.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.stream.get_ref().try_clone()
    }

    /// Whether this process is in the foreground. A read from the background would stop it (SIGTTIN).
    pub fn is_foreground(&self) -> bool {
        match tcgetpgrp(self.stream.get_ref().as_fd()) {
            Ok(group) => group == rustix::process::getpgrp(),
            // Not the controlling terminal: using it stops no process.
            Err(_) => true,
        }
    }

    /// Discards the input so far.
    pub fn flush_input(&mut self) {
        self.buffer.clear();
        // A terminal that is gone has no input.
        let _ = tcflush(self.stream.get_ref().as_fd(), QueueSelector::IFlush);
    }

    /// Reads the next line; `None` at the end of input, or if the terminal is gone. Cancel safe.
    pub async fn read_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).into_owned());
            }
            let mut ready = self.stream.readable().await.ok()?;
            let mut bytes = [0; 512];
            let read = ready.try_io(|stream| rustix::io::read(stream.get_ref(), &mut bytes).map_err(io::Error::from));
            match read {
                Ok(Ok(0)) => {
                    self.buffer.clear();
                    return None;
                }
                Ok(Ok(count)) => self.buffer.extend_from_slice(&bytes[..count]),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return None,
                // The input was flushed meanwhile.
                Err(_would_block) => {}
            }
            if self.buffer.len() > MAX_INPUT_BYTES {
                self.buffer.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_clearly_an_answer_is_one() {
        let says = |says, reason: Option<&str>| PromptInput::Vote(says, reason.map(str::to_owned));
        for (line, expected) in [
            ("y\n", says(Vote::Approve, None)),
            ("  YES \r\n", says(Vote::Approve, None)),
            ("n\n", says(Vote::Deny, None)),
            ("no  too dangerous \n", says(Vote::Deny, Some("too dangerous"))),
            ("a\n", says(Vote::ApproveForRun, None)),
            ("allow\n", says(Vote::ApproveForRun, None)),
            ("s\n", PromptInput::Show),
            ("\n", PromptInput::Empty),
            ("   \n", PromptInput::Empty),
            ("yy\n", PromptInput::Unclear),
            ("y no\n", PromptInput::Unclear),
            ("a b\n", PromptInput::Unclear),
            ("nyes\n", PromptInput::Unclear),
            ("\u{fffd}y\n", PromptInput::Unclear),
            ("ｙ\n", PromptInput::Unclear),
        ] {
            assert_eq!(parse_input(line, true), expected, "{line:?}");
        }
        assert_eq!(parse_input("a\n", false), PromptInput::Unclear);
        let long = format!("n {}\n", "ä".repeat(MAX_REASON_CHARS + 1));
        let cut = "ä".repeat(MAX_REASON_CHARS);
        assert_eq!(parse_input(&long, false), says(Vote::Deny, Some(&cut)));
    }
}
