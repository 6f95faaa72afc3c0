//! From a request to its answer: record, route, check the key, read what is asked, take the next reply.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::body::{AnswerBody, Delivery};
use super::format::{Asked, Format, Piece, Pieces};
use super::record::{Recorded, Records};
use super::reply::{Answer, Cut, HttpAnswer, ProviderError, Reply};
use super::wire::Control;
use super::{MOST_REQUEST_BYTES, Shared};

/// What a connection's requests are answered with.
pub struct Service {
    pub shared: Arc<Shared>,
    pub control: Control,
    pub connection: u64,
}

/// A body as HTTP will send it.
struct Content {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    pieces: Pieces,
    /// Its size, unless it is sent in chunks.
    length: Option<u64>,
}

/// What is read of a request. The rest is the test's to look at.
#[derive(Deserialize)]
struct Wanted<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    messages: Option<Vec<IgnoredAny>>,
    max_tokens: Option<u64>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// Why a request gets no reply of the script.
struct Refused {
    status: u16,
    message: String,
}

fn refused(status: u16, message: impl Into<String>) -> Refused {
    Refused { status, message: message.into() }
}

/// Counts an answer as abandoned, unless it came to its end.
struct Waiting<'a> {
    records: &'a Records,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.records.add_abandoned();
        }
    }
}

impl Service {
    /// Answers one request. `earlier` is how many came by the same connection before.
    pub async fn answer(&self, request: Request<Incoming>, earlier: u64) -> Result<Response<AnswerBody>, hyper::Error> {
        let (parts, body) = request.into_parts();
        let (body, is_too_large) = match read_bounded(body).await? {
            Some(body) => (body, false),
            None => (Bytes::new(), true),
        };
        let recorded = Recorded::new(&parts, body, self.connection, earlier);
        let request = self.shared.records.add(recorded);
        self.control.allow(None);
        let format = self.format_of(&request);
        let asked =
            if is_too_large { Err(refused(413, "The request is too large.")) } else { self.read(format, &request) };
        match asked {
            Ok(asked) => {
                let reply = self.shared.next_reply();
                Ok(self.reply(&request, asked, &reply).await)
            }
            Err(Refused { status, message }) => {
                let error = ProviderError::new(status, message);
                let content = refusal(format, &error, &request);
                Ok(self.respond(content, Delivery::default()))
            }
        }
    }

    /// The format of the path; for an unknown one, that which the client seems to speak.
    fn format_of(&self, request: &Recorded) -> Format {
        let routes = &self.shared.routes;
        let route = routes.iter().find(|(path, _)| *path == request.path);
        match route {
            Some((_, format)) => *format,
            None if request.header("anthropic-version").is_some() => Format::Anthropic,
            None if request.header("api-key").is_some() => Format::AzureOpenAi,
            None => Format::OpenAi,
        }
    }

    /// What a request asks for, or the refusal that a provider has for it, in the order in which providers look.
    fn read(&self, format: Format, request: &Recorded) -> Result<Asked, Refused> {
        if !self.shared.routes.iter().any(|(it, _)| *it == request.path) {
            let message = format!("Invalid URL ({} {})", request.method, request.path);
            return Err(refused(404, message));
        }
        if request.method != "POST" {
            let message = format!("{} is not allowed here; use POST.", request.method);
            return Err(refused(405, message));
        }
        if let Some(key) = &self.shared.key
            && !has_key(format, request, key)
        {
            return Err(refused(401, "The API key is missing or wrong."));
        }
        if format == Format::Anthropic && request.header("anthropic-version").is_none() {
            return Err(refused(400, "anthropic-version: header is required"));
        }
        let wanted: Wanted<'_> = serde_json::from_slice(&request.body)
            .map_err(|error| refused(400, format!("The body cannot be read: {error}")))?;
        let missing = match &wanted {
            // At Azure the deployment in the path says which model it is.
            Wanted { model: None, .. } if format != Format::AzureOpenAi => Some("model"),
            Wanted { messages: None, .. } => Some("messages"),
            Wanted { max_tokens: None, .. } if format == Format::Anthropic => Some("max_tokens"),
            _ => None,
        };
        if let Some(field) = missing {
            return Err(refused(400, format!("{field}: field required")));
        }
        Ok(Asked {
            format,
            number: request.number,
            model: wanted.model.map(Cow::into_owned).unwrap_or_default(),
            streamed: wanted.stream,
            include_usage: wanted.stream_options.is_some_and(|it| it.include_usage),
        })
    }

    async fn reply(&self, request: &Recorded, asked: Asked, mut reply: &Reply) -> Response<AnswerBody> {
        let mut delivery = Delivery::default();
        let mut allowed = None;
        let content = loop {
            match reply {
                Reply::Gated(gate, inner) => {
                    delivery.gate = Some(gate.clone());
                    reply = inner;
                }
                Reply::Cut(cut, inner) => {
                    match *cut {
                        Cut::AfterBytes(bytes) => allowed = Some(bytes),
                        Cut::AfterPieces(pieces) => delivery.cut_after_pieces = Some(pieces),
                    }
                    reply = inner;
                }
                Reply::Answer(answer) => break content_of(asked, answer, request),
                Reply::Echo => {
                    let answer = Arc::new(Answer::text(request.to_text()));
                    break content_of(asked, &answer, request);
                }
                Reply::Huge { bytes } => {
                    let (format, streamed) = (asked.format, asked.streamed);
                    let (pieces, length) = asked.huge(*bytes);
                    break success(format, streamed, request, pieces, length);
                }
                Reply::Error(error) => break refusal(asked.format, error, request),
                Reply::Http(answer) => break verbatim(answer),
                Reply::Raw { bytes, then } => {
                    self.control.send_raw(bytes.clone(), *then);
                    break verbatim(&HttpAnswer { status: 200, ..HttpAnswer::default() });
                }
                Reply::Silence => {
                    let _waiting = self.waiting();
                    std::future::pending::<Infallible>().await;
                }
            }
        };
        // What has its size in its head is one answer: no part of it leaves before the gate.
        if content.length.is_some()
            && let Some(gate) = delivery.gate.take()
        {
            let mut waiting = self.waiting();
            poll_fn(|context| gate.poll_pass(context)).await;
            waiting.is_over = true;
        }
        self.control.allow(allowed);
        self.respond(content, delivery)
    }

