//! Runs one command in one profile, as described by a JSON document on standard input, and prints the result.
//!
//! With `lockdown` it restricts itself instead, like our other binaries, and executes the command in its place. Started
//! as `exec-run take-secret NAME` it takes a variable out of its environment and waits to be inspected.
//!
//! For tests and experiments: an executor in a separate process can be killed, or run as another user. It is also the
//! helper stage for processes whose `main` is not ours (test harnesses).

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde::{Deserialize, Serialize};
use sympozium_exec::layout::Bind;
use sympozium_exec::lockdown::Lockdown;
use sympozium_exec::{Config, Executor, Floor, Layer, Profile, Request};

/// Limit for the document, in bytes.
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
    lockdown: Option<LockdownSpec>,
}

/// What a process that restricts itself keeps.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LockdownSpec {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    #[serde(default)]
    tcp_connect: Vec<u16>,
    /// Apply what is available instead of requiring everything.
    #[serde(default)]
    available: bool,
    /// Behave as on a kernel without Landlock.
    #[serde(default)]
    without_landlock: bool,
    /// Also refuse new listeners.
    #[serde(default)]
    stop_listening: bool,
    /// With a second thread, which must be detected.
    #[serde(default)]
    with_thread: bool,
    /// Then narrow to these paths, one after the other.
    #[serde(default)]
    narrowed: Vec<NarrowedPaths>,
    /// With a second thread from the lock-down on.
    #[serde(default)]
    narrow_with_thread: bool,
    /// Also refuse to execute programs, including the command.
    #[serde(default)]
    stop_executing: bool,
}

/// The paths that are left after narrowing.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NarrowedPaths {
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunResult<'a> {
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["take-secret", name] => return take_secret(name),
        ["take-secret", name, "with-thread"] => {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || ended.recv());
            let taken = take_secret(name);
            drop((end, thread));
            return taken;
        }
        _ => return Err("only `take-secret NAME` can be asked for by words".into()),
    }
    let mut text = String::new();
    io::stdin().take(MAX_DOCUMENT_BYTES).read_to_string(&mut text)?;
    let document: Document = serde_json::from_str(&text)?;
    if let Some(kept) = document.lockdown {
        return become_command(kept, &document.argv);
    }
    let mut config = Config::new(document.profile).without_layers(document.without);
    if let Some(floor) = document.floor {
        config.floor = floor;
    }
    for bind in document.binds {
        config = config.with_bind(bind);
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
        &RunResult {
            exit_code: outcome.termination.exit_code(),
            stdout: &outcome.stdout.text(),
            stderr: &outcome.stderr.text(),
            timed_out: outcome.timed_out,
            duration_micros: outcome.duration.as_micros(),
            isolation: &outcome.isolation,
        },
    )?;
    Ok(())
}

/// Prints the secret backwards, so that the value itself is in this process only where `take` left it; drops it after a
/// line on standard input, and ends after another.
fn take_secret(name: &str) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let secret = sympozium_exec::secret_env::take(name)?;
    let backwards: Option<Vec<u8>> = (secret.as_ref()).map(|it| it.iter().rev().copied().collect());
    let backwards = backwards.map(String::from_utf8).transpose()?;
    let mut lines = io::stdin().lines();
    let told = serde_json::json!({"taken": backwards, "left": std::env::var(name).ok()});
    writeln!(io::stdout(), "{told}")?;
    lines.next().transpose()?;
    drop(secret);
    writeln!(io::stdout(), "dropped")?;
    lines.next().transpose()?;
    Ok(())
}

/// Restrictions outlive exec, so the command shows what the process could still have done. Being non-dumpable does not,
/// so that is printed before.
#[expect(clippy::disallowed_methods, reason = "the process itself becomes the program; nothing is started")]
fn become_command(kept: LockdownSpec, argv: &[String]) -> std::result::Result<(), Box<dyn std::error::Error>> {
    if kept.without_landlock {
        hide_landlock()?;
    }
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = (kept.with_thread).then(|| std::thread::spawn(move || ended.recv()));
    let lockdown = Lockdown { readable: kept.readable, writable: kept.writable, tcp_connect: kept.tcp_connect };
    let locked_down = if kept.available { lockdown.apply_available()? } else { lockdown.apply()? };
    drop((end, thread));
    if kept.stop_listening {
        sympozium_exec::lockdown::stop_listening()?;
    }
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = (kept.narrow_with_thread).then(|| std::thread::spawn(move || ended.recv()));
    for paths in &kept.narrowed {
        sympozium_exec::lockdown::narrow(&paths.readable, &paths.writable)?;
    }
    drop((end, thread));
    if kept.stop_executing {
        sympozium_exec::lockdown::stop_executing()?;
    }
    let dumpable = rustix::process::dumpable_behavior()?;
    let non_dumpable = dumpable == rustix::process::DumpableBehavior::NotDumpable;
    writeln!(
        io::stdout(),
        "{}",
        serde_json::json!({
            "lockedDown": locked_down,
            "nonDumpable": non_dumpable,
            // Our programs have threads after the lock-down.
            "threads": std::thread::spawn(|| true).join().is_ok(),
            "listensUnbound": listens_unbound(),
            "coreLimit": rustix::process::getrlimit(rustix::process::Resource::Core).maximum,
        })
    )?;
    let (program, arguments) = argv.split_first().ok_or("there is no command")?;
    Err(std::process::Command::new(program).args(arguments).exec().into())
}

/// Whether a TCP socket that was never bound can be made to listen.
fn listens_unbound() -> bool {
    use rustix::net::{AddressFamily, SocketType, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None);
    socket.is_ok_and(|socket| listen(&socket, 1).is_ok())
}

/// Makes calls that ask for Landlock fail as on a kernel without it.
fn hide_landlock() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let calls = [(libc::SYS_landlock_create_ruleset, Vec::new())];
    let filter = SeccompFilter::new(
        calls.into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)?;
    Ok(())
}
