//! Sends requests to a provider: through the gateway, with headers that the bridge sets.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sympozium_api::run_plan::{ModelEndpoint, ModelPlan, WireFormat};
use sympozium_ipc::credential::Credential;
use sympozium_program::error_chain;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::pool::{Connection, Pool, PooledConnection, RequestBody};
use super::redact::Redactor;
use super::request::AcceptedRequest;
use super::{ModelError, wire};
use crate::egress_client::{EgressClient, TunnelError};
use crate::key::ProviderKey;

/// Timeout for connecting to the provider, including TLS.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the head of the answer. Without streaming, the provider generates the whole answer first.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Maximum number of bytes of the head of an answer.
pub const MAX_HEAD: usize = 64 << 10;
/// Maximum number of headers of an answer.
pub const MAX_HEADERS: usize = 128;
/// Maximum number of bytes of a header that is passed to the agent. Longer ones are dropped.
pub const MAX_HEADER: usize = 1024;
/// Maximum number of characters of an error message.
const MAX_ERROR: usize = 600;

pub struct Proxy {
    egress: Arc<EgressClient>,
    credential: Credential,
    endpoint: ModelEndpoint,
    /// Host and port, for errors.
    authority: String,
    uri: Uri,
    headers: HeaderMap,
    redactors: Vec<Redactor>,
    pool: Arc<Pool>,
}

/// The secrets that go into the headers of every request.
pub struct Secrets {
    pub key: Option<ProviderKey>,
    /// Headers from a Secret.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Why there is no answer. The message is for the agent: it contains no key, header or credential.
#[derive(Debug, PartialEq, Eq)]
pub struct SendError {
    pub message: String,
    /// Whether the provider may have read the request.
    pub was_sent: bool,
    /// The status of an answer that is not passed on.
    pub status: Option<u16>,
}

impl SendError {
    fn unsent(message: String) -> Self {
        Self { message: message.chars().take(MAX_ERROR).collect(), was_sent: false, status: None }
    }

    fn sent(message: String) -> Self {
        Self { was_sent: true, ..Self::unsent(message) }
    }
}

impl Proxy {
    /// # Errors
    ///
    /// Returns an error if the plan's endpoint, headers or key cannot be sent.
    pub fn new(
        plan: &ModelPlan,
        endpoint: &ModelEndpoint,
        outward: Arc<EgressClient>,
        credential: Credential,
        secrets: Secrets,
    ) -> Result<Self, ModelError> {
        let path = || ModelError::Path(endpoint.path.clone());
        let uri: Uri = endpoint.path.parse().map_err(|_| path())?;
        if uri.authority().is_some() || !uri.path().starts_with('/') {
            return Err(path());
        }
        let usual = if endpoint.encrypted { 443 } else { 80 };
        let host =
            if endpoint.port == usual { endpoint.host.clone() } else { format!("{}:{}", endpoint.host, endpoint.port) };
        let host = HeaderValue::try_from(host).map_err(|_| path())?;
        let mut redactors = Vec::new();
        let headers = build_headers(plan, host, secrets, &mut redactors)?;
        Ok(Self {
            egress: outward,
            credential,
            authority: format!("{}:{}", endpoint.host, endpoint.port),
            endpoint: endpoint.clone(),
            uri,
            headers,
            redactors,
            pool: Arc::default(),
        })
    }

    /// Redactors for a new answer.
    pub fn redactors(&self) -> Vec<Redactor> {
        self.redactors.iter().map(Redactor::restart).collect()
    }

    /// The headers of an answer that are passed to the agent.
    pub fn filter_headers(&self, headers: &HeaderMap) -> HeaderMap {
        let passes = |name: &HeaderName, value: &HeaderValue| {
            let value = value.as_bytes();
            wire::is_passed_to_agent(name)
                && value.len() <= MAX_HEADER
                && !self.redactors.iter().any(|redactor| redactor.is_in(value))
        };
        let headers = headers.iter().filter(|(name, value)| passes(name, value));
        headers.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// A request is sent once. Only if nothing of it was written, because the provider had closed an idle connection,
    /// it is sent on a new one. Retries are up to the agent.
    pub async fn send(&self, accepted: AcceptedRequest) -> Result<(Response<Incoming>, PooledConnection), SendError> {
        let mut request = self.build_request(accepted);
        if let Some(mut kept) = self.pool.take().await {
            match self.try_send(&mut kept, request).await? {
                Ok(response) => return self.check_response(response, kept),
                Err(unsent) => request = unsent,
            }
        }
        let mut fresh = self.connect().await?;
        match self.try_send(&mut fresh, request).await? {
            Ok(response) => self.check_response(response, fresh),
            Err(_) => {
                Err(SendError::unsent(format!("the model at `{}` closed the connection at once", self.authority)))
            }
        }
    }

    fn build_request(&self, accepted: AcceptedRequest) -> Request<RequestBody> {
        const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
        const JSON: HeaderValue = HeaderValue::from_static("application/json");
        let mut request = Request::new(RequestBody::new(accepted.pieces));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let accept = if accepted.streamed { EVENTS } else { JSON };
        request.headers_mut().insert(header::ACCEPT, accept);
        request
    }

    /// The response, or the request if nothing of it was written.
    async fn try_send(
        &self,
        connection: &mut Connection,
        request: Request<RequestBody>,
    ) -> Result<Result<Response<Incoming>, Request<RequestBody>>, SendError> {
        let shown = &self.authority;
        match timeout(ANSWER_TIMEOUT, connection.try_send_request(request)).await {
            Ok(Ok(response)) => Ok(Ok(response)),
            Ok(Err(mut error)) => match error.take_message() {
                Some(unsent) => Ok(Err(unsent)),
                None => Err(SendError::sent(describe_error(shown, error.error()))),
            },
            Err(_) => Err(SendError::sent(format!(
                "the model at `{shown}` did not begin to answer in {} seconds",
                ANSWER_TIMEOUT.as_secs()
            ))),
        }
    }

    /// Refuses responses that must not be passed on: redirects, and those that cannot be redacted.
    fn check_response(
        &self,
        response: Response<Incoming>,
        connection: Connection,
    ) -> Result<(Response<Incoming>, PooledConnection), SendError> {
        let status = response.status();
        let shown = &self.authority;
        let encoding = response.headers().get(header::CONTENT_ENCODING);
        let problem = if status.is_informational() {
            Some(format!("the model at `{shown}` wants another protocol"))
        } else if status.is_redirection() {
            Some(format!(
                "the model at `{shown}` answers {}, which leads elsewhere and is not followed\n\
                 hint: write the address that it leads to as the model's `baseURL`",
                status.as_u16()
            ))
        } else if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            Some(format!("the model at `{shown}` packs its answer, which was not asked for"))
        } else {
            None
        };
        match problem {
            Some(message) => Err(SendError { status: Some(status.as_u16()), ..SendError::sent(message) }),
            None => Ok((response, PooledConnection { pool: Arc::clone(&self.pool), connection })),
        }
    }

