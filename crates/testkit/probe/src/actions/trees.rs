//! Descendants that try to outlive their parent. All of them carry an alarm: they end by themselves.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::Then;
use crate::attempt::pipe;
use crate::sys::{self, Arg};

/// Exit code when a process could not be made.
const NO_PROCESS: i32 = 71;
/// The most children of one process of a random tree, and how deep it goes: 84 processes at most with the double forks.
const BREADTH: u64 = 3;
const DEPTH: u32 = 3;

pub fn ignore_endings() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        sys::ignore(signal);
    }
}

/// Tells the first process that everything is up. Each process has the writing end, as one inherited number, until it
/// has made its own children: so the end of the pipe means that nothing more comes.
#[derive(Clone, Copy)]
struct Ready(i32);

impl Ready {
    fn pipe() -> Option<(OwnedFd, Self)> {
        let (read, write) = pipe().ok()?;
        Some((read, Self(write.into_raw_fd())))
    }

    /// Says "one more" and lets go.
    fn report(self) {
        let _ = sys::call(libc::SYS_write, [Arg::Int(self.0.into()), Arg::In(b"+"), Arg::Int(1)]);
        self.release();
    }

    fn release(self) {
        let _ = sys::call(libc::SYS_close, [Arg::Int(self.0.into())]);
    }
}

/// Waits until all are up, says how many on standard output, and exits or stays.
fn conclude(read: OwnedFd, ready: Ready, seconds: u32, then: Then) -> i32 {
    ready.release();
    let mut reports = Vec::new();
    let _ = File::from(read).read_to_end(&mut reports);
    crate::print_line(&format!("{{\"started\":{}}}", reports.len()));
    match then {
        _ if reports.is_empty() => NO_PROCESS,
        Then::Exit => 0,
        Then::Stay => super::sleep(seconds),
    }
}

/// Sleeps to the end, as every descendant does.
fn linger(seconds: u32) -> ! {
    // Slept, not alarmed: signals may be blocked.
    std::thread::sleep(Duration::from_secs(seconds.into()));
    sys::exit_now(0)
}

fn close_standard() {
    for fd in 0..3 {
        let _ = sys::call(libc::SYS_close, [Arg::Int(fd)]);
    }
}

fn new_session() {
    let _ = sys::call(libc::SYS_setsid, []);
}

/// Runs `body` in a grandchild whose parent is gone, in a session of its own.
fn orphan(body: impl FnOnce()) {
    if let Ok(None) = sys::fork() {
        new_session();
        if let Ok(None) = sys::fork() {
            body();
        }
        sys::exit_now(0);
    }
}

/// Leaves one orphan that does `body`, and concludes.
fn leave_behind(seconds: u32, then: Then, body: impl FnOnce(Ready)) -> i32 {
    let Some((read, ready)) = Ready::pipe() else {
        return NO_PROCESS;
    };
    orphan(|| body(ready));
    conclude(read, ready, seconds, then)
}

pub fn daemon(seconds: u32, then: Then) -> i32 {
    leave_behind(seconds, then, |ready| {
        ignore_endings();
        close_standard();
        ready.report();
        linger(seconds)
    })
}

pub fn hold_output(seconds: u32, then: Then) -> i32 {
    leave_behind(seconds, then, |ready| {
        ready.report();
        linger(seconds)
    })
}

/// The daemon inherits no output; it gets it afterwards, as a message, where no bookkeeping by inheritance sees it.
pub fn pass_output(seconds: u32, then: Then) -> i32 {
    let Ok((ours, theirs)) = UnixStream::pair() else {
        return NO_PROCESS;
    };
    // Sent before there is a receiver: the message waits in the socket.
    if sys::send_descriptor(ours.as_raw_fd(), 1).is_err() {
        return NO_PROCESS;
    }
    leave_behind(seconds, then, |ready| {
        ignore_endings();
        close_standard();
        if sys::receive_descriptor(theirs.as_raw_fd()).is_ok() {
            ready.report();
        }
        linger(seconds)
    })
}

pub fn subreaper(seconds: u32, then: Then) -> i32 {
    leave_behind(seconds, then, |ready| {
        let option = Arg::Int(libc::PR_SET_CHILD_SUBREAPER.into());
        let _ = sys::call(libc::SYS_prctl, [option, Arg::Int(1)]);
        ignore_endings();
        for _ in 0..3 {
            orphan(|| {
                ready.report();
                linger(seconds)
            });
        }
        ready.report();
        linger(seconds)
    })
}

