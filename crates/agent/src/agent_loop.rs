//! The loop: send the conversation to the model, run its tool calls, add their results, until it answers.
//!
//! Everything is limited: rounds, time, tokens, retries, requests after an empty answer. Near a limit the model is
//! asked to answer with what it has, without tools; only if it does not, the run fails.

use std::sync::Arc;
use std::time::Instant;

use sympozium_api::run_plan::AgentView;
use sympozium_api::text::is_prose;
use sympozium_ipc::door::AgentResult;

use crate::context::{elide_results, truncate_with_note};
use crate::conversation::{Conversation, EncodedResult};
use crate::door::{Door, DoorError};
use crate::loop_guard::LoopGuard;
use crate::model::{self, Model, ModelResponse, StopReason, ToolChoice, ToolOutcome};
use crate::model_client::{ModelClient, ModelError};
use crate::prompt;
use crate::run_clock::RunClock;
use crate::settings::Settings;
use crate::status::Status;
use crate::tool_calls::{CallResult, CallsError, ToolCaller};
use crate::tools::native::NativeTools;
use crate::transcript::{Transcript, TranscriptLine, raw_message};

/// How often a model that answers with nothing is asked again.
const MAX_NUDGES: u32 = 2;
/// How often a response that hit the output limit is continued.
const MAX_CONTINUATIONS: u32 = 4;
/// The model must answer when this many tenths of the run's tokens are used.
const TOKEN_LIMIT_TENTHS: u64 = 9;
/// Estimate for providers that report no usage.
const BYTES_PER_TOKEN: u64 = 4;
/// Bytes of the model's last text that a failure quotes.
const MAX_LAST_TEXT: usize = 2 << 10;

const EMPTY_ANSWER_PROMPT: &str = "Your last answer was empty. Call a tool, or answer the task in plain words.";
const CONTINUE_PROMPT: &str =
    "Your last answer was cut off because it was too long. Go on exactly where it stopped, without repeating anything.";
const FINAL_ROUND_PROMPT: &str =
    "There is no more room for tools in this run. Answer the task now with what you know, and say what is missing.";
const CALL_REJECTED: &str =
    "the call was not made: there is no more room for tools in this run; answer the task now with what you know";
const TRUNCATED_NOTE: &str = "(The model stopped here: its answer was longer than it may be.)";
const DROPPED_CALLS_NOTE: &str =
    "(Your answer had more calls than can be made at once. Make the others in your next answers.)";

pub struct AgentLoop {
    view: AgentView,
    system: String,
    settings: Settings,
    clock: Arc<RunClock>,
    door: Door,
    model: Box<dyn Model>,
    caller: Arc<ToolCaller>,
    status: Arc<Status>,
    transcript: Arc<Transcript>,
    conversation: Conversation,
    guard: LoopGuard,
    /// Tokens so far, and those of the last request: the next one costs about as much.
    used_tokens: u64,
    last_request_tokens: u64,
    /// The answer so far, while it is continued over several responses.
    partial_answer: String,
    /// The last text of the model that was not empty.
    last_text: String,
    nudges: u32,
    continuations: u32,
    /// The limit because of which the model was asked to answer.
    limit: Option<LimitReached>,
    /// Whether the model called tools after that.
    ignored_limit: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitReached {
    Rounds,
    Time,
    Tokens,
}

#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    BridgeGone(DoorError),
}

