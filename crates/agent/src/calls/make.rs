//! One call: said at the door, or acted on with a permit, and put into words for the model.

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

use super::{BROKE_OFF, Caller, Told};
use crate::backoff::Backoff;
use crate::context::clamp;
use crate::door::DoorError;
use crate::model::{Call, Outcome};
use crate::tools::command::{Ended, shown};
use crate::tools::neutral::neutral;
use crate::tools::page::{Fetched, readable};

/// How long a native tool may take. The bridge's permit lapses soon after.
const NATIVE_TIME: Duration = Duration::from_secs(25);
/// Tries of a call that the bridge has no room for. Nothing has happened then.
const TRIES: u32 = 5;
/// Longest wait for room.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What came of a call, in words: as asked, or the reason why not.
type Said = Result<(String, Outcome), String>;

impl Caller {
    /// Makes a call.
    pub(super) async fn make(&self, call: Call, arguments: Map<String, Value>) -> Result<Told, DoorError> {
        let started = Instant::now();
        self.status.set(&described(&call.name, &arguments));
        let said = ToolCall { id: call.id, arguments: Value::Object(arguments) };
        let mut backoff = Backoff::default();
        let mut tries = 0;
        let outcome = loop {
            let refusal = match self.tried(&call.name, &said).await {
                Ok(outcome) => break outcome,
                Err(DoorError::Refused(refusal)) => refusal,
                Err(DoorError::BrokenOff(_)) => break Err(BROKE_OFF.to_owned()),
                Err(gone) => return Err(gone),
            };
            tries += 1;
            match self.room_in(&call.name, &refusal) {
                // Nothing has happened, and soon it can.
                Some(wanted) if tries < TRIES => {
                    let wait = backoff.next(wanted).min(LONGEST_WAIT);
                    self.status.set(&format!("waiting: {}", refusal.message));
                    sleep(wait).await;
                }
                _ => break Err(self.refused(&call.name, refusal)),
            }
        };
        let took = started.elapsed();
        Ok(match outcome {
            Ok((text, outcome)) => self.told(text, outcome, took),
            Err(why) => self.failed(why, took),
        })
    }

    async fn tried(&self, name: &str, said: &ToolCall) -> Result<Said, DoorError> {
        match self.offered.get(name).is_some_and(|it| it.native) {
            true => self.act(name, said).await,
            false => {
                let answer = self.door.call(name, said).await?;
                Ok(self.answered(answer, &said.arguments).await)
            }
        }
    }

