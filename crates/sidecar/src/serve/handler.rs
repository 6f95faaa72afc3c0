//! Wraps the handling of every request: its id, its line in the log, and its errors as JSON.

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
use sympozium_ipc::strict_head::HeadError;
use uuid::Uuid;

use super::connections;
use super::metrics::Metrics;
use super::response::{ErrorResponse, to_milliseconds};
use super::strict_io::REFUSED_METHOD;

/// Of an id that a caller chose.
const MAX_REQUEST_ID_CHARS: usize = 128;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What the log says about a request; routes fill it in.
#[derive(Debug)]
pub struct RequestContext {
    request_id: String,
    route: OnceLock<&'static str>,
    skill: OnceLock<SkillName>,
    caller: OnceLock<u32>,
}

impl RequestContext {
    fn from_headers(headers: &HeaderMap) -> Self {
        let given = headers.get(&REQUEST_ID).map(HeaderValue::as_bytes);
        let given =
            given.filter(|id| (1..=MAX_REQUEST_ID_CHARS).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic));
        let given = given.and_then(|id| String::from_utf8(id.to_vec()).ok());
        Self {
            request_id: given.unwrap_or_else(|| Uuid::new_v4().to_string()),
            route: OnceLock::new(),
            skill: OnceLock::new(),
            caller: OnceLock::new(),
        }
    }

    /// The pattern, because the path may contain secrets.
    pub fn set_route(&self, route: &'static str) {
        let _ = self.route.set(route);
    }

    pub fn set_skill(&self, skill: &SkillName) {
        let _ = self.skill.set(skill.clone());
    }

    /// The caller's number, see [`Caller`](super::tokens::Caller).
    pub fn set_caller(&self, index: u32) {
        let _ = self.caller.set(index);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Callers,
    Probes,
}

/// Handles requests with a router.
#[derive(Clone)]
pub struct RequestHandler {
    router: TowerToHyperService<Router>,
    metrics: Arc<Metrics>,
    endpoint: Endpoint,
}

impl RequestHandler {
    pub fn new(router: Router, metrics: Arc<Metrics>, endpoint: Endpoint) -> Self {
        Self { router: TowerToHyperService::new(router), metrics, endpoint }
    }

    async fn route(&self, mut request: Request<Incoming>, context: &Arc<RequestContext>) -> Response<Body> {
        if request.method().as_str() == REFUSED_METHOD {
            context.set_route("refused");
            return refused_head(request.uri().path()).into_response();
        }
        request.extensions_mut().insert(Arc::clone(context));
        match self.router.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

impl connections::Handler for RequestHandler {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let mut log = AccessLog {
            method: request.method().as_str().to_owned(),
            context: Arc::new(RequestContext::from_headers(request.headers())),
            started: Instant::now(),
            is_written: false,
        };
        let response = self.route(request, &log.context).await;
        let error = find_error(&response);
        let mut response = match &error {
            None => response,
            Some(error) => {
                let mut with_body = error.to_response(&log.context.request_id);
                if let Some(allow) = response.headers().get(ALLOW) {
                    with_body.headers_mut().insert(ALLOW, allow.clone());
                }
                with_body
            }
        };
        if let Ok(id) = HeaderValue::from_str(&log.context.request_id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        let status = response.status();
        self.metrics.count_response(status.as_u16());
        log.write(status, error.as_ref());
        response
    }

    fn record_connections(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match self.endpoint {
            Endpoint::Callers => self.metrics.connections.set(count),
            Endpoint::Probes => self.metrics.probe_connections.set(count),
        };
    }
}

/// The response to a head that [`StrictIo`](super::strict_io::StrictIo) has refused; the path has the error's number.
fn refused_head(path: &str) -> ErrorResponse {
    let number = path.trim_start_matches('/').parse::<usize>().ok();
    let violation = number.and_then(|number| HeadError::ALL.get(number));
    let status = violation.map(|violation| violation.status());
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let message = violation.map_or_else(String::new, HeadError::to_string);
    ErrorResponse::new(status.unwrap_or(StatusCode::BAD_REQUEST), message).close()
}

/// The error that a response stands for. The router's own errors get their message here.
fn find_error(response: &Response<Body>) -> Option<ErrorResponse> {
    if let Some(error) = response.extensions().get::<ErrorResponse>() {
        return Some(error.clone());
    }
    let (message, hint) = match response.status() {
        StatusCode::NOT_FOUND => ("there is nothing at this path", "GET /openapi.json describes what there is"),
        StatusCode::METHOD_NOT_ALLOWED => {
            ("this path does not take this method", "the header Allow names those that it takes")
        }
        _ => return None,
    };
    Some(ErrorResponse::new(response.status(), message).hint(hint))
}

/// The line of a request in the log; written when dropped, if the caller has disconnected before the response. It never
/// contains arguments, variables, input, output, tokens or queries.
struct AccessLog {
    method: String,
    context: Arc<RequestContext>,
    started: Instant,
    is_written: bool,
}

impl AccessLog {
    fn write(&mut self, status: StatusCode, error: Option<&ErrorResponse>) {
        self.is_written = true;
        let context = &self.context;
        let route = context.route.get().copied().unwrap_or("none");
        let skill = context.skill.get().map(SkillName::as_str);
        let caller = context.caller.get().copied();
        let status = status.as_u16();
        let duration_ms = to_milliseconds(self.started.elapsed());
        let request_id = context.request_id.as_str();
        let method = self.method.as_str();
        let reason = error.map(ErrorResponse::loggable_message);
        let cause = error.and_then(|error| error.cause.as_deref());
        match status {
            500.. => {
                tracing::error!(method, route, skill, status, duration_ms, request_id, caller, reason, cause, "request")
            }
            400.. => {
                tracing::warn!(method, route, skill, status, duration_ms, request_id, caller, reason, cause, "request")
            }
            // Probes repeat every few seconds.
            _ if matches!(route, "/healthz" | "/metrics") => {
                tracing::debug!(method, route, status, duration_ms, request_id, caller, "request")
            }
            _ => tracing::info!(method, route, skill, status, duration_ms, request_id, caller, "request"),
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        if !self.is_written {
            tracing::info!(
                method = self.method.as_str(),
                route = self.context.route.get().copied().unwrap_or("none"),
                skill = self.context.skill.get().map(SkillName::as_str),
                duration_ms = to_milliseconds(self.started.elapsed()),
                request_id = self.context.request_id.as_str(),
                caller = self.context.caller.get().copied(),
                "the caller disconnected"
            );
        }
    }
}
