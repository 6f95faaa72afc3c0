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
use std::process::Command;
use std::time::{Duration, Instant};

/// Starts a program the plain way, without any of our isolation: for what surrounds the thing under test.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where tests start a program around sympozium-exec"
)]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
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
