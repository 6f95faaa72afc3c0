//! What a program inherits from the shell that started the tests and must not depend on: ignored signals, locale, terminal.
//!
//! A job in the background of a shell script ignores `SIGINT` and `SIGQUIT`, one under `nohup` ignores `SIGHUP`, and a process
//! keeps across `execve` what it ignores (signal(7)).
#![expect(unsafe_code, reason = "dispositions of signals are read and reset by the C library")]

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::LazyLock;

/// The last of the standard signals.
const LAST_SIGNAL: libc::c_int = 31;

/// Variables that change what programs print: width, colours, language.
const VARIABLES: [&str; 10] = [
    "CLICOLOR_FORCE",
    "COLUMNS",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_NUMERIC",
    "LINES",
    "NO_COLOR",
];

/// Makes a program start as from a shell in the foreground of an ordinary terminal.
pub(crate) fn reset(command: &mut Command) {
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    static IGNORED: LazyLock<Vec<libc::c_int>> = LazyLock::new(ignored);
    // Only where it is needed: with it, std has to fork.
    if IGNORED.is_empty() {
        return;
    }
    let reset = || {
        for &signal in IGNORED.iter() {
            // SAFETY: signal(2) is async-signal-safe, and the number is that of a signal that can be set.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes no other calls than signal(2), and reads a list that is made already.
    unsafe {
        command.pre_exec(reset);
    }
}

/// The signals that this process ignores. Rust itself ignores `SIGPIPE`, and std resets it in children.
fn ignored() -> Vec<libc::c_int> {
    let is_ignored = |signal: &libc::c_int| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the call writes one structure that outlives it; all of its bytes are zero before, which is valid.
        unsafe {
            libc::sigaction(*signal, std::ptr::null(), action.as_mut_ptr()) == 0
                && action.assume_init().sa_sigaction == libc::SIG_IGN
        }
    };
    (1..=LAST_SIGNAL).filter(|signal| *signal != libc::SIGPIPE).filter(is_ignored).collect()
}
