//! Executes one tool call, natively with a permit or through the bridge, and renders its result for the model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{DEFAULT_PAGE_CHARACTERS, EXECUTE_COMMAND};
use sympozium_ipc::door::{PermitReport, Refusal, RefusalCode, ToolAnswer, ToolCall};
use sympozium_ipc::receipt;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::{CallResult, INTERRUPTED, ToolCaller};
use crate::backoff::Backoff;
use crate::context::truncate_with_note;
use crate::door::DoorError;
use crate::model::{Call, ToolOutcome};
use crate::tools::chat_tokens::break_tokens;
use crate::tools::command::{CommandOutput, render};
use crate::tools::page::{FetchedPage, render_page};

/// The bridge's permit expires soon after.
const NATIVE_TOOL_TIMEOUT: Duration = Duration::from_secs(25);
const MAX_ATTEMPTS: u32 = 5;
const MAX_WAIT: Duration = Duration::from_secs(60);

type CallOutcome = Result<(String, ToolOutcome), String>;

impl ToolCaller {
    pub(super) async fn execute(&self, call: Call, arguments: Map<String, Value>) -> Result<CallResult, DoorError> {
        let start = Instant::now();
        self.status.report(&describe(&call.name, &arguments));
        let request = ToolCall { id: call.id, arguments: Value::Object(arguments) };
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        let outcome = loop {
            let refusal = match self.try_call(&call.name, &request).await {
                Ok(outcome) => break outcome,
                Err(DoorError::Refused(refusal)) => refusal,
                Err(DoorError::Interrupted(_)) => break Err(INTERRUPTED.to_owned()),
                Err(error) => return Err(error),
            };
            attempts += 1;
            match self.retry_after(&call.name, &refusal) {
                // The bridge did nothing, and a later attempt may succeed.
                Some(retry_after) if attempts < MAX_ATTEMPTS => {
                    let wait = backoff.next_delay(retry_after).min(MAX_WAIT);
                    self.status.report(&format!("waiting: {}", refusal.message));
                    sleep(wait).await;
                }
                _ => break Err(self.refused(&call.name, refusal)),
            }
        };
        let duration = start.elapsed();
        Ok(match outcome {
            Ok((text, outcome)) => self.result(text, outcome, duration),
            Err(reason) => self.failure(reason, duration),
        })
    }

    async fn try_call(&self, name: &str, request: &ToolCall) -> Result<CallOutcome, DoorError> {
        if self.offered.get(name).is_some_and(|tool| tool.native) {
            self.call_native(name, request).await
        } else {
            let answer = self.door.call(name, request).await?;
            Ok(self.render_answer(answer, &request.arguments).await)
        }
    }

