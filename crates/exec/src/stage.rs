//! The helper stage: our own binary, executed again, single-threaded and with an empty environment.
//!
//! ```text
//!  executor ──► keeper (builds the sandbox, locks itself down) ──► worker ──► command and its descendants
//! ```
//!
//! The stage builds what the profile requires once, gives up every power that it needed for that, and then forks
//! workers, which inherit all of it at no cost. So a sandbox is built once, not per command.

pub(crate) mod keeper;
pub(crate) mod oom_score;
pub(crate) mod setup;
pub(crate) mod tree;
pub mod wire;
mod worker;

use std::io;

use crate::sys;

/// The process's `argv[0]`, by which a binary detects that it is the stage.
pub(crate) const STAGE_NAME: &std::ffi::CStr = c"sympozium-sandbox-stage";
/// The kernel's name of the processes of the stage (`/proc/PID/comm`): the keeper and its workers, one of which is the
/// ancestor of every command of every executor on this machine. A command can give itself this name, but not take it
/// from them.
pub const PROCESS_NAME: &std::ffi::CStr = c"sympozium-stage";
/// The number of the control socket's descriptor in the stage.
pub(crate) const CONTROL_FD: i32 = 3;

/// Runs the helper stage, if this process was started as one, and does not return then.
///
/// Every binary that creates an [`Executor`](crate::Executor) calls this first in `main`, before it reads input or
/// starts a thread: the executor starts the same binary again for its stage.
pub fn enter_if_asked() {
    let called = std::env::args_os().next();
    if called.is_some_and(|name| name.as_encoded_bytes() == STAGE_NAME.to_bytes()) {
        // A stage that was started by hand has no control socket and ends here.
        let code = i32::from(run().is_err());
        sys::exit_now(code);
    }
}

fn run() -> io::Result<()> {
    sys::reset_signals();
    // Before the sandbox is built: no process is ever started below a stage without its name.
    rustix::thread::set_name(PROCESS_NAME)?;
    let control = sys::take_inherited_fd(CONTROL_FD)?;
    keeper::run(control)
}