/// A stream of numbers that a seed decides (SplitMix64): a failing tree can be grown again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % sides
    }
}

pub fn random(seed: u64, seconds: u32, then: Then) -> i32 {
    let Some((read, ready)) = Ready::pipe() else {
        return NO_PROCESS;
    };
    grow(Dice(seed), ready, DEPTH, seconds);
    conclude(read, ready, seconds, then)
}

/// Makes the children of one process, each with dice of its own.
fn grow(mut dice: Dice, ready: Ready, depth: u32, seconds: u32) {
    if depth == 0 {
        return;
    }
    // At least one in the first row: an empty tree proves nothing.
    let children = dice.roll(BREADTH) + u64::from(depth == DEPTH);
    for _ in 0..children {
        let kind = dice.roll(8);
        let own = Dice(dice.roll(u64::MAX));
        let live = move || {
            behave(kind);
            grow(own, ready, depth - 1, seconds);
            ready.report();
            linger(seconds)
        };
        match kind {
            0 => orphan(live),
            _ => {
                // A sibling instead of a child: a parent that waits for us only never learns of it.
                let flags = if kind == 1 { libc::CLONE_PARENT } else { 0 };
                if let Ok(None) = sys::fork_with(flags) {
                    live()
                }
            }
        }
    }
}

fn behave(kind: u64) {
    match kind {
        0 | 4 => close_standard(),
        2 => new_session(),
        3 => ignore_endings(),
        5 => {
            let _ = sys::call(libc::SYS_setpgid, [Arg::Int(0), Arg::Int(0)]);
            sys::block_all_signals();
        }
        6 => {
            new_session();
            ignore_endings();
            close_standard();
        }
        // The rest behave and only hold the output.
        _ => {}
    }
}

/// Moving targets: an observer of a process finds that it has just been replaced. Many of them are missed in turn, and
/// leave the observer little time.
pub fn hoppers(count: u64, seconds: u32, then: Then) -> i32 {
    let Some((read, ready)) = Ready::pipe() else {
        return NO_PROCESS;
    };
    for _ in 0..count {
        orphan(|| {
            ignore_endings();
            close_standard();
            ready.report();
            let end = Instant::now() + Duration::from_secs(seconds.into());
            while Instant::now() < end {
                match sys::fork() {
                    Ok(None) => {}
                    Ok(Some(_)) => sys::exit_now(0),
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
    }
    conclude(read, ready, seconds, then)
}

/// `count` orphans, one after the other, each of which ends at once: the process that adopts them must reap them.
pub fn short_lived(count: u64) -> i32 {
    for _ in 0..count {
        match sys::fork() {
            Ok(None) => {
                let born = sys::fork();
                sys::exit_now(i32::from(born.is_err()));
            }
            Ok(Some(child)) if matches!(sys::wait_for(child), Ok(sys::Ending::Exited(0))) => {}
            Ok(Some(_)) | Err(_) => return NO_PROCESS,
        }
    }
    0
}

/// Every process forks as long as there are tokens in the pipe; `count` tokens in all, so it has an end.
pub fn bomb(count: u64, seconds: u32) -> i32 {
    let Ok((tokens, till)) = pipe() else {
        return NO_PROCESS;
    };
    // What fits into a pipe.
    let count = count.min(60_000);
    let filled = File::from(till).write_all(&vec![b't'; count as usize]);
    if filled.is_err() {
        return NO_PROCESS;
    }
    sys::alarm(seconds);
    let mut tokens = File::from(tokens);
    let mut token = [0; 1];
    let mut failures = 0;
    while matches!(tokens.read(&mut token), Ok(1)) {
        match sys::fork() {
            Ok(None) => sys::alarm(seconds),
            Ok(Some(_)) => {}
            Err(_) => failures += 1,
        }
    }
    if failures > 0 {
        let _ = writeln!(std::io::stderr(), "{failures} forks refused");
    }
    linger(seconds)
}

/// Ends this process after `seconds`, even while it is stopped.
pub fn guard_stopped(seconds: u32) {
    let stopped = std::process::id() as i32;
    if let Ok(None) = sys::fork() {
        close_standard();
        let end = Instant::now() + Duration::from_secs(seconds.into());
        while Instant::now() < end && sys::call(libc::SYS_getppid, []) == Ok(stopped.into()) {
            std::thread::sleep(Duration::from_millis(100));
        }
        if sys::call(libc::SYS_getppid, []) == Ok(stopped.into()) {
            let _ = sys::kill(stopped, libc::SIGKILL);
        }
        sys::exit_now(0);
    }
}