    /// Runs a native tool with a permit. The report on it is sent in the background.
    async fn call_native(&self, name: &str, request: &ToolCall) -> Result<CallOutcome, DoorError> {
        // The semaphore is never closed, so this succeeds.
        let permit_slot = Arc::clone(&self.permits).acquire_owned().await.ok();
        let permit = self.door.permit(name, request).await?;
        let start = Instant::now();
        let (native, tool) = (Arc::clone(&self.native), name.to_owned());
        let arguments = request.arguments.as_object().cloned().unwrap_or_default();
        let task = spawn_blocking(move || native.run(&tool, &arguments));
        let output = match timeout(NATIVE_TOOL_TIMEOUT, task).await {
            Ok(Ok(result)) => result.map_err(|error| error.0),
            Ok(Err(_)) => Err("the tool failed unexpectedly".to_owned()),
            // A blocking thread cannot be cancelled.
            Err(_) => {
                let seconds = NATIVE_TOOL_TIMEOUT.as_secs();
                Err(format!("this was not done in {seconds} s, and may still happen"))
            }
        };
        let (outcome, bytes) = match &output {
            Ok(text) => (receipt::Outcome::Done, text.len()),
            Err(reason) => {
                let reason = receipt::to_receipt_text(reason);
                (receipt::Outcome::Failed { why: reason }, 0)
            }
        };
        let report = PermitReport {
            outcome,
            bytes: bytes as u64,
            duration_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let door = self.door.clone();
        let mut reports = self.reports.lock();
        // Drop finished reports.
        while reports.try_join_next().is_some() {}
        reports.spawn(async move {
            if let Err(error) = door.report(permit, &report).await {
                tracing::warn!(%error, permit, "a permit could not be reported on");
            }
            drop(permit_slot);
        });
        Ok(output.map(|text| (text, ToolOutcome::Succeeded)))
    }

    async fn render_answer(&self, answer: ToolAnswer, arguments: &Value) -> CallOutcome {
        match answer {
            ToolAnswer::Command { exit_code, stdout, stderr, timed_out, truncated } => {
                let output = CommandOutput { exit_code, stdout: &stdout, stderr: &stderr, timed_out, truncated };
                let outcome = if exit_code == 0 && !timed_out { ToolOutcome::Succeeded } else { ToolOutcome::Failed };
                Ok((render(&output, self.max_result_bytes), outcome))
            }
            ToolAnswer::Text { text } => Ok((text, ToolOutcome::Succeeded)),
            ToolAnswer::Page { status, url, content_type, body, truncated } => {
                let max_chars = arguments.get("maxChars").and_then(Value::as_u64);
                let max_chars =
                    max_chars.and_then(|chars| usize::try_from(chars).ok()).unwrap_or(DEFAULT_PAGE_CHARACTERS as usize);
                let max_bytes = self.max_result_bytes;
                // Pages are untrusted: a slow one must not block the event loop.
                let read = spawn_blocking(move || {
                    let body = STANDARD.decode(body).unwrap_or_default();
                    let page = FetchedPage {
                        status,
                        url: &url,
                        content_type: content_type.as_deref(),
                        body: &body,
                        truncated,
                    };
                    render_page(&page, max_chars, max_bytes)
                });
                match read.await {
                    Ok(text) => text.map(|text| (text, ToolOutcome::Succeeded)).map_err(|error| error.0),
                    Err(_) => Err("the page cannot be read".to_owned()),
                }
            }
        }
    }

    /// `Some(retry_after)` for a refusal that a later attempt can avoid. `None` for tools of others when the gateway is
    /// busy: a person may have been asked already and must not be asked twice.
    fn retry_after(&self, name: &str, refusal: &Refusal) -> Option<Option<Duration>> {
        let tool = self.offered.get(name);
        let is_ours = tool.is_some_and(|tool| tool.native || tool.pack.is_some() || name == EXECUTE_COMMAND);
        let is_transient = match refusal.code {
            RefusalCode::Rate => true,
            RefusalCode::Busy => is_ours,
            _ => false,
        };
        is_transient.then(|| refusal.retry_after_ms.map(Duration::from_millis))
    }

    fn refused(&self, name: &str, refusal: Refusal) -> String {
        use RefusalCode::{Arguments, Denied, Request, Size, UnknownTool};
        if matches!(refusal.code, Arguments | Denied | Request | Size | UnknownTool) {
            self.counts.lock().refused += 1;
        }
        match refusal.code {
            UnknownTool => self.unknown_tool_message(name),
            _ => refusal.message,
        }
    }

    pub(super) fn failure(&self, reason: String, duration: Duration) -> CallResult {
        self.result(format!("Error: {reason}"), ToolOutcome::Failed, duration)
    }

    fn result(&self, text: String, outcome: ToolOutcome, duration: Duration) -> CallResult {
        CallResult { text: with_tokens_broken(truncate_with_note(text, self.max_result_bytes)), outcome, duration }
    }
}

/// Breaks up chat template tokens, and says so in a note.
fn with_tokens_broken(text: String) -> String {
    let safe = break_tokens(&text);
    match safe.broken_tokens {
        0 => text,
        count => format!(
            "{}\n({count} control sequences of chat formats are shown with a space behind their first character, which is not in the original.)",
            safe.text
        ),
    }
}

/// The tool and its most telling argument, for the status line.
fn describe(name: &str, arguments: &Map<String, Value>) -> String {
    let keys = ["path", "command", "url", "name", "target"];
    let argument = keys.iter().find_map(|key| arguments.get(*key)?.as_str());
    match argument {
        Some(argument) => format!("{name} {argument}"),
        None => name.to_owned(),
    }
}
