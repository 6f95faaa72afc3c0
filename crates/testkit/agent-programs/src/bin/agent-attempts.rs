//! Restricts itself as the agent does and then attempts to escape: for tests.
//!
//! One line of JSON on standard input lists the roots and the attempts. They are made by the first thread and by a
//! later one, as file tools use. One line of JSON on standard output has the errno of each, 0 for success. Then the
//! process stays until its standard input ends, so that tests can inspect it.
//!
//! With `become` it executes another program instead, before the step that forbids that.
//!
//! As `agent-attempts in-the-agent …` it is the agent with its own command line, and a `read_file` that takes an
//! attempt for a path and returns its errno.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socketpair};
use rustix::process::{DumpableBehavior, Pid, chroot, dumpable_behavior, test_kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sympozium_agent::tools::ToolError;
use sympozium_agent::tools::files::WRITABLE;
use sympozium_agent::tools::native::NativeTool;
use sympozium_agent::{program, restrict};
use sympozium_api::run_plan::Root;
use sympozium_program::Failure;

const MAX_LINE: u64 = 1 << 20;
/// Result of an error without a number.
const UNKNOWN_ERRNO: i32 = -1;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    roots: Vec<Root>,
    image: Option<PathBuf>,
    /// `NAME=ARGUMENT`, see [`attempt`].
    #[serde(default)]
    attempts: Vec<String>,
    #[serde(default)]
    r#become: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    first_thread: BTreeMap<String, i32>,
    later_thread: BTreeMap<String, i32>,
    dumpable: bool,
}

const TOOLS: &[NativeTool] = &[NativeTool {
    name: "read_file",
    run: |_, arguments| {
        let text = arguments.get("path").and_then(Value::as_str);
        let text = text.ok_or_else(|| ToolError("no path".to_owned()))?;
        Ok(attempt_errno(text).to_string())
    },
}];

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == "in-the-agent") {
        let name = OsString::from("agent-runner");
        return program::main_with([name].into_iter().chain(words), TOOLS);
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(),
    }
}

/// In the same order as `program::start`.
fn run() -> Result<(), Failure> {
    restrict::lock_down()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime cannot be started")?;
    runtime.block_on(run_restricted())
}

async fn run_restricted() -> Result<(), Failure> {
    let document = read().context("standard input is no document")?;
    restrict::restrict_files(&document.roots, &WRITABLE, document.image.as_deref())?;
    if let Some((program, arguments)) = document.r#become.split_first() {
        let error = become_program(program, arguments);
        return Err(anyhow::Error::new(error).into());
    }
    restrict::forbid_exec()?;
    let first_thread = attempt_all(&document.attempts);
    let attempts = document.attempts;
    let later = tokio::task::spawn_blocking(move || attempt_all(&attempts));
    let later_thread = later.await.context("the thread")?;
    // Timers work, too.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let dumpable = dumpable_behavior().context("prctl")?;
    print_report(&Report { first_thread, later_thread, dumpable: dumpable != DumpableBehavior::NotDumpable })
        .context("standard output")?;
    io::copy(&mut io::stdin(), &mut io::sink()).context("standard input")?;
    Ok(())
}

fn read() -> anyhow::Result<Document> {
    let mut line = String::new();
    io::stdin().lock().take(MAX_LINE).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

fn print_report(report: &Report) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{}", serde_json::to_string(report)?)?)
}

#[expect(clippy::disallowed_methods, reason = "the process itself becomes the program; nothing is started")]
fn become_program(program: &str, arguments: &[String]) -> io::Error {
    std::process::Command::new(program).args(arguments).exec()
}

fn attempt_all(attempts: &[String]) -> BTreeMap<String, i32> {
    let attempts = attempts.iter();
    attempts.map(|text| (text.clone(), attempt_errno(text))).collect()
}

fn attempt_errno(text: &str) -> i32 {
    match attempt(text) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(UNKNOWN_ERRNO),
    }
}

/// Attempts one operation, and undoes it if it succeeded.
fn attempt(text: &str) -> io::Result<()> {
    let (name, argument) = text.split_once('=').unwrap_or((text, ""));
    // For attempts with two arguments.
    let (one, other) = argument.split_once('>').unwrap_or((argument, ""));
    match name {
        "socket" => {
            let (family, kind) = parse_socket_kind(argument)?;
            socket(family, kind, None)?;
        }
        "socketpair" => {
            let (family, kind) = parse_socket_kind(argument)?;
            socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        }
        "tcp" => drop(TcpStream::connect(argument)?),
        "udp" => drop(UdpSocket::bind(argument)?),
        "unix" => drop(UnixStream::connect(argument)?),
        "abstract" => {
            let address = SocketAddr::from_abstract_name(argument)?;
            drop(UnixStream::connect_addr(&address)?);
        }
        "read" => drop(File::open(argument)?.read(&mut [0])?),
        "list" => drop(fs::read_dir(argument)?),
        "append" => drop(File::options().append(true).open(argument)?),
        "create" => {
            File::create_new(argument)?.write_all(b"x")?;
            fs::remove_file(argument)?;
        }
        "make-directory" => {
            fs::create_dir(argument)?;
            fs::remove_dir(argument)?;
        }
        "remove" => fs::remove_file(argument)?,
        "hard-link" => {
            fs::hard_link(one, other)?;
            fs::remove_file(other)?;
        }
        "rename" => {
            fs::rename(one, other)?;
            fs::rename(other, one)?;
        }
        "read-by-link" => {
            symlink(one, other)?;
            let read = File::open(other).and_then(|mut file| file.read(&mut [0]));
            fs::remove_file(other)?;
            read?;
        }
        "chroot" => chroot(argument)?,
        "mount" => rustix::mount::mount_bind(one, other)?,
        "signal" => {
            let pid = argument.parse().ok().and_then(Pid::from_raw);
            test_kill_process(pid.ok_or(io::ErrorKind::InvalidInput)?)?;
        }
        // No driver has this device number.
        "device" => mknodat(CWD, argument, FileType::CharacterDevice, Mode::RUSR, 0)?,
        "execute" => execute(argument)?,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    }
    Ok(())
}

fn parse_socket_kind(text: &str) -> io::Result<(AddressFamily, SocketType)> {
    let numbers = text.split_once('/').and_then(|(family, kind)| {
        let family = AddressFamily::from_raw(family.parse().ok()?);
        Some((family, SocketType::from_raw(kind.parse().ok()?)))
    });
    numbers.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[expect(clippy::disallowed_methods, reason = "what is tried is whether a program can be started at all")]
fn execute(program: &str) -> io::Result<()> {
    std::process::Command::new(program).spawn()?.wait().map(drop)
}
