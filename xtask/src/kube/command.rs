//! The one place of the harness that starts other programs.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// How much of a failed program's error output is repeated in our message.
const ERROR_TAIL_BYTES: usize = 2000;

/// A command with no standard input; the caller adds the rest.
#[expect(
    clippy::disallowed_methods,
    reason = "the harness starts system tools and daemons by name; nothing here runs an agent's command"
)]
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null());
    command
}

/// A command from a line of plain words, for the many short calls of system tools.
pub fn line(text: &str) -> Command {
    let mut words = text.split_ascii_whitespace();
    let mut command = program(words.next().unwrap_or("true"));
    command.args(words);
    command
}

/// Runs to the end and gives what was printed; a failure carries the tail of the error output.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.output().with_context(|| format!("cannot start {shown}"))?;
    if !output.status.success() {
        bail!("{shown} failed ({}): {}", output.status, error_tail(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs to the end where only success matters.
pub fn check(text: &str) -> Result<()> {
    output(&mut line(text)).map(drop)
}

/// Whether the command runs and succeeds; used for questions whose "no" is an ordinary answer.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Whether a program of that name is on the search path (`/usr/sbin` and `/sbin` included, where root's tools are).
pub fn on_path(name: &str) -> bool {
    search_path().split(':').any(|folder| Path::new(folder).join(name).is_file())
}

/// The search path for system tools.
pub fn search_path() -> String {
    let inherited = std::env::var("PATH").unwrap_or_default();
    format!("{inherited}:/usr/sbin:/sbin:/usr/bin:/bin")
}

fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn error_tail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    let start = text.len().saturating_sub(ERROR_TAIL_BYTES);
    let start = (start..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    text[start..].to_owned()
}
