//! What can be asked for, and by whom.

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

use super::answer::{ErrorAnswer, json};
use super::body::{Call, MAX_BODY_BYTES};
use super::calls::no_such_skill;
use super::idempotency::{Claim, MAX_KEY_BYTES, is_key};
use super::requests::Facts;
use super::site::{QUOTA_RETRY_AFTER, Site, no_such_task};

/// From the first byte of a body to its last.
pub const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// The header that makes a request the same as another one.
pub const KEY_HEADER: &str = "idempotency-key";
/// The header of an answer that was made for an earlier request.
pub const REPLAYED_HEADER: &str = "idempotency-replayed";
/// The description of all this.
pub const OPENAPI: &str = include_str!("openapi.json");

type Answer = Result<Response<Body>, ErrorAnswer>;
type Asked = Extension<Arc<Facts>>;

/// What callers are offered.
pub fn callers(site: Arc<Site>) -> Router {
    Router::new()
        .route("/skill/{name}", post(call))
        .route("/task/{id}", get(poll_task).delete(cancel_task))
        .route("/skills", get(skills))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics_for_callers))
        .route("/openapi.json", get(openapi))
        .with_state(site)
}

/// What probes are offered.
pub fn probes(site: Arc<Site>) -> Router {
    Router::new().route("/healthz", get(health)).route("/metrics", get(metrics_for_probes)).with_state(site)
}

async fn health(Extension(facts): Asked) -> &'static str {
    facts.route("/healthz");
    "ok"
}

async fn openapi(Extension(facts): Asked) -> Response<Body> {
    facts.route("/openapi.json");
    json(StatusCode::OK, OPENAPI)
}

async fn metrics_for_callers(State(site): State<Arc<Site>>, Extension(facts): Asked, headers: HeaderMap) -> Answer {
    facts.route("/metrics");
    site.caller(&headers, &facts)?;
    Ok(site.metrics_text())
}

async fn metrics_for_probes(State(site): State<Arc<Site>>, Extension(facts): Asked) -> Response<Body> {
    facts.route("/metrics");
    site.metrics_text()
}

async fn skills(State(site): State<Arc<Site>>, Extension(facts): Asked, headers: HeaderMap) -> Answer {
    #[derive(Serialize)]
    struct List {
        skills: Vec<Skill>,
    }
    #[derive(Serialize)]
    struct Skill {
        name: String,
    }
    facts.route("/skills");
    site.caller(&headers, &facts)?;
    let mut list = List { skills: Vec::new() };
    for (name, found) in site.calls.skills().await? {
        match found {
            Ok(()) => list.skills.push(Skill { name: name.as_str().to_owned() }),
            Err(error) => tracing::warn!(skill = name.as_str(), %error, "a skill is not offered"),
        }
    }
    let body = serde_json::to_vec(&list).unwrap_or_default();
    Ok(json(StatusCode::OK, body))
}

