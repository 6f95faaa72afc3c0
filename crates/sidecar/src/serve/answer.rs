//! What callers are told: results and errors, as JSON.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;
use sympozium_exec::{CapturedOutput, Outcome, Termination};

/// The exit code of a skill that did not exit by itself, or was not started.
const NO_EXIT_CODE: i32 = -1;

/// What came of a call that was taken on.
#[derive(Debug)]
pub enum Finished {
    /// The skill ran.
    Ran(Outcome),
    /// It was cancelled before it started.
    NeverRan,
    /// It has no outcome: why, for the caller.
    Failed(String),
}

impl Finished {
    /// How much it keeps.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Ran(outcome) => outcome.stdout.bytes.len() + outcome.stderr.bytes.len(),
            Self::NeverRan => 0,
            Self::Failed(why) => why.len(),
        }
    }

    /// The result object. The four fields of the contract come first.
    pub fn to_json(&self, isolation: &Value) -> Vec<u8> {
        let result = match self {
            Self::Ran(outcome) => ResultObject::of(outcome, isolation),
            Self::NeverRan => ResultObject { cancelled: true, ..ResultObject::without_run("", isolation) },
            Self::Failed(why) => ResultObject::without_run(why, isolation),
        };
        to_bytes(&result)
    }
}

#[derive(Serialize)]
struct ResultObject<'a> {
    status: &'static str,
    stdout: Cow<'a, str>,
    stderr: Cow<'a, str>,
    exit_code: i32,
    timed_out: bool,
    truncated: bool,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "is_false")]
    cancelled: bool,
    #[serde(skip_serializing_if = "is_false")]
    oom_killed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    isolation: &'a Value,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(it: &bool) -> bool {
    !it
}

impl<'a> ResultObject<'a> {
    fn of(outcome: &'a Outcome, isolation: &'a Value) -> Self {
        let exit_code = match outcome.termination {
            _ if outcome.timed_out || outcome.cancelled => NO_EXIT_CODE,
            ending => ending.exit_code(),
        };
        let mut stderr = outcome.stderr.text();
        if outcome.timed_out && stderr.is_empty() {
            stderr = "timeout".into();
        }
        Self {
            status: if exit_code == 0 { "ok" } else { "error" },
            stdout: outcome.stdout.text(),
            stderr,
            exit_code,
            timed_out: outcome.timed_out,
            truncated: outcome.stdout.is_truncated() || outcome.stderr.is_truncated(),
            duration_ms: milliseconds(outcome.duration),
            signal: match outcome.termination {
                Termination::Signaled(signal) => Some(signal),
                Termination::Exited(_) => None,
            },
            cancelled: outcome.cancelled,
            oom_killed: outcome.oom_killed,
            stdout_base64: exact(&outcome.stdout),
            stderr_base64: exact(&outcome.stderr),
            isolation,
        }
    }

    fn without_run(why: &'a str, isolation: &'a Value) -> Self {
        Self {
            status: "error",
            stdout: "".into(),
            stderr: why.into(),
            exit_code: NO_EXIT_CODE,
            timed_out: false,
            truncated: false,
            duration_ms: 0,
            signal: None,
            cancelled: false,
            oom_killed: false,
            stdout_base64: None,
            stderr_base64: None,
            isolation,
        }
    }
}

/// The bytes themselves, where the text does not tell them all.
fn exact(captured: &CapturedOutput) -> Option<String> {
    captured.has_invalid_utf8().then(|| STANDARD.encode(&captured.bytes))
}

/// Whole milliseconds.
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An answer that is JSON.
pub fn json(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and raw values that were made by serde_json: there is nothing in them that can fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// An answer that is an error: one part for the caller, one for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorAnswer {
    /// The status.
    pub status: StatusCode,
    /// What is wrong, for the caller.
    pub message: String,
    /// What the caller can do about it.
    pub hint: Option<String>,
    /// Why, for the log alone: it may hold paths.
    pub cause: Option<String>,
    /// When it makes sense to try again [seconds].
    pub retry_after: Option<u32>,
    /// Whether the connection is closed, because the rest of the request is not read.
    pub close: bool,
    /// Whether the message repeats what the caller sent, which is not for the log.
    pub quotes: bool,
}

