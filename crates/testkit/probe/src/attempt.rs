//! What an attempt is, and how one is made without letting it stop the rest.

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::sys::{self, Arg, Ending, Errno};

/// An attempt that has not answered by then counts as stopped.
const DEADLINE: Duration = Duration::from_secs(90);

/// What came of an attempt.
pub enum Verdict {
    /// It worked; what was seen.
    Possible(String),
    /// It was stopped; by which error.
    Refused(String),
}

impl Verdict {
    /// Possible exactly when `result` is `Ok`.
    pub fn of<T>(result: Result<T, impl Into<Errno>>, seen: impl Display) -> Self {
        match result {
            Ok(_) => Self::Possible(seen.to_string()),
            Err(error) => Self::Refused(error.into().to_string()),
        }
    }

    /// For calls made with arguments that no kernel accepts, so that they do no harm: an error about the *arguments*
    /// means that the call was let through.
    pub fn of_call<T>(result: Result<T, Errno>) -> Self {
        match result {
            Ok(_) => Self::Possible("the call succeeded".into()),
            Err(error) if is_refusal(error) => Self::Refused(error.to_string()),
            Err(error) => Self::Possible(format!("the call was let through ({error})")),
        }
    }

    pub fn from_condition(possible: bool, detail: impl Display) -> Self {
        if possible { Self::Possible(detail.to_string()) } else { Self::Refused(detail.to_string()) }
    }
}

fn is_refusal(error: Errno) -> bool {
    matches!(error.0, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

/// What the probe saw at its start, before it opened or forked anything.
pub struct Start {
    /// Our process, whose children make the attempts.
    pub pid: i32,
    /// Who started us: the executor, its supervisor, or 0 if it is outside our pid namespace.
    pub parent: i32,
    /// Descriptors above 2 that we were given.
    pub inherited: Vec<i32>,
}

/// What an attempt is given.
pub struct Input<'a> {
    pub start: &'a Start,
    /// What followed `=`, or the attempt's default.
    pub argument: &'a str,
}

impl Input<'_> {
    /// The process that the attempt is aimed at: the one named, or who started us.
    pub fn target(&self) -> Result<i32, Verdict> {
        let target = if self.argument.is_empty() { self.start.parent } else { self.argument.parse().unwrap_or(0) };
        if target > 0 { Ok(target) } else { Err(Verdict::Refused("no such process in sight".into())) }
    }

    /// `FIRST:NUMBER`, for instance a directory and how much to write there.
    pub fn place_and_number(&self) -> (&str, u64) {
        match self.argument.rsplit_once(':') {
            Some((place, number)) => (place, parse_size(number)),
            None => (self.argument, 0),
        }
    }

    pub fn number(&self) -> u64 {
        parse_size(self.argument)
    }
}

/// A number with an optional K, M or G (powers of 1024).
pub fn parse_size(text: &str) -> u64 {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().unwrap_or(0) << shift
}

/// One row of the catalogue.
pub struct Attempt {
    pub name: &'static str,
    /// What the argument is (`PATH`), in brackets when it may be left out; empty when there is none.
    pub argument: &'static str,
    /// Used when the argument is left out.
    pub default: &'static str,
    /// What is tried, as a person would say it.
    pub what: &'static str,
    pub run: fn(&Input<'_>) -> Verdict,
}

/// A row without an argument.
pub const fn plain(name: &'static str, what: &'static str, run: fn(&Input<'_>) -> Verdict) -> Attempt {
    Attempt { name, argument: "", default: "", what, run }
}

/// A row whose argument must be given.
pub const fn with(
    name: &'static str,
    argument: &'static str,
    what: &'static str,
    run: fn(&Input<'_>) -> Verdict,
) -> Attempt {
    Attempt { name, argument, default: "", what, run }
}

/// A row whose argument may be left out.
pub const fn with_default(
    name: &'static str,
    argument: &'static str,
    default: &'static str,
    what: &'static str,
    run: fn(&Input<'_>) -> Verdict,
) -> Attempt {
    Attempt { name, argument, default, what, run }
}

/// Makes the attempt in a child of its own, so that a hang, a crash or a kill is an answer and not the end.
///
/// `Err` when no child could be made: the attempt was not made, which must never look like "it was stopped".
pub fn make(attempt: &Attempt, input: &Input<'_>) -> Result<Verdict, Errno> {
    let (read, write) = pipe()?;
    let Some(child) = sys::fork()? else {
        drop(read);
        // SIGKILL from the parent is the second line: a filter may refuse `alarm`'s timer.
        sys::alarm(DEADLINE.as_secs() as u32);
        let (mark, detail) = match (attempt.run)(input) {
            Verdict::Possible(detail) => (b'+', detail),
            Verdict::Refused(detail) => (b'-', detail),
        };
        let mut answer = vec![mark];
        answer.extend_from_slice(detail.as_bytes());
        let _ = File::from(write).write_all(&answer);
        sys::exit_now(0)
    };
    drop(write);
    let answer = read_until(read, Instant::now() + DEADLINE);
    if answer.is_none() {
        let _ = sys::kill(child, libc::SIGKILL);
    }
    let ending = sys::wait_for(child);
    let answer = answer.unwrap_or_default();
    Ok(match (answer.split_first(), ending) {
        (Some((b'+', detail)), _) => Verdict::Possible(String::from_utf8_lossy(detail).into_owned()),
        (Some((_, detail)), _) => Verdict::Refused(String::from_utf8_lossy(detail).into_owned()),
        (None, Ok(Ending::Killed(signal))) => Verdict::Refused(format!("killed by {}", signal_name(signal))),
        (None, _) => Verdict::Refused("no answer".into()),
    })
}

/// Everything up to the end of the pipe, or `None` when that does not come in time.
fn read_until(pipe: OwnedFd, deadline: Instant) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut pipe = File::from(pipe);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if !readable(pipe.as_raw_fd(), left) {
            return None;
        }
        let mut chunk = [0; 4096];
        match pipe.read(&mut chunk) {
            Ok(0) | Err(_) => return Some(bytes),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Waits until there is something to read, or the other end is closed. By hand, as the rest is: no library needed.
fn readable(fd: i32, wait: Duration) -> bool {
    let mut entry = [0_u8; 8];
    entry[..4].copy_from_slice(&fd.to_ne_bytes());
    entry[4..6].copy_from_slice(&libc::POLLIN.to_ne_bytes());
    let mut timeout = [0_u8; 16];
    timeout[..8].copy_from_slice(&(wait.as_secs() as i64).to_ne_bytes());
    timeout[8..].copy_from_slice(&i64::from(wait.subsec_nanos()).to_ne_bytes());
    let polled =
        sys::call(libc::SYS_ppoll, [Arg::Out(&mut entry), Arg::Int(1), Arg::Out(&mut timeout), Arg::Null, Arg::Int(0)]);
    polled.is_ok_and(|ready| ready > 0)
}

/// A pipe whose ends are not inherited by programs.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (read, write) = std::io::pipe()?;
    Ok((read.into(), write.into()))
}

/// Runs `body` in a child and tells how it ended.
pub fn in_child(body: impl FnOnce() -> i32) -> Result<Ending, Errno> {
    match sys::fork()? {
        None => sys::exit_now(body()),
        Some(child) => sys::wait_for(child),
    }
}

pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGKILL => "SIGKILL",
        libc::SIGSYS => "SIGSYS",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGALRM => "SIGALRM (it hung)",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGTERM => "SIGTERM",
        libc::SIGABRT => "SIGABRT",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