async fn call(
    State(site): State<Arc<Site>>,
    Extension(facts): Asked,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Answer {
    facts.route("/skill/{name}");
    // First of all, and before anything of the body is read.
    let caller = site.caller(request.headers(), &facts)?;
    let name = name.ok().and_then(|Path(name)| SkillName::parse(&name).ok());
    let Some(skill) = name else {
        site.metrics.refused();
        return Err(no_such_skill());
    };
    facts.skill(&skill);
    let key = idempotency_key(request.headers())?;
    let room = site.room_for(body_bytes(&request)?)?;
    let body = read_body(request).await?;
    let call = Call::parse(&body).map_err(|error| {
        site.metrics.refused();
        ErrorAnswer { hint: error.hint, ..ErrorAnswer::new(StatusCode::BAD_REQUEST, error.message).quoting() }
    })?;
    let bytes = body.len();
    let Some(key) = key else {
        drop(body);
        let (status, body) = site.execute(caller, skill, call, bytes).await?;
        return Ok(json(status, body));
    };
    let claim = (site.keys).claim(caller, &key, skill.as_str(), &body, Instant::now());
    let (mut answer, is_replay) = match claim {
        Claim::First(first) => {
            let answer = first.answer();
            let site = Arc::clone(&site);
            // Not ended when its caller hangs up: whoever sends a key means to ask again.
            tokio::spawn(async move {
                let stored = site.execute(caller, skill, call, bytes).await;
                drop(room);
                site.keys.finish(first, stored, Instant::now());
            });
            (answer, false)
        }
        Claim::Again(answer) => (answer, true),
        Claim::Conflict => {
            return Err(ErrorAnswer::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the idempotency key was used for another request",
            )
            .hint("use a new key for each request that is not a repetition"));
        }
        Claim::Full => {
            let error = ErrorAnswer::new(StatusCode::TOO_MANY_REQUESTS, "too many idempotency keys are in use");
            return Err(error.retry_after(QUOTA_RETRY_AFTER));
        }
    };
    let stored = answer.wait_for(Option::is_some).await;
    let stored = stored.ok().and_then(|stored| stored.clone());
    let (status, body) =
        stored.unwrap_or_else(|| Err(ErrorAnswer::new(StatusCode::INTERNAL_SERVER_ERROR, "the call failed")))?;
    let mut response = json(status, body);
    if is_replay {
        (response.headers_mut()).insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    }
    Ok(response)
}

async fn poll_task(
    State(site): State<Arc<Site>>,
    Extension(facts): Asked,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Answer {
    facts.route("/task/{id}");
    let caller = site.caller(&headers, &facts)?;
    let id = task_id(id).ok_or_else(no_such_task)?;
    site.task(caller, id)
}

async fn cancel_task(
    State(site): State<Arc<Site>>,
    Extension(facts): Asked,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Answer {
    facts.route("/task/{id}");
    let caller = site.caller(&headers, &facts)?;
    let id = task_id(id).ok_or_else(no_such_task)?;
    let mut ended = site.tasks.cancel(caller, id).ok_or_else(no_such_task)?;
    // Fails only when the task has been thrown away, and then it had ended.
    let _ = ended.wait_for(|ended| *ended).await;
    site.task(caller, id)
}

/// Only in the form in which it was given out.
fn task_id(id: Result<Path<String>, PathRejection>) -> Option<Uuid> {
    let Path(text) = id.ok()?;
    let id = Uuid::try_parse(&text).ok()?;
    (id.hyphenated().to_string() == text).then_some(id)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ErrorAnswer> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(key) = values.next() else {
        return Ok(None);
    };
    match std::str::from_utf8(key.as_bytes()) {
        Ok(key) if is_key(key.as_bytes()) && values.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(ErrorAnswer::new(
            StatusCode::BAD_REQUEST,
            format!("Idempotency-Key: must be 1 to {MAX_KEY_BYTES} characters of visible ASCII"),
        )
        .close()),
    }
}

fn too_large() -> ErrorAnswer {
    let message = format!("the body exceeds {MAX_BODY_BYTES} bytes");
    ErrorAnswer::new(StatusCode::PAYLOAD_TOO_LARGE, message).close()
}

/// How large the body will be, at most.
fn body_bytes(request: &Request<Body>) -> Result<usize, ErrorAnswer> {
    let upper = request.body().size_hint().upper();
    let bytes = upper.map_or(Ok(MAX_BODY_BYTES), usize::try_from);
    bytes.ok().filter(|bytes| *bytes <= MAX_BODY_BYTES).ok_or_else(too_large)
}

async fn read_body(request: Request<Body>) -> Result<Bytes, ErrorAnswer> {
    let mut body = request.into_body();
    let reading = async {
        let mut whole = Bytes::new();
        let mut parts: Vec<u8> = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| {
                ErrorAnswer::new(StatusCode::BAD_REQUEST, "the body is malformed or cut short").cause(error).close()
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if whole.len() + parts.len() + data.len() > MAX_BODY_BYTES {
                return Err(too_large());
            }
            // Mostly there is one part, and that need not be copied.
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
        Err(_) => Err(ErrorAnswer::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} seconds", BODY_DEADLINE.as_secs()),
        )
        .close()),
    }
}
