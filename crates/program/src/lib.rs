//! The shell of our long-running programs: logs, failures, signals, probes, leader election, TLS.
//!
//! A crate of its own, because programs do not depend on each other, and the crates below all of them (`api`, `ipc`)
//! must not depend on a command-line parser. It must never contain what only one program needs. The flags for what a
//! program listens on are its own: their variables and defaults differ.
//!
//! It has no Kubernetes client, because most programs must not have one: [`leader`] takes the Lease from a
//! [`leader::LeaseStore`]. TLS needs the feature `tls`, so that the agent and the executor are not built from it.

mod failure;
pub mod files;
pub mod leader;
pub mod listen;
mod log;
pub mod peer_limiter;
pub mod probes;
mod runtime;
mod signals;
#[cfg(feature = "tls")]
pub mod tls_reload;

pub use failure::{Failure, error_chain};
pub use log::{LogArguments, LogFormat, LogLevel, start_logging};
pub use runtime::run_multi_threaded;
pub use signals::{HangupSignal, ShutdownSignals};
