//! Commands about stored runs: `sympozium runs`, `show`, `logs`, `audit`, `rm`, `prune`.
//!
//! They read files and the run's lock; the socket of a running run is used only for its questions, to follow it, and to
//! end it.

pub mod arguments;
pub mod audit;
mod bounded_lines;
pub mod duration;
mod list;
pub mod logs;
mod prune;
mod remove;
pub mod show;
pub mod table;
pub mod transcript;
pub mod view;

pub use audit::audit;
pub use list::list;
pub use logs::logs;
pub use prune::prune;
pub use remove::{display_name, rm};
pub use show::show;

use crate::failure::Failure;
use crate::output::print_stderr;
use sympozium_local::state::StateDirectory;
use sympozium_local::sweep::sweep;

/// Opens the state directory, and removes what killed processes left in it.
fn open_swept_state() -> Result<StateDirectory, Failure> {
    let state = StateDirectory::open()?;
    let hint = "see that the directory is readable, or set SYMPOZIUM_STATE to another";
    let swept = sweep(&state).map_err(|error| Failure::new(error, hint))?;
    for failed in swept.failed {
        print_stderr(&format!("warning: {failed}"));
    }
    Ok(state)
}
