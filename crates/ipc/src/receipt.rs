//! Receipts: one line of JSON for each decision and each action of a run, each with the hash of the previous line.
//!
//! The bridge writes them, not the agent. The first line contains the digest of the plan, and the hash of the last one
//! leaves the run with every report: a changed, moved or missing line is detected, and so is a truncated end. [`Chain`]
//! produces lines, [`verify`] reads them; neither performs I/O.

mod chain;
mod event;
#[cfg(test)]
mod tests;
mod verify;

pub use chain::{AddError, Chain, Line};
pub use event::{
    Actor, CallDecision, Event, ForeignKind, MAX_NUMBER, MAX_TEXT, Outcome, OutputSize, Receipt, ReportedIsolation,
    to_receipt_text,
};
pub use verify::{ChainError, LineError, VerifiedChain, Verifier, verify};

/// The domain of the hash of a line.
pub const DOMAIN: &str = "sympozium.ai/receipt/v1";
/// Limit for a line, in bytes.
pub const MAX_LINE_BYTES: usize = sympozium_api::limits::RECEIPT_LINE;
