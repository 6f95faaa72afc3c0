//! One question to the model, as often as it takes: sent, read as it comes, and tried again where that helps.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use sympozium_ipc::door::{Refusal, RefusalCode};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::backoff::Backoff;
use crate::context::shorten;
use crate::conversation::Conversation;
use crate::door::{Door, DoorError, number};
use crate::model::{Answer, Broken, Choice, Model, Problem, Remedy, Shape};
use crate::settings::Settings;
use crate::status::Status;
use crate::time::Time;
use crate::transcript::{Line, Transcript};

/// Bytes of what a provider says when it refuses.
const MAX_PROBLEM: usize = 64 << 10;
/// Longest that a provider may ask us to wait. Longer is no answer.
const LONGEST_WAIT: Duration = Duration::from_secs(2 * 60);
/// How long the end of an answer that is whole may take.
const END_PATIENCE: Duration = Duration::from_millis(500);
/// Times that a conversation is made shorter for one question.
const SHORTENINGS: u32 = 8;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The run may not use the model any more.
    #[error("{0}")]
    Budget(String),
    /// The run's time is over.
    #[error("the run's time of {} s was over before the model had answered", .0.as_secs())]
    Time(Duration),
    /// Nothing helps, or has helped.
    #[error("{0}")]
    Failed(String),
    /// The bridge is gone.
    #[error(transparent)]
    Gone(DoorError),
}

/// What one try came to, where it is no answer.
enum Tried {
    /// Worth another try: why, and when somebody says so.
    Again(String, Option<Duration>),
    /// The conversation is too long.
    TooLong(String),
    /// It is over.
    Over(Unanswered),
}

/// Whoever asks.
pub struct Asker<'a> {
    /// The way to the model.
    pub door: &'a Door,
    /// How it is spoken to.
    pub model: &'a dyn Model,
    /// How often, how long.
    pub settings: &'a Settings,
    /// What the run has left.
    pub time: &'a Time,
    /// Who watches.
    pub status: &'a Status,
    /// What is kept.
    pub transcript: &'a Transcript,
}

impl Asker<'_> {
    /// Asks. The conversation may come back shorter, where the model could not read it all.
    ///
    /// # Errors
    ///
    /// With why there is no answer, after every try that made sense.
    pub async fn ask(&self, conversation: &mut Conversation, choice: Choice) -> Result<Answer, Unanswered> {
        let (mut tries, mut shortenings) = (0, 0);
        let mut backoff = Backoff::default();
        loop {
            let request = self.model.request(conversation, choice);
            let (why, wanted) = match self.once(request).await {
                Ok(answer) => return Ok(answer),
                Err(Tried::Over(over)) => return Err(over),
                Err(Tried::TooLong(why)) => {
                    shortenings += 1;
                    if shortenings > SHORTENINGS || !shorten(conversation, self.model) {
                        return Err(Unanswered::Failed(why));
                    }
                    self.note(format!("made the conversation shorter: {why}")).await;
                    continue;
                }
                Err(Tried::Again(why, wanted)) => (why, wanted),
            };
            tries += 1;
            if tries > self.settings.retries {
                let message = format!("{why} (tried {tries} times)");
                return Err(Unanswered::Failed(message));
            }
            let wait = backoff.next(wanted);
            if wait > LONGEST_WAIT || wait >= self.time.left() {
                let seconds = wait.as_secs();
                let message = format!("{why}; it asks to wait for {seconds} s, which is too long");
                return Err(Unanswered::Failed(message));
            }
            self.note(format!("trying again in {} ms: {why}", wait.as_millis())).await;
            sleep(wait).await;
        }
    }

    async fn note(&self, text: String) {
        tracing::info!(text, "model");
        self.status.set(&text);
        self.transcript.add(&Line::Note { text: &text }).await;
    }

    /// One try.
    async fn once(&self, request: Vec<Bytes>) -> Result<Answer, Tried> {
        let limit = Instant::now() + self.settings.request_time;
        let end = self.time.end();
        let deadline = limit.min(end);
        let tried = timeout_at(deadline, self.exchange(request)).await;
        tried.unwrap_or_else(|_| {
            if limit < end {
                let seconds = self.settings.request_time.as_secs();
                let why = format!("the model did not answer within {seconds} s");
                Err(Tried::Again(why, None))
            } else {
                Err(Tried::Over(Unanswered::Time(self.time.whole())))
            }
        })
    }

    async fn exchange(&self, request: Vec<Bytes>) -> Result<Answer, Tried> {
        let answer = self.door.model(request).await.map_err(of_door)?;
        let (head, body) = answer.into_parts();
        if !head.status.is_success() {
            let body = Limited::new(body, MAX_PROBLEM).collect().await;
            let body = body.map(|it| it.to_bytes()).unwrap_or_default();
            let problem = self.model.problem(head.status.as_u16(), &body);
            return Err(of_problem(problem, &head.headers));
        }
        self.read(body).await.map_err(of_broken)
    }

    async fn read(&self, mut body: Incoming) -> Result<Answer, Broken> {
        let mut reader = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Broken::CutOff)?;
            let mut bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
            if reader.is_none() {
                // Some servers keep a connection alive with empty lines.
                bytes = bytes.trim_ascii_start();
            }
            let Some(first) = bytes.first() else {
                continue;
            };
            let reader = reader.get_or_insert_with(|| self.model.reader(Shape::of(*first)));
            reader.read(bytes)?;
            self.status.writing(reader.text());
            if reader.is_whole() {
                tokio::spawn(read_to_end(body));
                break;
            }
        }
        reader.ok_or(Broken::CutOff)?.finish()
    }
}

