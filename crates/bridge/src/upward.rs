//! The bridge's side of the run API: one connection to the gateway, made again when it is lost.

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

use crate::key::secret_header;
use crate::outward::{Outward, OutwardError};

/// How long a connection may take to be made.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// How long the body of an answer may take once its head is there.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// How often the gateway is asked whether it is there, while something is waited for, and how long it has to say so.
const ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const ALIVE_DEADLINE: Duration = Duration::from_secs(20);
/// Bytes that the gateway may send ahead, for one request and for all.
const WINDOW: u32 = 1 << 20;

/// The way to the gateway's run API.
pub struct Upward {
    outward: Arc<Outward>,
    token: Box<TokenSource>,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// Gives the run's token as it is now: it is renewed in the course of a run.
pub type TokenSource = dyn Fn() -> Option<Zeroizing<String>> + Send + Sync;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The gateway cannot be reached. Nothing was sent.
    #[error("the gateway cannot be reached: {0}")]
    Unreachable(String),
    /// The run's token cannot be sent.
    #[error("the run's token has characters that no token has")]
    Token,
    /// The connection was lost. The gateway may have taken it, and may not.
    #[error("the connection to the gateway was lost")]
    Lost,
    /// It says no.
    #[error("the gateway refuses: {0}")]
    Refused(ApiRefusal),
    /// It says something that is no answer.
    #[error("the gateway's answer makes no sense")]
    Garbled,
}

impl Upward {
    /// With the run's own token. Without one the gateway is asked all the same, and says no where it wants one.
    pub fn new(outward: Arc<Outward>, token: impl Fn() -> Option<Zeroizing<String>> + Send + Sync + 'static) -> Self {
        Self { outward, token: Box::new(token), connection: Mutex::new(None) }
    }

    /// Says something to the gateway, and waits for its answer however long that takes.
    ///
    /// # Errors
    ///
    /// When there is none. Whether to say it again is the caller's to know.
    pub async fn post<A: DeserializeOwned>(&self, path: &'static str, body: &impl Serialize) -> Result<A, Unanswered> {
        let body = serde_json::to_vec(body).map_err(|_| Unanswered::Garbled)?;
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(|_| Unanswered::Garbled)?;
        let headers = request.headers_mut();
        if let Some(token) = (self.token)() {
            let value = Zeroizing::new(format!("Bearer {}", token.as_str()).into_bytes());
            let value = secret_header(value).map_err(|_| Unanswered::Token)?;
            headers.insert(header::AUTHORIZATION, value);
        }
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let mut connection = self.connection().await?;
        let sent = connection.send_request(request).await;
        let answer = sent.map_err(|_| Unanswered::Lost)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect();
        let body = timeout(BODY_DEADLINE, body).await;
        let body = body.map_err(|_| Unanswered::Lost)?;
        let body = body.map_err(|_| Unanswered::Lost)?.to_bytes();
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(|_| Unanswered::Garbled),
            _ => Err(serde_json::from_slice(&body).map_or(Unanswered::Garbled, Unanswered::Refused)),
        }
    }

    /// The next request has a connection of its own: this one does not answer.
    pub async fn forget(&self) {
        *self.connection.lock().await = None;
    }

    /// The connection, or a new one where it is gone.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, Unanswered> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_mut()
            && connection.ready().await.is_ok()
        {
            return Ok(connection.clone());
        }
        let connecting = timeout(CONNECT_DEADLINE, self.connect()).await;
        let connection = connecting
            .map_err(|_| Unanswered::Unreachable("it does not answer".to_owned()))?
            .map_err(|error| Unanswered::Unreachable(error.to_string()))?;
        *kept = Some(connection.clone());
        Ok(connection)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, NoConnection> {
        let stream = self.outward.run_api().await?;
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_reset_streams(16)
            // While somebody waits, and then only: a gateway that is gone without a word does not keep a question for ever.
            .timer(TokioTimer::new())
            .keep_alive_interval(ALIVE_INTERVAL)
            .keep_alive_timeout(ALIVE_DEADLINE)
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
enum NoConnection {
    #[error(transparent)]
    Outward(#[from] OutwardError),
    #[error("it does not speak HTTP/2")]
    Protocol(#[from] hyper::Error),
}
