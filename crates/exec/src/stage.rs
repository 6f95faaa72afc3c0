//! The helper stage: our own binary, executed again, single-threaded and with an empty environment.
//!
//! ```text
//!  executor ──► keeper (builds the world, locks itself down) ──► worker ──► command and its descendants
//! ```
//!
//! The stage builds what the profile asks for once, gives up every power it needed for that, and then
//! forks workers, which inherit all of it for nothing. A world is therefore paid for once, not per command.

pub(crate) mod keeper;
pub(crate) mod oom_score;
pub(crate) mod setup;
pub(crate) mod tree;
pub mod wire;
mod worker;

use std::io;

use crate::sys;

/// What the process is called, and how a binary knows that it is to be the stage.
pub(crate) const STAGE_NAME: &std::ffi::CStr = c"sympozium-sandbox-stage";
/// What the kernel calls the processes of the stage (`/proc/PID/comm`): the keeper and its workers, one of which is above
/// every command of every executor on this machine. A command can give itself this name, but not take it from them.
pub const PROCESS_NAME: &std::ffi::CStr = c"sympozium-stage";
/// The descriptor under which the stage finds its control socket.
pub(crate) const CONTROL_FD: i32 = 3;

/// Runs the helper stage, if this process was started as one, and never returns then.
///
/// Every binary that makes an [`Executor`](crate::Executor) calls this first in `main`, before anything
/// reads input or starts a thread: the executor starts the same binary again for its stage.
pub fn enter_if_asked() {
    let called = std::env::args_os().next();
    if called.is_some_and(|name| name.as_encoded_bytes() == STAGE_NAME.to_bytes()) {
        // A stage started by hand has no control socket and ends here.
        let code = i32::from(run().is_err());
        sys::exit_now(code);
    }
}

fn run() -> io::Result<()> {
    sys::reset_signals();
    // Before anything of the world is there: nothing is ever started below a stage without its name.
    rustix::thread::set_name(PROCESS_NAME)?;
    let control = sys::inherited(CONTROL_FD)?;
    keeper::run(control)
}
