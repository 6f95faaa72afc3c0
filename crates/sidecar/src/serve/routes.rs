//! The routes of both addresses.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use axum::routing::{get, post};
use hyper::body::Body as _;
use serde::Serialize;
use sympozium_exec::lookup::SkillName;
use uuid::Uuid;

use super::body::{Call, MAX_BODY_BYTES};
use super::calls::skill_not_found;
use super::handler::RequestContext;
use super::idempotency::{Claim, MAX_KEY_BYTES, is_valid_key};
use super::response::{ErrorResponse, json_response};
use super::state::{QUOTA_RETRY_AFTER, ServerState, task_not_found};

/// From the end of the head to the last byte of the body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// Requests with the same value are executed once.
const KEY_HEADER: &str = "idempotency-key";
/// Marks a response that was stored for an earlier request.
const REPLAYED_HEADER: &str = "idempotency-replayed";
const OPENAPI: &str = include_str!("openapi.json");

type HandlerResult = Result<Response<Body>, ErrorResponse>;
type Context = Extension<Arc<RequestContext>>;

pub fn caller_router(state: Arc<ServerState>) -> Router {
    Router::new()
        .route("/skill/{name}", post(call))
        .route("/task/{id}", get(poll_task).delete(cancel_task))
        .route("/skills", get(skills))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics_for_callers))
        .route("/openapi.json", get(openapi))
        .with_state(state)
}

pub fn probe_router(state: Arc<ServerState>) -> Router {
    Router::new().route("/healthz", get(health)).route("/metrics", get(metrics_for_probes)).with_state(state)
}

async fn health(Extension(context): Context) -> &'static str {
    context.set_route("/healthz");
    "ok"
}

async fn openapi(Extension(context): Context) -> Response<Body> {
    context.set_route("/openapi.json");
    json_response(StatusCode::OK, OPENAPI)
}

async fn metrics_for_callers(
    State(state): State<Arc<ServerState>>,
    Extension(context): Context,
    headers: HeaderMap,
) -> HandlerResult {
    context.set_route("/metrics");
    state.authenticate(&headers, &context)?;
    Ok(state.metrics_response())
}

async fn metrics_for_probes(State(state): State<Arc<ServerState>>, Extension(context): Context) -> Response<Body> {
    context.set_route("/metrics");
    state.metrics_response()
}

async fn skills(
    State(state): State<Arc<ServerState>>,
    Extension(context): Context,
    headers: HeaderMap,
) -> HandlerResult {
    #[derive(Serialize)]
    struct List {
        skills: Vec<Skill>,
    }
    #[derive(Serialize)]
    struct Skill {
        name: String,
    }
    context.set_route("/skills");
    state.authenticate(&headers, &context)?;
    let mut list = List { skills: Vec::new() };
    for (name, found) in state.calls.skills().await? {
        match found {
            Ok(()) => list.skills.push(Skill { name: name.as_str().to_owned() }),
            Err(error) => tracing::warn!(skill = name.as_str(), %error, "skill not offered"),
        }
    }
    let body = serde_json::to_vec(&list).unwrap_or_default();
    Ok(json_response(StatusCode::OK, body))
}

async fn call(
    State(state): State<Arc<ServerState>>,
    Extension(context): Context,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> HandlerResult {
    context.set_route("/skill/{name}");
    // First, before any byte of the body is read.
    let caller = state.authenticate(request.headers(), &context)?;
    let name = name.ok().and_then(|Path(name)| SkillName::parse(&name).ok());
    let Some(skill) = name else {
        state.metrics.count_refused();
        return Err(skill_not_found());
    };
    context.set_skill(&skill);
    let key = parse_idempotency_key(request.headers())?;
    let body_memory = state.reserve_body_memory(max_body_bytes(&request)?)?;
    let body = read_body(request).await?;
    let call = Call::parse(&body).map_err(|error| {
        state.metrics.count_refused();
        ErrorResponse { hint: error.hint, ..ErrorResponse::new(StatusCode::BAD_REQUEST, error.message).quoting_input() }
    })?;
    let bytes = body.len();
    let Some(key) = key else {
        drop(body);
        let (status, body) = state.execute(caller, skill, call, bytes).await?;
        return Ok(json_response(status, body));
    };
    let claim = (state.keys).claim(caller, &key, skill.as_str(), &body, Instant::now());
    let (mut stored, is_replay) = match claim {
        Claim::First(publisher) => {
            let stored = publisher.subscribe();
            let state = Arc::clone(&state);
            // Not cancelled when the caller disconnects: with a key it can repeat the request.
            tokio::spawn(async move {
                let stored = state.execute(caller, skill, call, bytes).await;
                drop(body_memory);
                state.keys.publish(publisher, stored, Instant::now());
            });
            (stored, false)
        }
        Claim::Repeated(stored) => (stored, true),
        Claim::Conflict => {
            return Err(ErrorResponse::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the idempotency key was used for another request",
            )
            .hint("use a new key for each new request"));
        }
        Claim::Full => {
            let error = ErrorResponse::new(StatusCode::TOO_MANY_REQUESTS, "too many idempotency keys are in use");
            return Err(error.retry_after(QUOTA_RETRY_AFTER));
        }
    };
    let result = stored.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
    let (status, body) =
        result.unwrap_or_else(|| Err(ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "the call failed")))?;
    let mut response = json_response(status, body);
    if is_replay {
        (response.headers_mut()).insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    }
    Ok(response)
}