/// Reads what follows on an answer, which is nothing but its end: an answer that was read to there is one that nobody gave up.
/// Servers that leave it open are not waited for.
async fn read_to_end(body: Incoming) {
    let _ = timeout(END_PATIENCE, Limited::new(body, MAX_PROBLEM).collect()).await;
}

fn of_door(error: DoorError) -> Tried {
    let Refusal { code, message, retry_after_ms } = match error {
        DoorError::Refused(refusal) => refusal,
        DoorError::BrokenOff(_) => return of_broken(Broken::CutOff),
        error => return Tried::Over(Unanswered::Gone(error)),
    };
    match code {
        RefusalCode::Rate | RefusalCode::Busy | RefusalCode::Model | RefusalCode::Unavailable => {
            Tried::Again(message, retry_after_ms.map(Duration::from_millis))
        }
        RefusalCode::Size => Tried::TooLong(message),
        RefusalCode::Budget => Tried::Over(Unanswered::Budget(message)),
        _ => Tried::Over(Unanswered::Failed(message)),
    }
}

fn of_problem(problem: Problem, headers: &HeaderMap) -> Tried {
    match problem.remedy {
        Remedy::Retry if may_retry(headers) => Tried::Again(problem.message, retry_after(headers, SystemTime::now())),
        Remedy::Shorten => Tried::TooLong(problem.message),
        Remedy::Retry | Remedy::None => Tried::Over(Unanswered::Failed(problem.message)),
    }
}

fn of_broken(broken: Broken) -> Tried {
    match broken {
        Broken::Provider(problem) => of_problem(problem, &HeaderMap::new()),
        // Another answer may be whole, readable and shorter.
        broken => Tried::Again(broken.to_string(), None),
    }
}

/// Providers say so where trying again cannot help.
fn may_retry(headers: &HeaderMap) -> bool {
    headers.get("x-should-retry").is_none_or(|it| it != "false")
}

/// How long the provider wants us to wait.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if let Some(milliseconds) = number(headers, "retry-after-ms") {
        return Some(Duration::from_millis(milliseconds));
    }
    if let Some(seconds) = number(headers, RETRY_AFTER) {
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
    fn how_long_to_wait_is_read_in_every_form() {
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
