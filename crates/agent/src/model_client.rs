//! Sends requests to the model, with retries.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use sympozium_ipc::door::{Refusal, RefusalCode};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backoff::Backoff;
use crate::context::shrink;
use crate::conversation::Conversation;
use crate::door::{Door, DoorError, header_number};
use crate::model::{BodyFormat, Model, ModelResponse, ProviderError, Remedy, ResponseError, ToolChoice};
use crate::run_clock::RunClock;
use crate::settings::Settings;
use crate::status::Status;
use crate::transcript::{Transcript, TranscriptLine};

/// Bytes of an error body that are read.
const MAX_ERROR_BODY: usize = 64 << 10;
/// A provider that asks for a longer wait than this has failed.
const MAX_WAIT: Duration = Duration::from_secs(2 * 60);
/// How long to wait for the end of a body whose response is complete already.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_SHORTENINGS: u32 = 8;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{0}")]
    Budget(String),
    #[error("the run's time of {} s ended before the model answered", .0.as_secs())]
    Time(Duration),
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    BridgeGone(DoorError),
}

enum AttemptError {
    /// The reason, and the delay that was requested.
    Retry(String, Option<Duration>),
    TooLong(String),
    Fatal(ModelError),
}

pub struct ModelClient<'a> {
    pub door: &'a Door,
    pub model: &'a dyn Model,
    pub settings: &'a Settings,
    pub clock: &'a RunClock,
    pub status: &'a Status,
    pub transcript: &'a Transcript,
}

impl ModelClient<'_> {
    /// Sends the conversation until there is a response or no further attempt makes sense. Elides parts of the
    /// conversation when it is too long for the model.
    pub async fn complete(
        &self,
        conversation: &mut Conversation,
        choice: ToolChoice,
    ) -> Result<ModelResponse, ModelError> {
        let (mut attempts, mut shortenings) = (0, 0);
        let mut backoff = Backoff::default();
        loop {
            let request = self.model.request(conversation, choice);
            let (reason, retry_after) = match self.attempt(request).await {
                Ok(response) => return Ok(response),
                Err(AttemptError::Fatal(error)) => return Err(error),
                Err(AttemptError::TooLong(reason)) => {
                    shortenings += 1;
                    if shortenings > MAX_SHORTENINGS || !shrink(conversation, self.model) {
                        return Err(ModelError::Failed(reason));
                    }
                    self.log(format!("made the conversation shorter: {reason}")).await;
                    continue;
                }
                Err(AttemptError::Retry(reason, retry_after)) => (reason, retry_after),
            };
            attempts += 1;
            if attempts > self.settings.retries {
                let message = format!("{reason} (tried {attempts} times)");
                return Err(ModelError::Failed(message));
            }
            let wait = backoff.next_delay(retry_after);
            if wait > MAX_WAIT || wait >= self.clock.remaining() {
                let seconds = wait.as_secs();
                let message = format!("{reason}; it asks to wait for {seconds} s, which is too long");
                return Err(ModelError::Failed(message));
            }
            self.log(format!("trying again in {} ms: {reason}", wait.as_millis())).await;
            sleep(wait).await;
        }
    }

    async fn log(&self, text: String) {
        tracing::info!(text, "model");
        self.status.report(&text);
        self.transcript.add(&TranscriptLine::Note { text: &text }).await;
    }

    async fn attempt(&self, request: Vec<Bytes>) -> Result<ModelResponse, AttemptError> {
        let request_deadline = Instant::now() + self.settings.request_timeout;
        let run_deadline = self.clock.deadline();
        let deadline = request_deadline.min(run_deadline);
        let result = timeout_at(deadline, self.send(request)).await;
        result.unwrap_or_else(|_| {
            if request_deadline < run_deadline {
                let seconds = self.settings.request_timeout.as_secs();
                let reason = format!("the model did not answer within {seconds} s");
                Err(AttemptError::Retry(reason, None))
            } else {
                Err(AttemptError::Fatal(ModelError::Time(self.clock.total())))
            }
        })
    }

    async fn send(&self, request: Vec<Bytes>) -> Result<ModelResponse, AttemptError> {
        let response = self.door.model(request).await.map_err(classify_door_error)?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let body = Limited::new(body, MAX_ERROR_BODY).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            let error = self.model.provider_error(head.status.as_u16(), &body);
            return Err(classify_provider_error(error, &head.headers));
        }
        self.read(body).await.map_err(classify_response_error)
    }

    async fn read(&self, mut body: Incoming) -> Result<ModelResponse, ResponseError> {
        let mut reader = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ResponseError::Truncated)?;
            let mut bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
            if reader.is_none() {
                // Some servers send empty lines as keep-alive.
                bytes = bytes.trim_ascii_start();
            }
            let Some(first) = bytes.first() else {
                continue;
            };
            let reader = reader.get_or_insert_with(|| self.model.reader(BodyFormat::detect(*first)));
            reader.read(bytes)?;
            self.status.report_output(reader.text());
            if reader.is_complete() {
                tokio::spawn(read_to_end(body));
                break;
            }
        }
        reader.ok_or(ResponseError::Truncated)?.finish()
    }
}

