//! What is known of a run, whichever backend realises it: its events and how it ended.
//!
//! Commands, and programs that are built on them, see runs through this crate alone. It never decides about a run, and
//! prints nothing.

pub mod event;
pub mod event_log;
mod hinted_error;
mod modes;
mod run_end;
pub mod time;

pub use event::{Event, Question, TimedEvent};
pub use event_log::{EventLog, EventReader};
pub use hinted_error::HintedError;
pub use modes::{ApprovalMode, StopLevel};
pub use run_end::RunEnd;