    async fn connect(&self) -> Result<Connection, SendError> {
        let shown = &self.authority;
        match timeout(CONNECT_TIMEOUT, self.open_connection()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(message)) => Err(SendError::unsent(message)),
            Err(_) => Err(SendError::unsent(format!(
                "the model at `{shown}` cannot be reached in {} seconds",
                CONNECT_TIMEOUT.as_secs()
            ))),
        }
    }

    async fn open_connection(&self) -> Result<Connection, String> {
        let shown = &self.authority;
        let problem = |error: TunnelError| match error {
            TunnelError::Refused { message, .. } => {
                format!("the gateway refuses `{shown}`: {message}")
            }
            error => format!("the model at `{shown}` cannot be reached: {}", error_chain(&error)),
        };
        let (host, port) = (&self.endpoint.host, self.endpoint.port);
        let tunnel = self.egress.tunnel(&self.credential, host, port);
        let mut stream = tunnel.await.map_err(problem)?;
        if self.endpoint.encrypted {
            let encrypted = self.egress.start_tls(stream, host);
            stream = encrypted.await.map_err(problem)?;
        }
        let (connection, driver) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| describe_error(shown, &error))?;
        // Ends with the connection; pending requests get the error from hyper.
        tokio::spawn(async move {
            let _ = driver.await;
        });
        Ok(connection)
    }
}

/// All headers but `accept` and `content-length`.
fn build_headers(
    plan: &ModelPlan,
    host: HeaderValue,
    secrets: Secrets,
    redactors: &mut Vec<Redactor>,
) -> Result<HeaderMap, ModelError> {
    const USER_AGENT: &str = concat!("Sympozium/", env!("CARGO_PKG_VERSION"));
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, host);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    if plan.wire == WireFormat::Anthropic {
        let (name, value) = wire::ANTHROPIC_VERSION;
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Some(key) = secrets.key {
        let header = plan.resolve_key_header();
        let (value, secret) = key_header_value(header.value_prefix(), &key)?;
        redactors.extend(Redactor::new(secret));
        headers.insert(HeaderName::from_static(header.name()), value);
    }
    for (name, value) in &plan.headers {
        let unusable = || ModelError::Header(name.clone());
        let name = HeaderName::try_from(name).map_err(|_| unusable())?;
        let value = HeaderValue::try_from(value).map_err(|_| unusable())?;
        if wire::is_reserved_header(name.as_str()) {
            return Err(unusable());
        }
        headers.insert(name, value);
    }
    for (name, mut value) in secrets.headers {
        if wire::is_reserved_header(name.as_str()) {
            return Err(ModelError::Header(name.to_string()));
        }
        redactors.extend(secret_redactors(&value));
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// The header with the key, and the key within it. Both share one allocation, which is zeroised when both are dropped.
fn key_header_value(before: &str, key: &ProviderKey) -> Result<(HeaderValue, Bytes), ModelError> {
    // The full capacity from the start: reallocation would leave parts of the key behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(before.len() + key.expose().len()));
    bytes.extend_from_slice(before.as_bytes());
    bytes.extend_from_slice(key.expose().as_bytes());
    let bytes = Bytes::from_owner(bytes);
    let secret = bytes.slice(before.len()..);
    let mut value = HeaderValue::from_maybe_shared(bytes).map_err(|_| ModelError::Key)?;
    value.set_sensitive(true);
    Ok((value, secret))
}

/// Redactors for a header from a Secret: for its whole value, and for what follows a word such as `Bearer` in it.
fn secret_redactors(value: &HeaderValue) -> impl Iterator<Item = Redactor> {
    let whole = Bytes::from_owner(Zeroizing::new(value.as_bytes().to_vec()));
    let word = value.as_bytes().iter().rposition(|byte| *byte == b' ');
    let word = word.map(|space| whole.slice(space + 1..));
    [Some(whole), word].into_iter().flatten().filter_map(Redactor::new)
}

/// Describes an error of hyper. It contains nothing that the provider sent.
fn describe_error(shown: &str, error: &hyper::Error) -> String {
    let why = if error.is_parse() {
        "its answer is not HTTP, or its head is too large"
    } else if error.is_incomplete_message() {
        "the connection was closed before an answer came"
    } else {
        "the connection broke before an answer came"
    };
    format!("the model at `{shown}` gave no answer: {why}")
}