/// Drains the body: the bridge counts a response whose stream is closed early as cancelled. Servers that leave it open
/// are not waited for.
async fn read_to_end(body: Incoming) {
    let _ = timeout(DRAIN_TIMEOUT, Limited::new(body, MAX_ERROR_BODY).collect()).await;
}

fn classify_door_error(error: DoorError) -> AttemptError {
    let Refusal { code, message, retry_after_ms } = match error {
        DoorError::Refused(refusal) => refusal,
        DoorError::Interrupted(_) => return classify_response_error(ResponseError::Truncated),
        error => return AttemptError::Fatal(ModelError::BridgeGone(error)),
    };
    match code {
        RefusalCode::Rate | RefusalCode::Busy | RefusalCode::Model | RefusalCode::Unavailable => {
            AttemptError::Retry(message, retry_after_ms.map(Duration::from_millis))
        }
        RefusalCode::Size => AttemptError::TooLong(message),
        RefusalCode::Budget => AttemptError::Fatal(ModelError::Budget(message)),
        _ => AttemptError::Fatal(ModelError::Failed(message)),
    }
}

fn classify_provider_error(error: ProviderError, headers: &HeaderMap) -> AttemptError {
    match error.remedy {
        Remedy::Retry if may_retry(headers) => {
            AttemptError::Retry(error.message, retry_after(headers, SystemTime::now()))
        }
        Remedy::Shorten => AttemptError::TooLong(error.message),
        Remedy::Retry | Remedy::None => AttemptError::Fatal(ModelError::Failed(error.message)),
    }
}

fn classify_response_error(error: ResponseError) -> AttemptError {
    match error {
        ResponseError::Provider(error) => classify_provider_error(error, &HeaderMap::new()),
        // Another attempt may succeed.
        error => AttemptError::Retry(error.to_string(), None),
    }
}

/// Some providers say when a retry cannot help.
fn may_retry(headers: &HeaderMap) -> bool {
    headers.get("x-should-retry").is_none_or(|value| value != "false")
}

fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if let Some(milliseconds) = header_number(headers, "retry-after-ms") {
        return Some(Duration::from_millis(milliseconds));
    }
    if let Some(seconds) = header_number(headers, RETRY_AFTER) {
        return Some(Duration::from_secs(seconds));
    }
    let date = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let date = httpdate::parse_http_date(date).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn retry_after_is_parsed_in_every_form() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (name, value, expected) in [
            ("retry-after", "7", Some(7_000)),
            ("retry-after-ms", "250", Some(250)),
            ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
            ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("retry-after", "soon", None),
            ("retry-after", "-1", None),
            ("date", "7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a value"));
            let expected = expected.map(Duration::from_millis);
            assert_eq!(retry_after(&headers, now), expected, "{name}: {value}");
        }
    }
}
