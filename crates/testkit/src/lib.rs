//! What the tests of every crate share; a dev-dependency, never part of a product.
//!
//! - [`probe`]: the hostile program that runs *inside* a sandbox and reports what it could do.
//! - [`skip!`]: a test that this machine cannot run says so and is counted.
//! - [`processes`], [`wait_until`]: who is still alive, and waiting without sleeping.
//! - [`as_user`]: what must hold for an ordinary user, tested by root as well.
//! - [`cluster`]: a real Kubernetes, shared by the tests of one run.
//! - [`daemon`]: a program of ours with probes, as a child.
//! - [`objects`]: objects as JSON, and what they lost on the way.
//! - [`cases`]: whole matrices in `make test-full`, a seeded sample of them otherwise.
//! - [`runs`]: runs made from a number, with everything around them.
//! - [`replay`]: the fuzz targets of a crate, on stable.
//! - [`ipc_cases`]: the file protocol of skill sidecars, for any executor.
//! - [`model_server`]: a stand-in for a hosted model, by the real wire formats.
//! - [`bench`]: the rows that a bench program writes.
//! - [`static_build`]: binaries that run in an empty root.
//! - [`terminal`]: a terminal with a person in front of it.

pub mod as_user;
pub mod bench;
pub mod cases;
pub mod cluster;
pub mod daemon;
mod inherited;
pub mod ipc_cases;
pub mod model_server;
pub mod objects;
pub mod probe;
pub mod processes;
pub mod replay;
pub mod runs;
pub mod skips;
pub mod static_build;
pub mod sysv;
pub mod terminal;

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Starts a program the plain way, without any of our isolation: for what surrounds the thing under test.
///
/// It starts as from a shell in the foreground, however the tests were started: no signal is ignored, and neither the locale
/// nor the width of a terminal is inherited.
#[expect(clippy::disallowed_methods, reason = "the one place where tests start a program around sympozium-exec")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    inherited::reset(&mut command);
    command
}

/// Copies a program that will be executed.
///
/// By another process: whatever another test is starting has our descriptors for a moment, and a file that any process
/// has open for writing cannot be executed (`ETXTBSY`, execve(2)).
///
/// # Errors
///
/// When it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) -> io::Result<()> {
    ensure_success("copying", to, command("cp").args(["--preserve=mode", "--"]).arg(from).arg(to).status()?)
}

/// Writes a script that will be executed, by another process as well.
///
/// # Errors
///
/// When it cannot be written.
pub fn write_program(to: &Path, content: &str) -> io::Result<()> {
    let mut writer = command("sh");
    writer.args(["-c", r#"cat > "$0" && chmod 755 "$0""#]).arg(to).stdin(Stdio::piped());
    let mut writer = writer.spawn()?;
    if let Some(mut stdin) = writer.stdin.take() {
        stdin.write_all(content.as_bytes())?;
    }
    ensure_success("writing", to, writer.wait()?)
}

fn ensure_success(what: &str, path: &Path, status: ExitStatus) -> io::Result<()> {
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{what} {}: {status}", path.display()))) }
}

/// Waits until `condition` holds and says whether it did by the deadline.
///
/// The condition is asked at once, every 2 ms, and a last time at the deadline, so a starved test machine does not
/// turn a slow yes into a no.
pub fn wait_until(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + deadline;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return condition();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Deadlines for something that has to happen before a deadline which the test itself sets: `first`, and then ever longer
/// ones. A test tries them in turn, and goes on to the next only when the machine was too slow for this one.
///
/// ```
/// use std::time::Duration;
/// use sympozium_testkit::growing;
///
/// let was_in_time = growing(Duration::from_millis(100)).any(|limit| limit > Duration::from_millis(300));
/// assert!(was_in_time);
/// ```
pub fn growing(first: Duration) -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(first), |last| Some(*last * GROWTH)).take_while(|limit| *limit <= LONGEST_LIMIT)
}

/// From one deadline of [`growing`] to the next.
const GROWTH: u32 = 6;
/// A machine that is too slow for this is not tested on.
const LONGEST_LIMIT: Duration = Duration::from_secs(240);