    /// Acts itself, with a permit, and says what came of it. Nobody waits for that.
    async fn act(&self, name: &str, said: &ToolCall) -> Result<Said, DoorError> {
        // Closed by nobody, so there is always one in the end.
        let slot = Arc::clone(&self.permits).acquire_owned().await.ok();
        let permit = self.door.permit(name, said).await?;
        let started = Instant::now();
        let (native, tool) = (Arc::clone(&self.native), name.to_owned());
        let arguments = said.arguments.as_object().cloned().unwrap_or_default();
        let acting = spawn_blocking(move || native.act(&tool, &arguments));
        let acted = match timeout(NATIVE_TIME, acting).await {
            Ok(Ok(acted)) => acted.map_err(|error| error.0),
            Ok(Err(_)) => Err("the tool broke off".to_owned()),
            // A thread cannot be ended.
            Err(_) => {
                let seconds = NATIVE_TIME.as_secs();
                Err(format!("this was not done in {seconds} s, and may still happen"))
            }
        };
        let (outcome, bytes) = match &acted {
            Ok(text) => (receipt::Outcome::Done, text.len()),
            Err(why) => {
                let why = receipt::to_receipt_text(why);
                (receipt::Outcome::Failed { why }, 0)
            }
        };
        let report = PermitReport {
            outcome,
            bytes: bytes as u64,
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let door = self.door.clone();
        let mut reports = self.reports.lock();
        // Those that are through.
        while reports.try_join_next().is_some() {}
        reports.spawn(async move {
            if let Err(error) = door.report(permit, &report).await {
                tracing::warn!(%error, permit, "a permit could not be reported on");
            }
            drop(slot);
        });
        Ok(acted.map(|text| (text, Outcome::Done)))
    }

    async fn answered(&self, answer: ToolAnswer, arguments: &Value) -> Said {
        match answer {
            ToolAnswer::Command { exit_code, stdout, stderr, timed_out, truncated } => {
                let ended = Ended { exit_code, stdout: &stdout, stderr: &stderr, timed_out, truncated };
                let outcome = match exit_code == 0 && !timed_out {
                    true => Outcome::Done,
                    false => Outcome::Failed,
                };
                Ok((shown(&ended, self.most), outcome))
            }
            ToolAnswer::Text { text } => Ok((text, Outcome::Done)),
            ToolAnswer::Page { status, url, content_type, body, truncated } => {
                let most = arguments.get("maxChars").and_then(Value::as_u64);
                let most = most.and_then(|it| usize::try_from(it).ok());
                let (most, most_bytes) = (most.unwrap_or(DEFAULT_PAGE_CHARACTERS as usize), self.most);
                // Somebody else's page: however long it takes to read, others go on.
                let read = spawn_blocking(move || {
                    let body = STANDARD.decode(body).unwrap_or_default();
                    let page =
                        Fetched { status, url: &url, content_type: content_type.as_deref(), body: &body, truncated };
                    readable(&page, most, most_bytes)
                });
                match read.await {
                    Ok(text) => text.map(|text| (text, Outcome::Done)).map_err(|error| error.0),
                    Err(_) => Err("the page cannot be read".to_owned()),
                }
            }
        }
    }

    /// When there is room for a call that was refused for want of it. Nothing for what others see the effects of, where somebody
    /// may have been asked already: a person is not asked again because the gateway was busy.
    fn room_in(&self, name: &str, refusal: &Refusal) -> Option<Option<Duration>> {
        let tool = self.offered.get(name);
        let is_ours = tool.is_some_and(|it| it.native || it.pack.is_some() || name == EXECUTE_COMMAND);
        let full = match refusal.code {
            RefusalCode::Rate => true,
            RefusalCode::Busy => is_ours,
            _ => false,
        };
        full.then(|| refusal.retry_after_ms.map(Duration::from_millis))
    }

    fn refused(&self, name: &str, refusal: Refusal) -> String {
        use RefusalCode::{Arguments, Denied, Request, Size, UnknownTool};
        if matches!(refusal.code, Arguments | Denied | Request | Size | UnknownTool) {
            self.counts.lock().refused += 1;
        }
        match refusal.code {
            UnknownTool => self.no_such_tool(name),
            _ => refusal.message,
        }
    }

    pub(super) fn failed(&self, why: String, took: Duration) -> Told {
        self.told(format!("Error: {why}"), Outcome::Failed, took)
    }

    fn told(&self, text: String, outcome: Outcome, took: Duration) -> Told {
        Told { text: harmless(clamp(text, self.most)), outcome, took }
    }
}

/// The text without anything that a chat template takes for more than text, and with a line about it where there was.
fn harmless(text: String) -> String {
    let neutral = neutral(&text);
    match neutral.broken_up {
        0 => text,
        count => format!(
            "{}\n({count} control sequences of chat formats are shown with a space behind their first character, which is not in the original.)",
            neutral.text
        ),
    }
}

/// A call in a line: the tool, and the argument that says most.
fn described(name: &str, arguments: &Map<String, Value>) -> String {
    let telling = ["path", "command", "url", "name", "target"];
    let word = telling.iter().find_map(|it| arguments.get(*it)?.as_str());
    match word {
        Some(word) => format!("{name} {word}"),
        None => name.to_owned(),
    }
}
