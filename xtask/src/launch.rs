//! What the programs that the tooling starts must not inherit from the shell that started the tooling.
//!
//! A verdict must not depend on that. A shell starts its background jobs with SIGINT and SIGQUIT ignored, `nohup` ignores SIGHUP,
//! and what is ignored stays ignored in every descendant; the same holds for limits, the umask, the locale and the terminal.

use std::ffi::OsStr;
use std::process::Command;

use crate::process::command;

/// Resets umask and limits, dies with the thread that started it, and gives every signal its default disposition; then the process
/// becomes the program. A limit that is lower by force stays as it is.
const RESET: &str = r#"
umask 022
for limit in '-c 0' '-n 4096' '-s 8192' '-f unlimited' '-t unlimited' '-v unlimited'; do
    ulimit -S $limit 2>/dev/null || :
done
exec "$@"
"#;

/// Variables that change what programs print.
const TERMINAL: &[&str] = &[
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLORTERM",
    "COLUMNS",
    "FORCE_COLOR",
    "KUBECONFIG",
    "LANG",
    "LANGUAGE",
    "LINES",
    "NO_COLOR",
    "POSIXLY_CORRECT",
];

/// What a program is, for those who share the machine and the terminal with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Cargo and the like: Ctrl-C ends it and all that it started.
    Tool,
    /// The same, with what others leave of the processors.
    Background,
    /// Tests: in a session of their own, so that they have no terminal.
    Test,
}

impl Role {
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Tool => &[],
            Self::Background => &["nice", "-n", "19"],
            Self::Test => &["setsid"],
        }
    }
}

/// `program` with its arguments, variables and directory, started from a known state.
pub fn launch(program: &Command, role: Role) -> Command {
    let mut launched = command("sh");
    launched.args(["-c", RESET, "sh"]).args(role.words());
    launched.args(["setpriv", "--pdeathsig", "KILL"]);
    launched.args(["env", "--default-signal", "--"]);
    launched.arg(program.get_program()).args(program.get_args());
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LC_") {
            launched.env_remove(name);
        }
    }
    for name in TERMINAL {
        launched.env_remove(name);
    }
    launched.env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
    launched.env("TERM", "dumb");
    for (name, value) in program.get_envs() {
        set(&mut launched, name, value);
    }
    if let Some(directory) = program.get_current_dir() {
        launched.current_dir(directory);
    }
    launched
}

fn set(command: &mut Command, name: &OsStr, value: Option<&OsStr>) {
    match value {
        Some(value) => command.env(name, value),
        None => command.env_remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell line the way tests are run, started with everything turned round.
    fn printed(line: &str) -> String {
        let mut program = command("sh");
        program.args(["-c", line]).env("OWN", "kept");
        let launched = launch(&program, Role::Test);
        let mut hostile = command("sh");
        hostile.args(["-c", "trap '' HUP INT QUIT TERM USR1; umask 077; ulimit -S -n 64; exec \"$@\"", "sh"]);
        hostile.arg(launched.get_program()).args(launched.get_args());
        hostile.env("LANG", "de_DE.UTF-8").env("COLUMNS", "20");
        for (name, value) in launched.get_envs() {
            set(&mut hostile, name, value);
        }
        let output = hostile.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn signals_that_were_ignored_are_not() {
        let status = printed("grep SigIgn /proc/self/status");
        let mask = status.strip_prefix("SigIgn:\t").unwrap();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        // The C library reserves signals 32 and 33; they cannot be set.
        assert_eq!(mask & 0x7fff_ffff, 0, "{status}");
    }

    #[test]
    fn umask_limits_locale_and_terminal_are_known() {
        assert_eq!(
            printed(
                "umask; ulimit -S -n; echo $LC_ALL $LANG $COLUMNS $TERM $OWN; (: </dev/tty) 2>/dev/null || echo none"
            )
            .lines()
            .collect::<Vec<_>>(),
            ["0022", "4096", "C.UTF-8 dumb kept", "none"]
        );
    }
}
