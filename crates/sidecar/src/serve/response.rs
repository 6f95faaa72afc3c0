//! Results and errors of calls, as JSON.

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

/// The result of a call that was accepted.
#[derive(Debug)]
pub enum CallResult {
    Completed(Outcome),
    CancelledBeforeStart,
    /// There is no outcome. The reason is for the caller.
    Failed(String),
}

impl CallResult {
    /// Of output; counted against the caller's quota.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Completed(outcome) => outcome.stdout.bytes.len() + outcome.stderr.bytes.len(),
            Self::CancelledBeforeStart => 0,
            Self::Failed(reason) => reason.len(),
        }
    }

    /// The four documented fields come first.
    pub fn to_json(&self, isolation: &Value) -> Vec<u8> {
        let result = match self {
            Self::Completed(outcome) => ResultObject::from_outcome(outcome, isolation),
            Self::CancelledBeforeStart => {
                ResultObject { cancelled: true, ..ResultObject::without_outcome("", isolation) }
            }
            Self::Failed(reason) => ResultObject::without_outcome(reason, isolation),
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
fn is_false(value: &bool) -> bool {
    !value
}

impl<'a> ResultObject<'a> {
    fn from_outcome(outcome: &'a Outcome, isolation: &'a Value) -> Self {
        let exit_code = match outcome.termination {
            _ if outcome.timed_out || outcome.cancelled => NO_EXIT_CODE,
            termination => termination.exit_code(),
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
            duration_ms: to_milliseconds(outcome.duration),
            signal: match outcome.termination {
                Termination::Signaled(signal) => Some(signal),
                Termination::Exited(_) => None,
            },
            cancelled: outcome.cancelled,
            oom_killed: outcome.oom_killed,
            stdout_base64: encode_if_lossy(&outcome.stdout),
            stderr_base64: encode_if_lossy(&outcome.stderr),
            isolation,
        }
    }

    fn without_outcome(reason: &'a str, isolation: &'a Value) -> Self {
        Self {
            status: "error",
            stdout: "".into(),
            stderr: reason.into(),
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

/// The exact bytes in base64, where they are not valid UTF-8.
fn encode_if_lossy(captured: &CapturedOutput) -> Option<String> {
    captured.has_invalid_utf8().then(|| STANDARD.encode(&captured.bytes))
}

pub fn to_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub fn json_response(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    // Strings, numbers and values of serde_json: serializing them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// An error: `message` and `hint` are for the caller, `cause` is for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorResponse {
    pub status: StatusCode,
    pub message: String,
    /// The next thing to try.
    pub hint: Option<String>,
    /// For the log only: it may contain paths.
    pub cause: Option<String>,
    /// In seconds.
    pub retry_after: Option<u32>,
    /// Close the connection, because the rest of the request is not read.
    pub close: bool,
    /// The message repeats input of the caller, which must not be logged.
    pub quotes_input: bool,
}

impl ErrorResponse {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            hint: None,
            cause: None,
            retry_after: None,
            close: false,
            quotes_input: false,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn cause(mut self, cause: impl ToString) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub fn close(mut self) -> Self {
        self.close = true;
        self
    }

    pub fn quoting_input(mut self) -> Self {
        self.quotes_input = true;
        self
    }

    /// The message, without input of the caller.
    pub fn loggable_message(&self) -> &str {
        if self.quotes_input { "the request cannot be used" } else { &self.message }
    }

    pub fn to_response(&self, request_id: &str) -> Response<Body> {
        #[derive(Serialize)]
        struct Error<'a> {
            error: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            hint: Option<&'a str>,
            request_id: &'a str,
        }
        let mut response = json_response(
            self.status,
            to_bytes(&Error { error: &self.message, hint: self.hint.as_deref(), request_id }),
        );
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

/// The error is attached as an extension: [`RequestHandler`](super::handler::RequestHandler), which knows the request's id,
/// writes the body.
impl IntoResponse for ErrorResponse {
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

    fn text(result: &CallResult) -> String {
        String::from_utf8(result.to_json(&serde_json::json!({}))).unwrap()
    }

    #[test]
    fn the_documented_fields_come_first() {
        assert_eq!(
            text(&CallResult::Completed(outcome())),
            r#"{"status":"ok","stdout":"out","stderr":"","exit_code":0,"timed_out":false,"truncated":false,"duration_ms":12,"isolation":{}}"#
        );
    }

    #[test]
    fn every_termination_is_reported() {
        let timed_out = Outcome { timed_out: true, termination: Termination::Signaled(15), ..outcome() };
        assert_eq!(
            text(&CallResult::Completed(timed_out)),
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
            text(&CallResult::Completed(killed)),
            "{\"status\":\"error\",\"stdout\":\"a\u{fffd}\",\"stderr\":\"cut\",\"exit_code\":137,\"timed_out\":false,\"truncated\":true,\"duration_ms\":12,\"signal\":9,\"oom_killed\":true,\"stdout_base64\":\"Yf8=\",\"isolation\":{}}"
        );
        assert_eq!(
            text(&CallResult::CancelledBeforeStart),
            r#"{"status":"error","stdout":"","stderr":"","exit_code":-1,"timed_out":false,"truncated":false,"duration_ms":0,"cancelled":true,"isolation":{}}"#
        );
        assert_eq!(
            text(&CallResult::Failed("gone".to_owned())),
            r#"{"status":"error","stdout":"","stderr":"gone","exit_code":-1,"timed_out":false,"truncated":false,"duration_ms":0,"isolation":{}}"#
        );
    }
}