    fn waiting(&self) -> Waiting<'_> {
        Waiting { records: &self.shared.records, is_over: false }
    }

    fn respond(&self, content: Content, delivery: Delivery) -> Response<AnswerBody> {
        let mut response = Response::new(AnswerBody::new(
            content.pieces,
            content.length,
            delivery,
            self.control.clone(),
            self.shared.records.clone(),
        ));
        *response.status_mut() = content.status;
        response.headers_mut().extend(content.headers.into_iter().map(|(name, value)| (Some(name), value)));
        response
    }
}

/// The body of a request, `None` if it is too large. One that says so in its head is not waited for.
async fn read_bounded(body: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    if body.size_hint().lower() > MOST_REQUEST_BYTES as u64 {
        return Ok(None);
    }
    match Limited::new(body, MOST_REQUEST_BYTES).collect().await {
        Ok(body) => Ok(Some(body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Ok(None),
        Err(error) => match error.downcast::<hyper::Error>() {
            Ok(error) => Err(*error),
            Err(error) => unreachable!("a limited body fails by HTTP or by its limit: {error}"),
        },
    }
}

/// Whether the key stands where the provider looks for it.
fn has_key(format: Format, request: &Recorded, key: &str) -> bool {
    match format {
        Format::OpenAi => {
            request.header("authorization").and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|it| it == key)
        }
        Format::AzureOpenAi => request.header("api-key") == Some(key),
        Format::Anthropic => request.header("x-api-key") == Some(key),
    }
}

fn content_of(asked: Asked, answer: &Arc<Answer>, request: &Recorded) -> Content {
    let (format, streamed) = (asked.format, asked.streamed);
    if streamed {
        return success(format, true, request, asked.stream(answer.clone()), None);
    }
    if let Some(failure) = &answer.failure {
        return refusal(format, failure, request);
    }
    let whole = asked.whole(answer);
    let length = whole.len() as u64;
    success(format, false, request, one(whole), Some(length))
}

fn success(format: Format, streamed: bool, request: &Recorded, pieces: Pieces, length: Option<u64>) -> Content {
    let mut headers =
        vec![content_type(if streamed { "text/event-stream; charset=utf-8" } else { "application/json" })];
    if streamed {
        headers.push((CACHE_CONTROL, HeaderValue::from_static("no-cache")));
    }
    headers.extend(request_id(format, request));
    Content { status: StatusCode::OK, headers, pieces, length }
}

fn refusal(format: Format, error: &ProviderError, request: &Recorded) -> Content {
    let body = match &error.body {
        Some(body) => body.clone(),
        None => format.error(error, &request_number(request)),
    };
    let mut headers = vec![content_type("application/json")];
    if error.status == 405 {
        headers.push((ALLOW, HeaderValue::from_static("POST")));
    }
    if let Some(value) = &error.retry_after {
        headers.push((RETRY_AFTER, header_value(value)));
    }
    headers.extend(request_id(format, request));
    Content { status: status(error.status), headers, length: Some(body.len() as u64), pieces: one(body) }
}

fn verbatim(answer: &HttpAnswer) -> Content {
    let length = match answer.pieces.as_slice() {
        [] => Some(0),
        [only] => Some(only.len() as u64),
        _ => None,
    };
    let pieces = answer.pieces.clone().into_iter();
    let headers = answer.headers.iter().map(|(name, value)| {
        let name = HeaderName::try_from(name.as_str());
        let name = name.unwrap_or_else(|error| panic!("the script has a bad header: {error}"));
        (name, header_value(value))
    });
    Content {
        status: status(answer.status),
        headers: headers.collect(),
        pieces: Box::new(pieces.map(|bytes| Piece { bytes, held: true })),
        length,
    }
}

fn one(bytes: Bytes) -> Pieces {
    let pieces = (!bytes.is_empty()).then_some(Piece { bytes, held: true });
    Box::new(pieces.into_iter())
}

fn content_type(value: &'static str) -> (HeaderName, HeaderValue) {
    (CONTENT_TYPE, HeaderValue::from_static(value))
}

fn request_id(format: Format, request: &Recorded) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_static(format.request_id_header());
    let value = HeaderValue::try_from(request_number(request)).ok()?;
    Some((name, value))
}

fn request_number(request: &Recorded) -> String {
    format!("req_{}", request.number)
}

fn header_value(value: &str) -> HeaderValue {
    HeaderValue::try_from(value).unwrap_or_else(|error| panic!("the script has a bad header value: {error}"))
}

fn status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or_else(|error| panic!("the script has a bad status: {error}"))
}