impl From<ModelError> for LoopError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::BridgeGone(error) => Self::BridgeGone(error),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<CallsError> for LoopError {
    fn from(error: CallsError) -> Self {
        match error {
            CallsError::BridgeGone(error) => Self::BridgeGone(error),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl AgentLoop {
    pub fn new(
        view: AgentView,
        settings: Settings,
        native: NativeTools,
        door: Door,
        clock: Arc<RunClock>,
        status: Arc<Status>,
        transcript: Arc<Transcript>,
    ) -> Self {
        let system = prompt::system_prompt(&view, settings.iterations);
        let model = model::for_view(&view, &system);
        let caller = ToolCaller::new(
            door.clone(),
            native,
            &view.tools,
            view.limits.concurrent_tool_calls as usize,
            Arc::clone(&status),
        );
        Self {
            view,
            system,
            settings,
            clock,
            door,
            model,
            caller: Arc::new(caller),
            status,
            transcript,
            conversation: Conversation::default(),
            guard: LoopGuard::default(),
            used_tokens: 0,
            last_request_tokens: 0,
            partial_answer: String::new(),
            last_text: String::new(),
            nudges: 0,
            continuations: 0,
            limit: None,
            ignored_limit: false,
        }
    }

    /// To flush permit reports when the run is cancelled.
    pub fn caller(&self) -> Arc<ToolCaller> {
        Arc::clone(&self.caller)
    }

    /// Runs the loop to its result, which the caller must send to the bridge.
    pub async fn run(&mut self) -> Result<AgentResult, DoorError> {
        let max_bytes = usize::try_from(self.view.limits.result_bytes).unwrap_or(usize::MAX);
        let result = match self.run_rounds().await {
            Ok(text) => AgentResult::Answer { text: truncate_with_note(without_hidden(text), max_bytes) },
            Err(LoopError::Failed(reason)) => AgentResult::Failure {
                error: truncate_with_note(without_hidden(self.with_last_text(reason)), max_bytes),
            },
            Err(LoopError::BridgeGone(error)) => return Err(error),
        };
        self.caller.flush_reports().await;
        Ok(result)
    }

    async fn run_rounds(&mut self) -> Result<String, LoopError> {
        let task = prompt::task_message(&self.view);
        if task.trim().is_empty() {
            let reason = "there is no task: the run's `spec.task` is empty".to_owned();
            return Err(LoopError::Failed(reason));
        }
        let line = TranscriptLine::Task { system: &self.system, task: &task };
        self.transcript.add(&line).await;
        self.conversation.push_message(self.model.user_message(&task));
        let mut round = 0;
        // One extra round for a model that calls tools although it was asked to answer.
        while round < self.settings.iterations || self.ignored_limit && round == self.settings.iterations {
            round += 1;
            let choice = self.tool_choice(round);
            self.status.report(&format!("round {round}: asking the model"));
            let response = self.complete(round, choice).await?;
            if !response.text.trim().is_empty() {
                self.last_text.clone_from(&response.text);
            }
            if let StopReason::Refused(reason) = &response.stop {
                return Err(LoopError::Failed(format!("the model refused: {reason}")));
            }
            if response.calls.is_empty() {
                if let Some(text) = self.finish_answer(response)? {
                    return Ok(text);
                }
                continue;
            }
            match choice {
                ToolChoice::Auto => {
                    let results = self.caller.run_all(&response.calls, &mut self.guard).await?;
                    self.record_results(round, response, &results).await;
                }
                // Some servers ignore `tool_choice`, and so do some models.
                ToolChoice::NoTools => {
                    let results = self.caller.reject_all(&response.calls, CALL_REJECTED);
                    self.record_results(round, response, &results).await;
                    self.ignored_limit = true;
                }
                ToolChoice::OmitTools => break,
            }
        }
        // A partial answer is better than none.
        if !self.partial_answer.is_empty() {
            let partial_answer = std::mem::take(&mut self.partial_answer);
            return Ok(format!("{}\n\n{TRUNCATED_NOTE}", partial_answer.trim_end()));
        }
        Err(LoopError::Failed(self.limit_failure()))
    }

    /// The failure of a model that calls tools although it was asked to answer.
    fn limit_failure(&self) -> String {
        match self.limit {
            Some(LimitReached::Time) => {
                let seconds = self.clock.total().as_secs();
                format!(
                    "the run's time of {seconds} s is nearly over, and the model called tools although it was asked to answer"
                )
            }
            Some(LimitReached::Tokens) => {
                "the run's tokens are nearly used up, and the model called tools although it was asked to answer"
                    .to_owned()
            }
            // Users search for this message.
            Some(LimitReached::Rounds) | None => {
                let rounds = self.settings.iterations;
                format!("exceeded maximum tool-call iterations ({rounds})")
            }
        }
    }

    /// Also adds the request to answer to the conversation, once.
    fn tool_choice(&mut self, round: u32) -> ToolChoice {
        if self.limit.is_none() {
            self.limit = self.limit_reached(round);
            if self.limit.is_some() && round > 1 {
                self.conversation.push_message(self.model.user_message(FINAL_ROUND_PROMPT));
            }
        }
        match self.limit {
            Some(_) if self.ignored_limit => ToolChoice::OmitTools,
            Some(_) => ToolChoice::NoTools,
            None => ToolChoice::Auto,
        }
    }

    fn limit_reached(&self, round: u32) -> Option<LimitReached> {
        let next = self.used_tokens.saturating_add(self.last_request_tokens);
        let tokens = self.view.limits.model_tokens;
        if tokens.is_some_and(|limit| next >= limit.saturating_mul(TOKEN_LIMIT_TENTHS) / 10) {
            return Some(LimitReached::Tokens);
        }
        if self.clock.is_nearly_over() {
            return Some(LimitReached::Time);
        }
        // A single round keeps its tools: it would be useless without.
        (round == self.settings.iterations && round > 1).then_some(LimitReached::Rounds)
    }

    async fn complete(&mut self, round: u32, choice: ToolChoice) -> Result<ModelResponse, LoopError> {
        let started = Instant::now();
        let client = ModelClient {
            door: &self.door,
            model: &*self.model,
            settings: &self.settings,
            clock: &self.clock,
            status: &self.status,
            transcript: &self.transcript,
        };
        let response = client.complete(&mut self.conversation, choice).await?;
        self.last_request_tokens = match response.usage {
            Some(usage) => usage.input.saturating_add(usage.output),
            // The bridge's own estimate.
            None => {
                let bytes = self.system.len() + self.conversation.bytes() + response.message.len();
                bytes as u64 / BYTES_PER_TOKEN
            }
        };
        self.used_tokens = self.used_tokens.saturating_add(self.last_request_tokens);
        let line = TranscriptLine::Answer {
            round,
            message: raw_message(&response.message),
            text: Some(&response.text),
            stop: response.stop.unusual(),
            input_tokens: response.usage.map(|usage| usage.input),
            cached_tokens: response.usage.map(|usage| usage.cached),
            output_tokens: response.usage.map(|usage| usage.output),
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        self.transcript.add(&line).await;
        Ok(response)
    }

    async fn record_results(&mut self, round: u32, response: ModelResponse, results: &[CallResult]) {
        self.nudges = 0;
        self.continuations = 0;
        self.partial_answer.clear();
        self.conversation.push_message(response.message);
        let mut encoded_results = Vec::with_capacity(results.len());
        for (index, (call, result)) in response.calls.iter().zip(results).enumerate() {
            let line = TranscriptLine::Result {
                round,
                id: &call.id,
                tool: &call.name,
                failed: result.outcome == ToolOutcome::Failed,
                text: &result.text,
                duration_ms: u64::try_from(result.duration.as_millis()).unwrap_or(u64::MAX),
            };
            self.transcript.add(&line).await;
            // Appended to the last result instead of a message: some templates require the model to speak next.
            let is_last = index + 1 == response.calls.len();
            let encoded = match response.dropped_calls {
                1.. if is_last => {
                    let text = format!("{}\n{DROPPED_CALLS_NOTE}", result.text);
                    self.model.tool_result(&call.id, &text, result.outcome)
                }
                _ => self.model.tool_result(&call.id, &result.text, result.outcome),
            };
            encoded_results.push(EncodedResult::new(call, result.outcome, result.text.len(), encoded));
        }
        self.conversation.push_results(encoded_results);
        let elided = elide_results(&mut self.conversation, &*self.model, &self.settings);
        if elided > 0 {
            self.guard.reset();
            let text = format!("left out {elided} old results to save room");
            self.transcript.add(&TranscriptLine::Note { text: &text }).await;
        }
    }

    /// A response without calls: the answer, unless it is empty or truncated.
    fn finish_answer(&mut self, response: ModelResponse) -> Result<Option<String>, LoopError> {
        let is_empty = response.text.trim().is_empty();
        if response.stop == StopReason::Length && !is_empty && self.continuations < MAX_CONTINUATIONS {
            self.continuations += 1;
            self.partial_answer.push_str(&response.text);
            self.conversation.push_message(response.message);
            self.conversation.push_message(self.model.user_message(CONTINUE_PROMPT));
            return Ok(None);
        }
        if !is_empty || !self.partial_answer.is_empty() {
            let mut text = std::mem::take(&mut self.partial_answer);
            text.push_str(&response.text);
            text.truncate(text.trim_end().len());
            if response.stop == StopReason::Length {
                text.push_str("\n\n");
                text.push_str(TRUNCATED_NOTE);
            }
            return Ok(Some(text));
        }
        self.nudges += 1;
        if self.nudges > MAX_NUDGES {
            let reason = match response.stop {
                StopReason::Length => "the model used up its length without an answer",
                _ => "the model gave no answer",
            };
            return Err(LoopError::Failed(reason.to_owned()));
        }
        self.conversation.push_message(self.model.user_message(EMPTY_ANSWER_PROMPT));
        Ok(None)
    }

    fn with_last_text(&self, reason: String) -> String {
        let text = self.last_text.trim();
        if text.is_empty() {
            reason
        } else {
            let text = truncate_with_note(text.to_owned(), MAX_LAST_TEXT);
            format!("{reason}; its last text was: {text}")
        }
    }
}

/// Removes control and invisible characters: people read this in a terminal.
fn without_hidden(mut text: String) -> String {
    text.retain(is_prose);
    text
}

#[cfg(test)]
mod tests {
    use super::without_hidden;

    #[test]
    fn an_answer_has_no_control_characters() {
        let text = "a\u{1b}[2J\tb\n\u{9b}2Jc\r\u{7f}ä".to_owned();
        assert_eq!(without_hidden(text), "a[2J\tb\n2Jcä");
        let hidden = "a\u{202e}b\u{e0041}\u{200b}\u{3164}c \u{26a0}\u{fe0f}".to_owned();
        assert_eq!(without_hidden(hidden), "abc \u{26a0}\u{fe0f}");
    }
}
