//! Settings from variables in the run's `env`. The names are those of earlier agents; none of them widens a limit of
//! the plan.

use std::time::Duration;

use sympozium_api::run_plan::AgentView;

pub const RESULT_BYTES: usize = 51_200;
/// Less would not leave room for the note on how to read on.
const MIN_RESULT_BYTES: usize = 1 << 10;
/// About 100,000 tokens.
pub const HISTORY_BYTES: usize = 400 << 10;
/// Newest results that are never elided.
pub const KEPT_RESULTS: usize = 3;
pub const RETRIES: u32 = 5;
/// From the first byte of the request to the last of the response.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub iterations: u32,
    pub result_bytes: usize,
    /// Bytes of results in the conversation above which the oldest are elided.
    pub history_bytes: usize,
    /// Elides down to this, so that it happens seldom: providers cache unchanged prefixes.
    pub history_low_bytes: usize,
    /// Newest results that are never elided.
    pub kept_results: usize,
    pub retries: u32,
    pub request_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is `{value}`, and must be {expected}")]
pub struct InvalidVariable {
    pub variable: &'static str,
    pub value: String,
    pub expected: &'static str,
}

pub mod variable {
    pub const ITERATIONS: &str = "MAX_TOOL_ITERATIONS";
    pub const RESULT_BYTES: &str = "CONTEXT_TOOL_RESULT_MAX_BYTES";
    pub const HISTORY_BYTES: &str = "CONTEXT_HISTORY_BUDGET_BYTES";
    pub const HISTORY_LOW_BYTES: &str = "CONTEXT_HISTORY_BUDGET_LOW_BYTES";
    pub const KEPT_RESULTS: &str = "CONTEXT_KEEP_RECENT_RESULTS";
    pub const RETRIES: &str = "LLM_MAX_RETRIES";
    /// How long one request may take, as `90s` or `5m`.
    pub const REQUEST_TIMEOUT: &str = "LLM_REQUEST_TIMEOUT";
}

const NUMBER: &str = "a number";
const DURATION: &str = "a time such as `90s` or `5m`";

impl Settings {
    /// The settings of a view, adjusted by environment variables.
    pub fn from_env(view: &AgentView, get: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidVariable> {
        // Zero means the default, as in earlier agents.
        let number = |variable, default: usize| match get(variable).as_deref().map(str::trim) {
            None | Some("" | "0") => Ok(default),
            Some(value) => value.parse().map_err(|_| invalid(variable, value, NUMBER)),
        };
        let count = |variable, default: u32| match get(variable).as_deref().map(str::trim) {
            None | Some("") => Ok(default),
            Some(value) => value.parse().map_err(|_| invalid(variable, value, NUMBER)),
        };
        let planned = view.limits.iterations.max(1);
        let history_bytes = number(variable::HISTORY_BYTES, HISTORY_BYTES)?;
        let history_low_bytes = number(variable::HISTORY_LOW_BYTES, history_bytes / 2)?;
        let request_timeout = match get(variable::REQUEST_TIMEOUT).as_deref().map(str::trim) {
            None | Some("" | "0" | "0s") => REQUEST_TIMEOUT,
            Some(value) => sympozium_api::duration::DurationText::new(value)
                .to_duration()
                .map_err(|_| invalid(variable::REQUEST_TIMEOUT, value, DURATION))?,
        };
        Ok(Self {
            iterations: count(variable::ITERATIONS, planned)?.clamp(1, planned),
            result_bytes: number(variable::RESULT_BYTES, RESULT_BYTES)?.max(MIN_RESULT_BYTES),
            history_bytes,
            history_low_bytes: history_low_bytes.min(history_bytes),
            kept_results: number(variable::KEPT_RESULTS, KEPT_RESULTS)?,
            retries: count(variable::RETRIES, RETRIES)?,
            request_timeout,
        })
    }
}

fn invalid(variable: &'static str, value: &str, expected: &'static str) -> InvalidVariable {
    InvalidVariable { variable, value: value.chars().take(100).collect(), expected }
}

#[cfg(test)]
mod tests;