async fn poll_task(
    State(state): State<Arc<ServerState>>,
    Extension(context): Context,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HandlerResult {
    context.set_route("/task/{id}");
    let caller = state.authenticate(&headers, &context)?;
    let id = parse_task_id(id).ok_or_else(task_not_found)?;
    state.task_response(caller, id)
}

async fn cancel_task(
    State(state): State<Arc<ServerState>>,
    Extension(context): Context,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HandlerResult {
    context.set_route("/task/{id}");
    let caller = state.authenticate(&headers, &context)?;
    let id = parse_task_id(id).ok_or_else(task_not_found)?;
    let mut ended = state.tasks.cancel(caller, id).ok_or_else(task_not_found)?;
    // Fails only when the task has expired, and then it had ended.
    let _ = ended.wait_for(|ended| *ended).await;
    state.task_response(caller, id)
}

/// Accepts only the form in which ids are issued.
fn parse_task_id(id: Result<Path<String>, PathRejection>) -> Option<Uuid> {
    let Path(text) = id.ok()?;
    let id = Uuid::try_parse(&text).ok()?;
    (id.hyphenated().to_string() == text).then_some(id)
}

fn parse_idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ErrorResponse> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(key) = values.next() else {
        return Ok(None);
    };
    match std::str::from_utf8(key.as_bytes()) {
        Ok(key) if is_valid_key(key.as_bytes()) && values.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(ErrorResponse::new(
            StatusCode::BAD_REQUEST,
            format!("Idempotency-Key: must be 1 to {MAX_KEY_BYTES} characters of visible ASCII"),
        )
        .close()),
    }
}

fn too_large() -> ErrorResponse {
    let message = format!("the body exceeds {MAX_BODY_BYTES} bytes");
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, message).close()
}

/// The declared length, or the limit for a body without one.
fn max_body_bytes(request: &Request<Body>) -> Result<usize, ErrorResponse> {
    let upper = request.body().size_hint().upper();
    let bytes = upper.map_or(Ok(MAX_BODY_BYTES), usize::try_from);
    bytes.ok().filter(|bytes| *bytes <= MAX_BODY_BYTES).ok_or_else(too_large)
}

async fn read_body(request: Request<Body>) -> Result<Bytes, ErrorResponse> {
    let mut body = request.into_body();
    let reading = async {
        let mut whole = Bytes::new();
        let mut parts: Vec<u8> = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| {
                ErrorResponse::new(StatusCode::BAD_REQUEST, "the body is malformed or cut short").cause(error).close()
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if whole.len() + parts.len() + data.len() > MAX_BODY_BYTES {
                return Err(too_large());
            }
            // Usually there is one part, which is not copied.
            if whole.is_empty() && parts.is_empty() {
                whole = data;
            } else {
                if parts.is_empty() {
                    parts.extend_from_slice(&std::mem::take(&mut whole));
                }
                parts.extend_from_slice(&data);
            }
        }
        Ok(if parts.is_empty() { whole } else { parts.into() })
    };
    match tokio::time::timeout(BODY_DEADLINE, reading).await {
        Ok(body) => body,
        Err(_) => Err(ErrorResponse::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} seconds", BODY_DEADLINE.as_secs()),
        )
        .close()),
    }
}
