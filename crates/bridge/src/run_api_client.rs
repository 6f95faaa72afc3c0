//! The client of the run API: one connection to the gateway, opened again when it is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sympozium_ipc::run_api::{ApiRefusal, MAX_ANSWER};
use tokio::sync::Mutex;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::egress_client::{EgressClient, EgressError};
use crate::key::secret_header;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the body of an answer, after its head has arrived.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval and timeout of HTTP/2 pings while a request is pending.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow-control window, for one request and for all together.
const WINDOW: u32 = 1 << 20;

pub struct RunApiClient {
    egress: Arc<EgressClient>,
    token: Box<TokenSource>,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// Returns the current token of the run: it is renewed in the course of a run.
pub type TokenSource = dyn Fn() -> Option<Zeroizing<String>> + Send + Sync;

#[derive(Debug, thiserror::Error)]
pub enum RunApiError {
    /// The gateway is unreachable. Nothing was sent.
    #[error("the gateway cannot be reached: {0}")]
    Unreachable(String),
    /// The run's token cannot be sent in a header.
    #[error("the run's token has characters that no token has")]
    Token,
    /// The connection was lost. The gateway may have handled the request or not.
    #[error("the connection to the gateway was lost")]
    Lost,
    /// The gateway refused the request.
    #[error("the gateway refuses: {0}")]
    Refused(ApiRefusal),
    /// The answer cannot be parsed.
    #[error("the gateway's answer makes no sense")]
    InvalidAnswer,
}

impl RunApiClient {
    /// `token` gives the run's token. Without one, requests are sent anyway, and the gateway refuses them if it
    /// requires one.
    pub fn new(
        outward: Arc<EgressClient>,
        token: impl Fn() -> Option<Zeroizing<String>> + Send + Sync + 'static,
    ) -> Self {
        Self { egress: outward, token: Box::new(token), connection: Mutex::new(None) }
    }

    /// Sends a request to the gateway, and waits for its answer without a timeout.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer. Only the caller knows whether the request can be sent again.
    pub async fn post<A: DeserializeOwned>(&self, path: &'static str, body: &impl Serialize) -> Result<A, RunApiError> {
        let body = serde_json::to_vec(body).map_err(|_| RunApiError::InvalidAnswer)?;
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(|_| RunApiError::InvalidAnswer)?;
        let headers = request.headers_mut();
        if let Some(token) = (self.token)() {
            let value = Zeroizing::new(format!("Bearer {}", token.as_str()).into_bytes());
            let value = secret_header(value).map_err(|_| RunApiError::Token)?;
            headers.insert(header::AUTHORIZATION, value);
        }
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let mut connection = self.connection().await?;
        let sent = connection.send_request(request).await;
        let answer = sent.map_err(|_| RunApiError::Lost)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect();
        let body = timeout(BODY_TIMEOUT, body).await;
        let body = body.map_err(|_| RunApiError::Lost)?;
        let body = body.map_err(|_| RunApiError::Lost)?.to_bytes();
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(|_| RunApiError::InvalidAnswer),
            _ => Err(serde_json::from_slice(&body).map_or(RunApiError::InvalidAnswer, RunApiError::Refused)),
        }
    }

    /// Drops the connection, because it does not answer. The next request opens a new one.
    pub async fn disconnect(&self) {
        *self.connection.lock().await = None;
    }

    /// The current connection, or a new one.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, RunApiError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_mut()
            && connection.ready().await.is_ok()
        {
            return Ok(connection.clone());
        }
        let connecting = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let connection = connecting
            .map_err(|_| RunApiError::Unreachable("it does not answer".to_owned()))?
            .map_err(|error| RunApiError::Unreachable(error.to_string()))?;
        *kept = Some(connection.clone());
        Ok(connection)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ConnectError> {
        let stream = self.egress.connect_run_api().await?;
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_reset_streams(16)
            // Only while a request is pending: a gateway that vanished silently must not block a question for ever.
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(false)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the gateway ended");
            }
        });
        Ok(requests)
    }
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("it does not speak HTTP/2")]
    Protocol(#[from] hyper::Error),
}
