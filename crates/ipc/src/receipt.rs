//! Receipts: one line of JSON for each decision and each action of a run, each with the hash of the line before.
//!
//! The bridge writes them, not the agent. The first line follows from the digest of the plan, and the hash of the last one
//! leaves the run with every report: a line that was changed, moved or left out shows, and so does an end that was cut
//! off. [`Chain`] makes lines, [`verify`] reads them; neither does any I/O.

mod chain;
mod event;
#[cfg(test)]
mod tests;
mod verify;

pub use chain::{Chain, Line, TooLong};
pub use event::{
    Actor, Decided, Event, ForeignKind, IsolationSeen, MAX_NUMBER, MAX_TEXT, Outcome, Receipt, Transferred, shortened,
};
pub use verify::{Broken, Problem, Verified, Verifier, verify};

/// The domain of the hash of a line.
pub const DOMAIN: &str = "sympozium.ai/receipt/v1";
/// Most bytes of a line.
pub const MAX_LINE_BYTES: usize = sympozium_api::limits::RECEIPT_LINE;
