//! What an author can set for one run, by variables in the run's `env`. The names are those that agents of this kind have had;
//! none of them widens anything: the plan's limits hold as well.

use std::time::Duration;

use sympozium_api::run_plan::AgentView;

/// Bytes of the result of one call that are kept for the model, where nobody says.
pub const RESULT_BYTES: usize = 51_200;
/// Fewer make no sense: a line on how to read on must fit.
const LEAST_RESULT_BYTES: usize = 1 << 10;
/// Bytes of results in the conversation from which on the oldest are left out. About 100,000 tokens.
pub const HISTORY_BYTES: usize = 400 << 10;
/// Results that stay whatever they weigh.
pub const KEPT_RESULTS: usize = 3;
/// Tries of one request after the first.
pub const RETRIES: u32 = 5;
/// How long one request to the model may take, from its first byte to the last of the answer.
pub const REQUEST_TIME: Duration = Duration::from_secs(10 * 60);

/// How the agent works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rounds of the loop.
    pub iterations: u32,
    /// Bytes of the result of one call.
    pub result_bytes: usize,
    /// Bytes of results from which on the oldest are left out.
    pub history_bytes: usize,
    /// Down to how many, so that it is seldom done: providers cache what does not change.
    pub history_low_bytes: usize,
    /// Results that stay whatever they weigh.
    pub kept_results: usize,
    /// Tries of one request after the first.
    pub retries: u32,
    /// How long one request may take.
    pub request_time: Duration,
}

/// A variable that says something that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is `{value}`, and must be {wanted}")]
pub struct BadVariable {
    /// The variable.
    pub variable: &'static str,
    /// What it says.
    pub value: String,
    /// What it may say.
    pub wanted: &'static str,
}

/// The variables.
pub mod variable {
    /// Rounds of the loop.
    pub const ITERATIONS: &str = "MAX_TOOL_ITERATIONS";
    /// Bytes of the result of one call.
    pub const RESULT_BYTES: &str = "CONTEXT_TOOL_RESULT_MAX_BYTES";
    /// Bytes of results in the conversation.
    pub const HISTORY_BYTES: &str = "CONTEXT_HISTORY_BUDGET_BYTES";
    /// Down to how many.
    pub const HISTORY_LOW_BYTES: &str = "CONTEXT_HISTORY_BUDGET_LOW_BYTES";
    /// Results that stay.
    pub const KEPT_RESULTS: &str = "CONTEXT_KEEP_RECENT_RESULTS";
    /// Tries.
    pub const RETRIES: &str = "LLM_MAX_RETRIES";
    /// How long one request may take, as `90s` or `5m`.
    pub const REQUEST_TIME: &str = "LLM_REQUEST_TIMEOUT";
}

const COUNT: &str = "a number";
const TIME: &str = "a time such as `90s` or `5m`";

impl Settings {
    /// The settings of a view, with what these variables say.
    ///
    /// # Errors
    ///
    /// When one makes no sense.
    pub fn read(view: &AgentView, get: impl Fn(&str) -> Option<String>) -> Result<Self, BadVariable> {
        // Zero is how these variables have always said "as usual".
        let number = |variable, usual: usize| match get(variable).as_deref().map(str::trim) {
            None | Some("" | "0") => Ok(usual),
            Some(value) => value.parse().map_err(|_| bad(variable, value, COUNT)),
        };
        let count = |variable, usual: u32| match get(variable).as_deref().map(str::trim) {
            None | Some("") => Ok(usual),
            Some(value) => value.parse().map_err(|_| bad(variable, value, COUNT)),
        };
        let planned = view.limits.iterations.max(1);
        let history_bytes = number(variable::HISTORY_BYTES, HISTORY_BYTES)?;
        let history_low_bytes = number(variable::HISTORY_LOW_BYTES, history_bytes / 2)?;
        let request_time = match get(variable::REQUEST_TIME).as_deref().map(str::trim) {
            None | Some("" | "0" | "0s") => REQUEST_TIME,
            Some(value) => sympozium_api::duration::DurationText::new(value)
                .to_duration()
                .map_err(|_| bad(variable::REQUEST_TIME, value, TIME))?,
        };
        Ok(Self {
            iterations: count(variable::ITERATIONS, planned)?.clamp(1, planned),
            result_bytes: number(variable::RESULT_BYTES, RESULT_BYTES)?.max(LEAST_RESULT_BYTES),
            history_bytes,
            history_low_bytes: history_low_bytes.min(history_bytes),
            kept_results: number(variable::KEPT_RESULTS, KEPT_RESULTS)?,
            retries: count(variable::RETRIES, RETRIES)?,
            request_time,
        })
    }
}

fn bad(variable: &'static str, value: &str, wanted: &'static str) -> BadVariable {
    BadVariable { variable, value: value.chars().take(100).collect(), wanted }
}

#[cfg(test)]
mod tests;
