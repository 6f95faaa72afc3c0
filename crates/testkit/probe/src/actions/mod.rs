//! Behaviours for tests of life and death: `probe do [--marker WORD] ACTION [ARGUMENT…]`.
//!
//! The marker stays in the command line of every descendant, for a fork keeps it: a test counts survivors by it.
//! Every process made here ends by itself after its time, in case nothing else ends it.

mod output;
mod report;
mod trees;

use std::time::Duration;

use crate::attempt::{Start, parse_size};
use crate::sys::{self, Arg};

/// One row of the actions.
pub struct Action {
    pub name: &'static str,
    pub arguments: &'static str,
    pub what: &'static str,
    run: fn(&Arguments<'_>) -> i32,
}

const fn row(
    name: &'static str,
    arguments: &'static str,
    what: &'static str,
    run: fn(&Arguments<'_>) -> i32,
) -> Action {
    Action { name, arguments, what, run }
}

pub const ACTIONS: &[Action] = &[
    row("exit", "CODE", "exit with the code", |words| words.number(0, 0) as i32),
    row("raise", "SIGNAL", "be ended by the signal (a number)", |words| raise(words.number(0, 15) as i32)),
    row("sleep", "[SECONDS]", "sleep, reading nothing", |words| sleep(words.seconds(0))),
    row("ignore-term", "[SECONDS]", "ignore SIGTERM, SIGINT, SIGHUP and sleep", |words| {
        trees::ignore_endings();
        sleep(words.seconds(0))
    }),
    row("block-signals", "[SECONDS]", "block every signal and sleep", |words| {
        sys::block_all_signals();
        sleep(words.seconds(0))
    }),
    row("stop", "[SECONDS]", "stop itself (SIGSTOP), and sleep if continued", |words| {
        // A stopped process cannot run a timer: a child ends it if its parent does not.
        let seconds = words.seconds(0);
        trees::guard_stopped(seconds);
        let _ = sys::kill(std::process::id() as i32, libc::SIGSTOP);
        sleep(seconds)
    }),
    row("echo-stdin", "", "copy standard input to standard output", |_| output::echo()),
    row("close-stdin", "[SECONDS]", "close standard input and sleep", |words| {
        let _ = sys::call(libc::SYS_close, [Arg::Int(0)]);
        sleep(words.seconds(0))
    }),
    row("flood", "stdout|stderr|both BYTES", "write that much", |words| {
        output::flood(words.word(0), parse_size(words.word(1)))
    }),
    row("invalid-utf8", "", "write bytes that are no text", |_| output::invalid_utf8()),
    row("print", "env|cwd|fds|signals|ids|args|all", "print what it was started with, as JSON", |words| {
        report::print(words.start, words.word(0))
    }),
    row("spin", "[SECONDS]", "use a processor", |words| {
        let end = std::time::Instant::now() + Duration::from_secs(words.seconds(0).into());
        while std::time::Instant::now() < end {
            std::hint::spin_loop();
        }
        0
    }),
    row("allocate", "MIB [SECONDS]", "hold that much memory", |words| {
        match crate::attempts::touch(words.number(0, 1)) {
            Ok(_held) => sleep(words.seconds(1)),
            Err(()) => 1,
        }
    }),
    row(
        "daemon",
        "[SECONDS] [exit|stay]",
        "leave a daemon: double fork, setsid, no descriptors, ignores TERM",
        |words| trees::daemon(words.seconds(0), words.ending(1)),
    ),
    row("hold-stdout", "[SECONDS] [exit|stay]", "leave a grandchild that holds the output pipes", |words| {
        trees::hold_output(words.seconds(0), words.ending(1))
    }),
    row("pass-stdout", "[SECONDS] [exit|stay]", "give the output away over a socket to a daemon", |words| {
        trees::pass_output(words.seconds(0), words.ending(1))
    }),
    row("fork-tree", "SEED [SECONDS] [exit|stay]", "a random tree of descendants of every kind", |words| {
        trees::random(words.number(0, 1), words.seconds(1), words.ending(2))
    }),
    row(
        "pid-hopper",
        "[SECONDS] [exit|stay] [COUNT]",
        "chains of processes, each of which forks the next and exits",
        |words| trees::hoppers(words.number(2, 1), words.seconds(0), words.ending(1)),
    ),
    row("short-lived", "COUNT", "leave orphans that end at once, one after the other", |words| {
        trees::short_lived(words.number(0, 1))
    }),
    row("stop-parent", "[SECONDS]", "stop its own supervisor, and stay", |words| {
        let _ = sys::kill(words.start.parent, libc::SIGSTOP);
        sleep(words.seconds(0))
    }),
    row("fork-bomb", "COUNT [SECONDS]", "fork from every process, COUNT in all", |words| {
        trees::bomb(words.number(0, 100), words.seconds(1))
    }),
    row("subreaper", "[SECONDS] [exit|stay]", "adopt its own orphans, away from the executor", |words| {
        trees::subreaper(words.seconds(0), words.ending(1))
    }),
];

/// Whether the first process exits when its descendants are up, or stays as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Exit,
    Stay,
}

pub struct Arguments<'a> {
    start: &'a Start,
    words: &'a [String],
}

impl Arguments<'_> {
    fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    fn number(&self, index: usize, default: u64) -> u64 {
        self.words.get(index).map_or(default, |word| parse_size(word))
    }

    /// Half a minute unless told, ten minutes at most: nothing outlives a forgotten test for long.
    fn seconds(&self, index: usize) -> u32 {
        self.number(index, 30).min(600) as u32
    }

    fn ending(&self, index: usize) -> Then {
        if self.word(index) == "stay" { Then::Stay } else { Then::Exit }
    }
}

/// Does what the words say and gives the exit code.
pub fn act(start: &Start, words: &[String]) -> i32 {
    let words = match words {
        [flag, _marker, rest @ ..] if flag == "--marker" => rest,
        _ => words,
    };
    let Some((name, rest)) = words.split_first() else {
        return crate::usage("no action", "`probe list` names them all");
    };
    match ACTIONS.iter().find(|action| action.name == name) {
        Some(action) => (action.run)(&Arguments { start, words: rest }),
        None => crate::usage(&format!("unknown action `{name}`"), "`probe list` names them all"),
    }
}

fn raise(signal: i32) -> i32 {
    // Rust's runtime ignores SIGPIPE, and a test may have started us with others ignored.
    sys::default(signal);
    let _ = sys::kill(std::process::id() as i32, signal);
    sleep(1)
}

fn sleep(seconds: u32) -> i32 {
    std::thread::sleep(Duration::from_secs(seconds.into()));
    0
}
