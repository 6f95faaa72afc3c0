//! Logging to standard error, by default as one JSON object per line.

use std::io::{self, IsTerminal as _};

use clap::{Args, ValueEnum};

/// What is logged.
#[derive(Debug, Args)]
pub struct LogArguments {
    /// The least important messages that are logged.
    #[arg(long, value_enum, env = "SYMPOZIUM_LOG_LEVEL", default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,
    /// How they are written.
    #[arg(long, value_enum, env = "SYMPOZIUM_LOG_FORMAT", default_value_t = LogFormat::Auto)]
    pub log_format: LogFormat,
}

/// How important a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What is odd, such as refused requests.
    Warn,
    /// Each request.
    Info,
    /// More than that.
    Debug,
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
        }
    }
}

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people on a terminal, JSON anywhere else.
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Starts logging for the whole process. Each program has to keep secrets out of its own messages.
pub fn start_logging(arguments: &LogArguments) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(arguments.log_level))
        .with_target(false)
        // A log that is not read any more is no reason to fail: an error message on stderr would be one.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let json = match arguments.log_format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !io::stderr().is_terminal(),
    };
    // A second call in one process has no effect: tests may do that.
    let _ = if json {
        let format = tracing_subscriber::fmt::format()
            .json()
            .flatten_event(true)
            .with_target(false)
            .with_current_span(false)
            .with_span_list(false);
        tracing::subscriber::set_global_default(subscriber.json().flatten_event(true).event_format(format).finish())
    } else {
        tracing::subscriber::set_global_default(subscriber.compact().finish())
    };
}
