//! The real program, on the machine that runs the tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod approvals;
mod audit;
mod bare;
mod cluster;
mod commands;
mod compose;
mod config;
mod doctor;
mod explain;
mod hostile;
mod local;
mod packs;
mod records;
mod render;
mod runs;
mod samples;
mod scripts;
mod secret;
mod skill;
mod stored;
mod terminal;
mod validate;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sympozium_testkit::command;

/// The program, started in the directory of the fixtures, so that their paths are relative.
fn program(arguments: &[&str]) -> Command {
    let mut program = command(env!("CARGO_BIN_EXE_sympozium"));
    program.args(arguments).current_dir(fixtures());
    program
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn sympozium(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// The same, with `input` as standard input.
fn sympozium_reading(arguments: &[&str], input: &[u8]) -> Output {
    let mut child =
        program(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The program may close its input before everything is written.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Exit code and output, for a snapshot.
fn format_output(output: &Output) -> String {
    let code = output.status.code().unwrap();
    let (stdout, stderr) = (stdout(output), stderr(output));
    format!("exit code: {code}\n----- stdout -----\n{stdout}----- stderr -----\n{stderr}")
}
