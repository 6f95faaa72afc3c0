//! Runs one command in one profile, as a JSON document on standard input says, and prints what came of it.
//!
//! With `lockdown` it restricts itself instead, as our other binaries do, and becomes the command.
//!
//! For tests and for trying things out: an executor in a process of its own can be killed, or run as another
//! user. It is also the helper stage for processes whose `main` is not ours (test harnesses).

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sympozium_exec::lockdown::Lockdown;
use sympozium_exec::world::Bind;
use sympozium_exec::{Config, Executor, Floor, Layer, Profile, Request};

/// The largest document that is read.
const MAX_DOCUMENT_BYTES: u64 = 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    profile: Profile,
    argv: Vec<String>,
    #[serde(default)]
    without: BTreeSet<Layer>,
    /// The profile's own floor if absent.
    floor: Option<Floor>,
    #[serde(default)]
    binds: Vec<Bind>,
    working_directory: Option<PathBuf>,
    timeout_millis: Option<u64>,
    grace_millis: Option<u64>,
    lockdown: Option<Kept>,
}

/// What a process that restricts itself keeps.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Result<'a> {
    exit_code: i32,
    stdout: &'a str,
    stderr: &'a str,
    timed_out: bool,
    duration_micros: u128,
    isolation: &'a sympozium_exec::IsolationReport,
}

fn main() -> ExitCode {
    sympozium_exec::stage::enter_if_asked();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("error: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                text.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            let _ = writeln!(io::stderr(), "{text}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    io::stdin()
        .take(MAX_DOCUMENT_BYTES)
        .read_to_string(&mut text)?;
    let document: Document = serde_json::from_str(&text)?;
    if let Some(kept) = document.lockdown {
        return become_command(kept, &document.argv);
    }
    let mut config = Config::new(document.profile).leaving_out(document.without);
    if let Some(floor) = document.floor {
        config.floor = floor;
    }
    for bind in document.binds {
        config = config.bind(bind);
    }
    let executor = Executor::new(config)?;
    let mut request = Request::argv(document.argv);
    request.working_directory = document.working_directory;
    if let Some(millis) = document.timeout_millis {
        request.timeout = Duration::from_millis(millis);
    }
    if let Some(millis) = document.grace_millis {
        request.grace = Duration::from_millis(millis);
    }
    let outcome = executor.run(&request, None)?;
    serde_json::to_writer(
        io::stdout(),
        &Result {
            exit_code: outcome.ending.code(),
            stdout: &outcome.stdout.text(),
            stderr: &outcome.stderr.text(),
            timed_out: outcome.timed_out,
            duration_micros: outcome.duration.as_micros(),
            isolation: &outcome.isolation,
        },
    )?;
    Ok(())
}

/// Restrictions outlive exec, so the command shows what the process could still have done. Being
/// non-dumpable does not, so that is told before.
#[expect(
    clippy::disallowed_methods,
    reason = "the process itself becomes the program; nothing is started"
)]
fn become_command(
    kept: Kept,
    argv: &[String],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let locked_down = Lockdown {
        readable: kept.readable,
        writable: kept.writable,
    }
    .apply()?;
    let dumpable = rustix::process::dumpable_behavior()?;
    let non_dumpable = dumpable == rustix::process::DumpableBehavior::NotDumpable;
    writeln!(
        io::stdout(),
        "{}",
        serde_json::json!({"lockedDown": locked_down, "nonDumpable": non_dumpable})
    )?;
    let (program, arguments) = argv.split_first().ok_or("there is no command")?;
    Err(std::process::Command::new(program)
        .args(arguments)
        .exec()
        .into())
}
