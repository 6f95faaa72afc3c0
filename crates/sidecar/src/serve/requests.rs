//! Around every request: its id, its line in the log, and its errors as JSON.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::header::{ALLOW, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use sympozium_exec::lookup::SkillName;
use uuid::Uuid;

use super::answer::{ErrorAnswer, milliseconds};
use super::connections;
use super::metrics::Metrics;
use super::strict_io::REFUSED_METHOD;
use sympozium_ipc::strict_head::HeadError;

/// Characters of a request id that a caller chose.
pub const MAX_REQUEST_ID: usize = 128;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What is known of a request by the time it is logged.
#[derive(Debug)]
pub struct Facts {
    request_id: String,
    route: OnceLock<&'static str>,
    skill: OnceLock<SkillName>,
    caller: OnceLock<u32>,
}

impl Facts {
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(&REQUEST_ID).map(HeaderValue::as_bytes);
        let given = given.filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic));
        let given = given.and_then(|id| String::from_utf8(id.to_vec()).ok());
        Self {
            request_id: given.unwrap_or_else(|| Uuid::new_v4().to_string()),
            route: OnceLock::new(),
            skill: OnceLock::new(),
            caller: OnceLock::new(),
        }
    }

    /// Which route it took. The path itself may hold anything.
    pub fn route(&self, route: &'static str) {
        let _ = self.route.set(route);
    }

    /// Which skill it names.
    pub fn skill(&self, skill: &SkillName) {
        let _ = self.skill.set(skill.clone());
    }

    /// Who sent it.
    pub fn caller(&self, index: u32) {
        let _ = self.caller.set(index);
    }
}

/// Where connections are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Those of callers.
    Callers,
    /// Those of probes.
    Probes,
}

/// Answers requests by a router.
#[derive(Clone)]
pub struct Requests {
    router: TowerToHyperService<Router>,
    metrics: Arc<Metrics>,
    side: Side,
}

impl Requests {
    /// By this one.
    pub fn new(router: Router, metrics: Arc<Metrics>, side: Side) -> Self {
        Self { router: TowerToHyperService::new(router), metrics, side }
    }

    async fn respond(&self, mut request: Request<Incoming>, facts: &Arc<Facts>) -> Response<Body> {
        if request.method().as_str() == REFUSED_METHOD {
            facts.route("refused");
            return refused(request.uri().path()).into_response();
        }
        request.extensions_mut().insert(Arc::clone(facts));
        match self.router.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

impl connections::Answer for Requests {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let mut line = Line {
            method: request.method().as_str().to_owned(),
            facts: Arc::new(Facts::of(request.headers())),
            started: Instant::now(),
            answered: false,
        };
        let response = self.respond(request, &line.facts).await;
        let error = error_of(&response);
        let mut response = match &error {
            None => response,
            Some(error) => {
                let mut told = error.to_response(&line.facts.request_id);
                if let Some(allow) = response.headers().get(ALLOW) {
                    told.headers_mut().insert(ALLOW, allow.clone());
                }
                told
            }
        };
        if let Ok(id) = HeaderValue::from_str(&line.facts.request_id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        let status = response.status();
        self.metrics.answered(status.as_u16());
        line.write(status, error.as_ref());
        response
    }

    fn connections(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match self.side {
            Side::Callers => self.metrics.connections.set(count),
            Side::Probes => self.metrics.probe_connections.set(count),
        };
    }
}

/// The answer to a head that was refused before the parser saw it.
fn refused(path: &str) -> ErrorAnswer {
    let number = path.trim_start_matches('/').parse::<usize>().ok();
    let violation = number.and_then(|number| HeadError::ALL.get(number));
    let status = violation.map(|violation| violation.status());
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let message = violation.map_or_else(String::new, HeadError::to_string);
    ErrorAnswer::new(status.unwrap_or(StatusCode::BAD_REQUEST), message).close()
}

/// The error that an answer stands for. Answers of the router itself have no words yet.
fn error_of(response: &Response<Body>) -> Option<ErrorAnswer> {
    if let Some(error) = response.extensions().get::<ErrorAnswer>() {
        return Some(error.clone());
    }
    let (message, hint) = match response.status() {
        StatusCode::NOT_FOUND => ("there is nothing at this path", "GET /openapi.json describes what there is"),
        StatusCode::METHOD_NOT_ALLOWED => {
            ("this path does not take this method", "the header Allow names those that it takes")
        }
        _ => return None,
    };
    Some(ErrorAnswer::new(response.status(), message).hint(hint))
}

/// The line of a request in the log. Never arguments, variables, input, output, tokens or queries.
struct Line {
    method: String,
    facts: Arc<Facts>,
    started: Instant,
    answered: bool,
}

impl Line {
    fn write(&mut self, status: StatusCode, error: Option<&ErrorAnswer>) {
        self.answered = true;
        let facts = &self.facts;
        let route = facts.route.get().copied().unwrap_or("none");
        let skill = facts.skill.get().map(SkillName::as_str);
        let caller = facts.caller.get().copied();
        let status = status.as_u16();
        let duration_ms = milliseconds(self.started.elapsed());
        let request_id = facts.request_id.as_str();
        let method = self.method.as_str();
        let reason = error.map(ErrorAnswer::reason);
        let cause = error.and_then(|error| error.cause.as_deref());
        match status {
            500.. => {
                tracing::error!(method, route, skill, status, duration_ms, request_id, caller, reason, cause, "request")
            }
            400.. => {
                tracing::warn!(method, route, skill, status, duration_ms, request_id, caller, reason, cause, "request")
            }
            // Probes come every few seconds, for ever.
            _ if matches!(route, "/healthz" | "/metrics") => {
                tracing::debug!(method, route, status, duration_ms, request_id, caller, "request")
            }
            _ => tracing::info!(method, route, skill, status, duration_ms, request_id, caller, "request"),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.answered {
            tracing::info!(
                method = self.method.as_str(),
                route = self.facts.route.get().copied().unwrap_or("none"),
                skill = self.facts.skill.get().map(SkillName::as_str),
                duration_ms = milliseconds(self.started.elapsed()),
                request_id = self.facts.request_id.as_str(),
                caller = self.facts.caller.get().copied(),
                "the caller hung up"
            );
        }
    }
}
