//! What all requests share: who may call, what is executed, and what is kept of it.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use sympozium_exec::lookup::SkillName;
use sympozium_exec::request::DEFAULT_OUTPUT_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use uuid::Uuid;

use super::answer::{ErrorAnswer, Finished, json};
use super::body::Call;
use super::calls::{Calls, Queue};
use super::idempotency::{Keys, Stored};
use super::metrics::{self, Metrics};
use super::requests::Facts;
use super::tasks::{State, Tasks};
use super::tokens::{Caller, Tokens};
use crate::isolation::Isolation;

/// The header that carries the token.
pub const TOKEN_HEADER: &str = "x-skill-token";
/// When a caller with too many tasks or keys should come back [seconds].
pub const QUOTA_RETRY_AFTER: u32 = 60;

/// Bytes of the bodies of all requests that are being read, wait or run; what comes beyond is turned away.
pub const MAX_BODIES_BYTES: usize = 64 * 1024 * 1024;
/// In what steps they are counted.
const BODY_STEP: usize = 1024;

/// Everything that requests need.
#[derive(Debug)]
pub struct Site {
    /// The executor.
    pub calls: Calls,
    /// Who may call; `None` lets everybody who can connect.
    pub tokens: Option<Tokens>,
    /// Calls that nobody waits for.
    pub tasks: Tasks,
    /// Calls that must not be executed twice.
    pub keys: Keys,
    /// Room for bodies, as [`bodies`] makes it.
    pub bodies: Arc<Semaphore>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Told with every result.
    pub isolation: Isolation,
    /// True when no new work is begun, and tasks end.
    pub closing: watch::Receiver<bool>,
    /// True when calls that are still waited for end too.
    pub cancelling: watch::Receiver<bool>,
}

/// Room for [`MAX_BODIES_BYTES`].
pub fn bodies() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_BODIES_BYTES / BODY_STEP))
}

impl Site {
    /// Room for a body, until it is dropped.
    pub fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ErrorAnswer> {
        let steps = u32::try_from(bytes / BODY_STEP + 1).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.bodies).try_acquire_many_owned(steps);
        room.map_err(|_| {
            let message = "the requests in progress are too large together";
            ErrorAnswer::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(1).close()
        })
    }

    /// Who asks.
    pub fn caller(&self, headers: &HeaderMap, facts: &Facts) -> Result<Caller, ErrorAnswer> {
        let caller = match &self.tokens {
            Some(tokens) => {
                let mut values = headers.get_all(TOKEN_HEADER).iter();
                let token = values.next().filter(|_| values.next().is_none());
                token.and_then(|token| tokens.caller(token.as_bytes()))
            }
            None => {
                from_this_machine(headers)?;
                Some(Caller::ANYBODY)
            }
        };
        let caller = caller.ok_or_else(|| {
            self.metrics.unauthorized();
            ErrorAnswer::new(StatusCode::UNAUTHORIZED, "unauthorized")
        })?;
        facts.caller(caller.index);
        Ok(caller)
    }

    /// Executes at once, or begins a task; gives the status and the body of the answer.
    pub async fn execute(self: &Arc<Self>, caller: Caller, skill: SkillName, call: Call, body_bytes: usize) -> Stored {
        if call.is_long() {
            return self.begin_task(caller, skill, call, body_bytes).await;
        }
        let mut cancelling = self.cancelling.clone();
        let stop = async {
            let _ = cancelling.wait_for(|cancelling| *cancelling).await;
        };
        let finished = self.calls.run(&skill, call, Queue::Bounded, stop).await?;
        if matches!(finished, Finished::NeverRan) {
            let error = ErrorAnswer::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down");
            return Err(error.close());
        }
        Ok((StatusCode::OK, finished.to_json(self.isolation.as_json()).into()))
    }

    async fn begin_task(self: &Arc<Self>, caller: Caller, skill: SkillName, call: Call, body_bytes: usize) -> Stored {
        let bytes = body_bytes + 2 * DEFAULT_OUTPUT_BYTES;
        let begun = self.tasks.begin(caller, bytes, Instant::now());
        let (id, mut cancelled) = begun.map_err(|error| {
            ErrorAnswer::new(StatusCode::TOO_MANY_REQUESTS, error.to_string())
                .hint("a finished task is kept for an hour")
                .retry_after(QUOTA_RETRY_AFTER)
        })?;
        // What cannot run is said now, and not to whoever polls.
        if let Err(error) = self.calls.check(&skill).await {
            self.tasks.forget(id);
            return Err(error);
        }
        let site = Arc::clone(self);
        tokio::spawn(async move {
            let mut closing = site.closing.clone();
            let stop = async {
                tokio::select! {
                    _ = cancelled.wait_for(|cancelled| *cancelled) => {}
                    _ = closing.wait_for(|closing| *closing) => {}
                }
            };
            let finished = site.calls.run(&skill, call, Queue::Task, stop).await;
            let finished = finished.unwrap_or_else(|error| {
                tracing::warn!(
                    task = %id,
                    skill = skill.as_str(),
                    status = error.status.as_u16(),
                    cause = error.cause.as_deref(),
                    "a task failed"
                );
                Finished::Failed(error.message)
            });
            site.tasks.finish(id, finished, Instant::now());
        });
        Ok((StatusCode::ACCEPTED, pending(id)))
    }

    /// What the caller gets to see of a task.
    pub fn task(&self, caller: Caller, id: Uuid) -> Result<Response<Body>, ErrorAnswer> {
        match self.tasks.find(caller, id, Instant::now()) {
            None => Err(no_such_task()),
            Some(State::Pending) => Ok(json(StatusCode::OK, pending(id))),
            Some(State::Finished(finished)) => Ok(json(StatusCode::OK, finished.to_json(self.isolation.as_json()))),
        }
    }

    /// All counters.
    pub fn metrics_text(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.metrics.render(self.tasks.counts())));
        let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// The same for a task that never was, has expired, or is somebody else's.
pub fn no_such_task() -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::NOT_FOUND, "there is no such task")
}

fn pending(id: Uuid) -> Bytes {
    format!("{{\"status\":\"pending\",\"task_id\":\"{id}\"}}").into()
}

/// Without a token, whatever a browser on this machine was made to send would be executed: such requests have an
/// origin, or a host that is not this machine's.
fn from_this_machine(headers: &HeaderMap) -> Result<(), ErrorAnswer> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let name = host.map(|host| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    });
    let is_local = name.is_none_or(|name| {
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let address = address.parse::<std::net::IpAddr>();
        name == "localhost" || address.is_ok_and(|address| address.is_loopback())
    });
    if is_local && !headers.contains_key(ORIGIN) {
        return Ok(());
    }
    Err(ErrorAnswer::new(StatusCode::FORBIDDEN, "a server without a token answers only programs on its own machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_and_other_hosts_are_no_programs_of_this_machine() {
        let allowed = |headers: &[(&'static str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            from_this_machine(&headers).is_ok()
        };
        for host in ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]"] {
            assert!(allowed(&[("host", host)]), "{host}");
        }
        assert!(allowed(&[]));
        for host in ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "localhost."] {
            assert!(!allowed(&[("host", host)]), "{host}");
        }
        assert!(!allowed(&[("host", "localhost"), ("origin", "http://localhost")]));
    }
}
