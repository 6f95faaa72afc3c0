//! What the program writes about itself: one JSON object a line on standard error, for each event one.
//!
//! Never a password, a key, a path of a request or anything that passes through a tunnel.

use std::io::{self, IsTerminal as _};

use crate::arguments::{LogArguments, LogFormat};

/// Starts logging for the whole process.
pub fn start(arguments: &LogArguments) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(arguments.log_level))
        .with_target(false)
        // A log that nobody reads any more is no reason to fail: telling so on stderr would be one.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let json = match arguments.log_format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !io::stderr().is_terminal(),
    };
    // A second start in one process keeps the first: tests may do that.
    let _ = if json {
        tracing::subscriber::set_global_default(subscriber.json().flatten_event(true).finish())
    } else {
        tracing::subscriber::set_global_default(subscriber.compact().finish())
    };
}
