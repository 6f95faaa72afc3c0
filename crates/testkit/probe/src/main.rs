//! The probe: a hostile program that runs *inside* a sandbox and reports what it could do.
//!
//! `probe list` names every attempt, `probe attempt NAME[=ARGUMENT]…` makes them, `probe do ACTION…` behaves badly for
//! tests of life and death. It must do no harm where nothing stops it: a call that would change the machine is made
//! with arguments that no kernel accepts, and what is read is never shown.

mod actions;
mod attempt;
mod attempts;
mod sys;

use std::io::Write as _;

use sympozium_probe::Finding;

use crate::attempt::{Attempt, Input, Start, Verdict};
use crate::sys::Arg;

/// Exit code for a command line that makes no sense.
const USAGE: i32 = 64;
/// Exit code for "could not even try".
const UNAVAILABLE: i32 = 69;

fn main() {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    // Before anything is looked at: it starts the program anew.
    if words.iter().any(|word| word == "overwrite-own-program") && std::env::var_os(attempts::RELOCATED).is_none() {
        attempts::relocate();
    }
    let start = Start {
        pid: std::process::id() as i32,
        parent: sys::call(libc::SYS_getppid, []).unwrap_or(0) as i32,
        inherited: open_descriptors(),
    };
    let code = match words.split_first() {
        Some((first, rest)) if first == "attempt" => attempt_all(&start, rest),
        Some((first, _)) if first == "list" => list(),
        Some((first, rest)) if first == "do" => actions::act(&start, rest),
        _ => usage("nothing to do", "probe list | probe attempt NAME[=ARGUMENT]… | probe do [--marker WORD] ACTION…"),
    };
    std::process::exit(code);
}

/// Asked of every number instead of read from /proc, which a sandbox may not have.
fn open_descriptors() -> Vec<i32> {
    let own = std::env::var(attempts::RELOCATED).ok().and_then(|fd| fd.parse().ok());
    (3..4096)
        .filter(|&fd| Some(fd) != own)
        .filter(|&fd| sys::call(libc::SYS_fcntl, [Arg::Int(fd), Arg::Int(libc::F_GETFD.into())]).is_ok())
        .map(|fd| fd as i32)
        .collect()
}

fn attempt_all(start: &Start, words: &[String]) -> i32 {
    // Looked up before anything runs, so that a misspelt name is never a test that passes.
    let mut asked = Vec::new();
    for word in words {
        let (name, argument) = word.split_once('=').unwrap_or((word, ""));
        let Some((guarantee, attempt)) = attempts::find(name) else {
            return usage(&format!("unknown attempt `{name}`"), "`probe list` names them all");
        };
        let argument = if argument.is_empty() { attempt.default } else { argument };
        if argument.is_empty() && !attempt.argument.is_empty() && !attempt.argument.starts_with('[') {
            return usage(&format!("`{name}` needs an argument"), &format!("{name}={}", attempt.argument));
        }
        asked.push((word, guarantee, attempt, argument));
    }
    for (word, guarantee, attempt, argument) in asked {
        let verdict = match attempt::make(attempt, &Input { start, argument }) {
            Ok(verdict) => verdict,
            Err(error) => {
                say_error(&format!("could not make a process for `{word}`: {error}"));
                return UNAVAILABLE;
            }
        };
        print_line(&finding(word, guarantee, attempt, verdict).to_json().to_string());
    }
    0
}

fn finding(word: &str, guarantee: &str, attempt: &Attempt, verdict: Verdict) -> Finding {
    let (possible, detail) = match verdict {
        Verdict::Possible(detail) => (true, detail),
        Verdict::Refused(detail) => (false, detail),
    };
    Finding {
        attempt: word.to_owned(),
        guarantee: guarantee.to_owned(),
        what: attempt.what.to_owned(),
        possible,
        detail,
    }
}

fn list() -> i32 {
    for (guarantee, rows) in attempts::CATALOGUE {
        print_line(guarantee);
        for row in *rows {
            let call = match row.argument {
                "" => row.name.to_owned(),
                argument if argument.starts_with('[') => {
                    format!("{}[={}", row.name, &argument[1..])
                }
                argument => format!("{}={argument}", row.name),
            };
            print_line(&format!("  {call:<34} {}", row.what));
        }
    }
    print_line("actions");
    for action in actions::ACTIONS {
        let call = format!("{} {}", action.name, action.arguments);
        print_line(&format!("  {call:<34} {}", action.what));
    }
    0
}

/// Prints a line, or ends: a probe whose output is closed cannot report.
fn print_line(line: &str) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(UNAVAILABLE);
    }
}

fn say_error(message: &str) {
    let _ = writeln!(std::io::stderr(), "error: {message}");
}

fn usage(message: &str, hint: &str) -> i32 {
    say_error(message);
    let _ = writeln!(std::io::stderr(), "hint: {hint}");
    USAGE
}
