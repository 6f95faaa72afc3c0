//! Runs as commands see them, whichever backend realises them: the events of a run, how it ended, and the store that
//! has it ([`RunStore`]).
//!
//! Commands, and programs that are built on them, use runs only through this crate. It never decides about a run, and
//! prints nothing.

pub mod event;
pub mod event_log;
mod hinted_error;
mod modes;
pub mod receipts;
mod run_end;
mod store;
mod target_flags;
pub mod time;
mod view;

pub use event::{Event, Question, TimedEvent};
pub use event_log::{EventLog, EventReader};
pub use hinted_error::HintedError;
pub use modes::{ApprovalMode, StopLevel};
pub use run_end::RunEnd;
pub use store::{
    Cancellation, Listed, LogError, LogRequest, LogSink, PendingQuestion, Removal, RunDetails, RunRef, RunStore,
    StoredReceipts, VoteChoice, VoteResult, display_name,
};
pub use target_flags::TargetFlags;
pub use view::{RunView, short_uid, state_label};
