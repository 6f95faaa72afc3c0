//! The state that all requests share: authentication, execution, and results that are stored.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use sympozium_exec::lookup::SkillName;
use sympozium_exec::request::DEFAULT_OUTPUT_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use uuid::Uuid;

use super::body::Call;
use super::calls::{Calls, Queue};
use super::handler::RequestContext;
use super::idempotency::{IdempotencyKeys, StoredResponse};
use super::metrics::{self, Metrics};
use super::response::{CallResult, ErrorResponse, json_response};
use super::tasks::{TaskState, Tasks};
use super::tokens::{Caller, Tokens};
use crate::isolation::IsolationSummary;

const TOKEN_HEADER: &str = "x-skill-token";
/// `Retry-After` for callers with too many tasks or keys [seconds].
pub const QUOTA_RETRY_AFTER: u32 = 60;

/// Bytes of the bodies of all requests that are read, wait or run; further requests are answered with 503.
const MAX_BODIES_BYTES: usize = 64 * 1024 * 1024;
/// The unit in which they are counted.
const BODY_UNIT: usize = 1024;

#[derive(Debug)]
pub struct ServerState {
    pub calls: Calls,
    /// `None` accepts every client that can connect.
    pub tokens: Option<Tokens>,
    pub tasks: Tasks,
    pub keys: IdempotencyKeys,
    /// From [`new_body_memory`].
    pub body_memory: Arc<Semaphore>,
    pub metrics: Arc<Metrics>,
    /// Part of every result.
    pub isolation: IsolationSummary,
    /// True from the beginning of the shutdown: tasks are cancelled.
    pub closing: watch::Receiver<bool>,
    /// True from the end of the grace period: all calls are cancelled.
    pub cancelling: watch::Receiver<bool>,
}

/// For [`MAX_BODIES_BYTES`].
pub fn new_body_memory() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_BODIES_BYTES / BODY_UNIT))
}

impl ServerState {
    /// Until the permit is dropped.
    pub fn reserve_body_memory(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ErrorResponse> {
        let units = u32::try_from(bytes / BODY_UNIT + 1).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.body_memory).try_acquire_many_owned(units);
        permit.map_err(|_| {
            let message = "the requests in progress are too large together";
            ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(1).close()
        })
    }

    pub fn authenticate(&self, headers: &HeaderMap, context: &RequestContext) -> Result<Caller, ErrorResponse> {
        let caller = match &self.tokens {
            Some(tokens) => {
                let mut values = headers.get_all(TOKEN_HEADER).iter();
                let token = values.next().filter(|_| values.next().is_none());
                token.and_then(|token| tokens.authenticate(token.as_bytes()))
            }
            None => {
                check_same_machine(headers)?;
                Some(Caller::UNAUTHENTICATED)
            }
        };
        let caller = caller.ok_or_else(|| {
            self.metrics.count_unauthorized();
            ErrorResponse::new(StatusCode::UNAUTHORIZED, "unauthorized")
        })?;
        context.set_caller(caller.index);
        Ok(caller)
    }

    /// Executes the call, or creates a task for it. Returns the status and the body of the response.
    pub async fn execute(
        self: &Arc<Self>,
        caller: Caller,
        skill: SkillName,
        call: Call,
        body_bytes: usize,
    ) -> StoredResponse {
        if call.is_long() {
            return self.create_task(caller, skill, call, body_bytes).await;
        }
        let mut cancelling = self.cancelling.clone();
        let stop = async {
            let _ = cancelling.wait_for(|cancelling| *cancelling).await;
        };
        let result = self.calls.run(&skill, call, Queue::Bounded, stop).await?;
        if matches!(result, CallResult::CancelledBeforeStart) {
            let error = ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down");
            return Err(error.close());
        }
        Ok((StatusCode::OK, result.to_json(self.isolation.as_json()).into()))
    }

    async fn create_task(
        self: &Arc<Self>,
        caller: Caller,
        skill: SkillName,
        call: Call,
        body_bytes: usize,
    ) -> StoredResponse {
        let bytes = body_bytes + 2 * DEFAULT_OUTPUT_BYTES;
        let created = self.tasks.create(caller, bytes, Instant::now());
        let (id, mut cancelled) = created.map_err(|error| {
            ErrorResponse::new(StatusCode::TOO_MANY_REQUESTS, error.to_string())
                .hint("a finished task is stored for an hour")
                .retry_after(QUOTA_RETRY_AFTER)
        })?;
        // A skill that cannot run is an error of this request, not of the task.
        if let Err(error) = self.calls.check(&skill).await {
            self.tasks.remove(id);
            return Err(error);
        }
        let state = Arc::clone(self);
        tokio::spawn(async move {
            let mut closing = state.closing.clone();
            let stop = async {
                tokio::select! {
                    _ = cancelled.wait_for(|cancelled| *cancelled) => {}
                    _ = closing.wait_for(|closing| *closing) => {}
                }
            };
            let result = state.calls.run(&skill, call, Queue::Task, stop).await;
            let result = result.unwrap_or_else(|error| {
                tracing::warn!(
                    task = %id,
                    skill = skill.as_str(),
                    status = error.status.as_u16(),
                    cause = error.cause.as_deref(),
                    "task failed"
                );
                CallResult::Failed(error.message)
            });
            state.tasks.finish(id, result, Instant::now());
        });
        Ok((StatusCode::ACCEPTED, pending_json(id)))
    }

    pub fn task_response(&self, caller: Caller, id: Uuid) -> Result<Response<Body>, ErrorResponse> {
        match self.tasks.find(caller, id, Instant::now()) {
            None => Err(task_not_found()),
            Some(TaskState::Pending) => Ok(json_response(StatusCode::OK, pending_json(id))),
            Some(TaskState::Finished(result)) => {
                Ok(json_response(StatusCode::OK, result.to_json(self.isolation.as_json())))
            }
        }
    }

    pub fn metrics_response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.metrics.render(self.tasks.counts())));
        let content_type = HeaderValue::from_static(metrics::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }
}

/// The same for a task that never existed, has expired, or belongs to another caller.
pub fn task_not_found() -> ErrorResponse {
    ErrorResponse::new(StatusCode::NOT_FOUND, "there is no such task")
}

fn pending_json(id: Uuid) -> Bytes {
    format!("{{\"status\":\"pending\",\"task_id\":\"{id}\"}}").into()
}

/// Without a token, requests that a web page makes a browser on this machine send must not be executed: they have an
/// origin, or a host that is not this machine.
fn check_same_machine(headers: &HeaderMap) -> Result<(), ErrorResponse> {
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
    Err(ErrorResponse::new(StatusCode::FORBIDDEN, "a server without a token answers only programs on its own machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_browsers_and_to_other_hosts_are_refused() {
        let allowed = |headers: &[(&'static str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            check_same_machine(&headers).is_ok()
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