impl ErrorAnswer {
    /// With a message and nothing else.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            hint: None,
            cause: None,
            retry_after: None,
            close: false,
            quotes: false,
        }
    }

    /// With the next thing to try.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With what the log should know.
    pub fn cause(mut self, cause: impl ToString) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Worth another try.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// And nothing more of the request is read.
    pub fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// The message repeats what the caller sent.
    pub fn quoting(mut self) -> Self {
        self.quotes = true;
        self
    }

    /// What the log may say of it.
    pub fn reason(&self) -> &str {
        match self.quotes {
            true => "the request cannot be used",
            false => &self.message,
        }
    }

    /// The answer, for the request of that id.
    pub fn to_response(&self, request_id: &str) -> Response<Body> {
        #[derive(Serialize)]
        struct Error<'a> {
            error: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            hint: Option<&'a str>,
            request_id: &'a str,
        }
        let mut response =
            json(self.status, to_bytes(&Error { error: &self.message, hint: self.hint.as_deref(), request_id }));
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The error itself travels as an extension: whoever knows the request's id writes it.
impl IntoResponse for ErrorAnswer {
    fn into_response(self) -> axum::response::Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use sympozium_exec::outcome::Usage;
    use sympozium_exec::{IsolationReport, Profile};

    use super::*;

    fn outcome() -> Outcome {
        Outcome {
            termination: Termination::Exited(0),
            stdout: captured(b"out"),
            stderr: CapturedOutput::default(),
            timed_out: false,
            cancelled: false,
            oom_killed: false,
            duration: Duration::from_millis(12),
            usage: Usage::default(),
            isolation: Arc::new(IsolationReport::new(Profile::Container, BTreeMap::new())),
        }
    }

    fn captured(bytes: &[u8]) -> CapturedOutput {
        CapturedOutput { bytes: bytes.to_vec(), total_bytes: bytes.len() as u64 }
    }

    fn text(finished: &Finished) -> String {
        String::from_utf8(finished.to_json(&serde_json::json!({}))).unwrap()
    }

    #[test]
    fn the_fields_of_the_contract_come_first() {
        assert_eq!(
            text(&Finished::Ran(outcome())),
            r#"{"status":"ok","stdout":"out","stderr":"","exit_code":0,"timed_out":false,"truncated":false,"duration_ms":12,"isolation":{}}"#
        );
    }

    #[test]
    fn every_way_to_end_is_told() {
        let timed_out = Outcome { timed_out: true, termination: Termination::Signaled(15), ..outcome() };
        assert_eq!(
            text(&Finished::Ran(timed_out)),
            r#"{"status":"error","stdout":"out","stderr":"timeout","exit_code":-1,"timed_out":true,"truncated":false,"duration_ms":12,"signal":15,"isolation":{}}"#
        );
        let killed = Outcome {
            termination: Termination::Signaled(9),
            oom_killed: true,
            stdout: captured(b"a\xff"),
            stderr: CapturedOutput { bytes: b"cut".to_vec(), total_bytes: 4 },
            ..outcome()
        };
        assert_eq!(
            text(&Finished::Ran(killed)),
            "{\"status\":\"error\",\"stdout\":\"a\u{fffd}\",\"stderr\":\"cut\",\"exit_code\":137,\"timed_out\":false,\"truncated\":true,\"duration_ms\":12,\"signal\":9,\"oom_killed\":true,\"stdout_base64\":\"Yf8=\",\"isolation\":{}}"
        );
        assert_eq!(
            text(&Finished::NeverRan),
            r#"{"status":"error","stdout":"","stderr":"","exit_code":-1,"timed_out":false,"truncated":false,"duration_ms":0,"cancelled":true,"isolation":{}}"#
        );
        assert_eq!(
            text(&Finished::Failed("gone".to_owned())),
            r#"{"status":"error","stdout":"","stderr":"gone","exit_code":-1,"timed_out":false,"truncated":false,"duration_ms":0,"isolation":{}}"#
        );
    }
}
