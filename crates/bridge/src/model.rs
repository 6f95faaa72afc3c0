//! The model proxy: the agent uses the provider's own wire format, and the bridge adds what the agent must not have.
//!
//! ```text
//! request ─► check ─► room? ─► connection ─► headers of ours ─► provider
//!                                                                  │
//! agent ◄─ redacted ◄─ bounded ◄─ counted ◄─────────────── as it arrives
//! ```
//!
//! * [`request`] decides which requests are forwarded. Pure.
//! * `account` enforces the limits: requests, requests per minute, tokens, concurrent requests.
//! * `proxy` and `pool` send a request, once, through the gateway.
//! * `answer` is the way back. `usage`, `scan` and `text_length` count what passes, and `redact` removes secrets.
//!
//! It follows no redirect, retries nothing and changes no byte of a message. A model with predefined answers is in
//! [`crate::scripted`], behind the same checks and limits.

mod account;
mod answer;
mod pool;
mod proxy;
pub(crate) mod redact;
pub mod request;
mod scan;
mod text_length;
pub(crate) mod usage;
mod wire;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response};
use sympozium_api::RunPlan;
use sympozium_api::run_plan::WireFormat;
use sympozium_ipc::credential::Credential;
use sympozium_ipc::door::{Refusal, RefusalCode};

pub use account::MAX_CONCURRENT;
pub use answer::{AnswerBody, AnswerError, CHUNK_TIMEOUT};
pub use pool::IDLE_TIMEOUT;
pub use proxy::{ANSWER_TIMEOUT, CONNECT_TIMEOUT, MAX_HEAD, MAX_HEADER, MAX_HEADERS};
pub(crate) use wire::is_reserved_header;

use account::{Account, Exchange};
use answer::AnswerSource;
use proxy::{Proxy, Secrets};
use request::{AcceptedRequest, Pieces, RequestRules, total_length};
use text_length::{Counting, TextLength};

use crate::egress_client::EgressClient;
use crate::key::ProviderKey;
use crate::scripted::{Player, ScriptError};

pub struct Model {
    rules: RequestRules,
    wire: WireFormat,
    answer_bytes: u64,
    account: Arc<Account>,
    endpoint: Endpoint,
}

enum Endpoint {
    Provider(Box<Proxy>),
    Scripted(Player),
}

pub struct ModelParts<'a> {
    pub plan: &'a RunPlan,
    pub egress: Arc<EgressClient>,
    /// The credential for the model at the gateway. A scripted model needs none.
    pub credential: Option<Credential>,
    /// The model key, if the provider requires one.
    pub key: Option<ProviderKey>,
    /// Headers from a Secret.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The script of a scripted model.
    pub script: Option<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("the plan names neither an endpoint nor a script for the model `{0}`")]
    NoEndpoint(String),
    #[error("there is no credential to reach the model through the gateway")]
    NoCredential,
    #[error("no request can be made to `{0}`")]
    Path(String),
    #[error("the header `{0}` of the model is not one, or not for a plan to set")]
    Header(String),
    #[error("the provider's key cannot be a header")]
    Key,
    /// A scripted model answers in one format only.
    #[error("a scripted model speaks as OpenAI does, and the plan has another format")]
    ScriptFormat,
    #[error("the script cannot be used")]
    Script(#[from] ScriptError),
}

/// The totals of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeStats {
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Prompt tokens.
    pub input_tokens: Option<u64>,
    /// Completion tokens.
    pub output_tokens: Option<u64>,
    /// Whether one of them is an estimate, because the provider did not report it.
    pub estimated: bool,
    /// Why the request was refused, or was not completed.
    pub error: Option<String>,
}

/// The totals of all requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// Requests that passed the limits.
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Whether some of them are estimates.
    pub estimated: bool,
}

impl ModelUsage {
    const fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl Model {
    /// The model of a plan.
    ///
    /// # Errors
    ///
    /// Returns an error if the plan or its secrets cannot be used.
    pub fn new(parts: ModelParts<'_>) -> Result<Self, ModelError> {
        let plan = &parts.plan.model;
        let endpoint = match (&plan.endpoint, parts.script) {
            (Some(endpoint), _) => {
                let credential = parts.credential.ok_or(ModelError::NoCredential)?;
                let secrets = Secrets { key: parts.key, headers: parts.headers };
                let proxy = Proxy::new(plan, endpoint, parts.egress, credential, secrets)?;
                Endpoint::Provider(Box::new(proxy))
            }
            (None, Some(_)) if plan.wire != WireFormat::OpenAi => {
                return Err(ModelError::ScriptFormat);
            }
            (None, Some(script)) => Endpoint::Scripted(Player::new(&script)?),
            (None, None) => return Err(ModelError::NoEndpoint(plan.model.clone())),
        };
        Ok(Self {
            rules: RequestRules::new(parts.plan),
            wire: plan.wire,
            answer_bytes: parts.plan.limits.model_answer_bytes,
            account: Arc::new(Account::new(&parts.plan.limits)),
            endpoint,
        })
    }

    /// Forwards one request of the agent in the provider's own format, and streams the answer.
    ///
    /// `ended` is called exactly once: when the last byte of the answer was passed on, when the answer broke off, when
    /// the agent dropped it, or at once with the refusal. `sent_bytes` is 0 if nothing was sent to the provider.
    ///
    /// # Errors
    ///
    /// Returns the refusal for the agent. An error of the provider is an answer, not an error.
    pub async fn ask(
        self: &Arc<Self>,
        body: Bytes,
        ended: impl FnOnce(ExchangeStats) + Send + 'static,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let account = Arc::clone(&self.account);
        let mut exchange = Exchange::new(account, self.wire, Box::new(ended));
        let admitted = self.rules.check(&body).and_then(|accepted| {
            exchange.begin(count_text(&accepted.pieces))?;
            Ok(accepted)
        });
        let answered = match (admitted, &self.endpoint) {
            (Err(refusal), _) => Err(refusal),
            (Ok(accepted), Endpoint::Provider(proxy)) => self.ask_provider(proxy, accepted, &mut exchange).await,
            (Ok(accepted), Endpoint::Scripted(player)) => {
                ask_scripted(player, &body, accepted.streamed, &mut exchange).await
            }
        };
        match answered {
            Ok((response, redactors)) => {
                Ok(response.map(|source| AnswerBody::new(source, redactors, self.answer_bytes, exchange)))
            }
            Err(refusal) => {
                exchange.end(Some(refusal.message.clone()));
                Err(refusal)
            }
        }
    }

    pub fn usage(&self) -> ModelUsage {
        self.account.usage()
    }

    async fn ask_provider(
        &self,
        proxy: &Proxy,
        accepted: AcceptedRequest,
        exchange: &mut Exchange,
    ) -> Result<(Response<AnswerSource>, Vec<redact::Redactor>), Refusal> {
        let bytes = total_length(&accepted.pieces);
        // Set before sending, because this future may be dropped after the request was sent. Reset if nothing was sent.
        exchange.set_sent(bytes);
        let (response, connection) = match proxy.send(accepted).await {
            Ok(answered) => answered,
            Err(failed) => {
                if !failed.was_sent {
                    exchange.set_sent(0);
                }
                if let Some(status) = failed.status {
                    exchange.begin_answer(status, None);
                }
                return Err(Refusal { code: RefusalCode::Model, message: failed.message, retry_after_ms: None });
            }
        };
        let (head, body) = response.into_parts();
        let content_type = head.headers.get(http::header::CONTENT_TYPE);
        let content_type = content_type.map(HeaderValue::as_bytes);
        exchange.begin_answer(head.status.as_u16(), content_type);
        let mut answer = Response::new(AnswerSource::Provider(body, Some(connection)));
        *answer.status_mut() = head.status;
        *answer.headers_mut() = proxy.filter_headers(&head.headers);
        Ok((answer, proxy.redactors()))
    }
}

/// Bytes of text in a request.
fn count_text(pieces: &Pieces) -> u64 {
    let mut text = TextLength::new(Counting::Request);
    pieces.iter().for_each(|piece| text.read(piece));
    text.bytes()
}

async fn ask_scripted(
    player: &Player,
    body: &[u8],
    streamed: bool,
    exchange: &mut Exchange,
) -> Result<(Response<AnswerSource>, Vec<redact::Redactor>), Refusal> {
    exchange.set_sent(body.len() as u64);
    let answer = player.play(body, streamed).inspect_err(|_| exchange.set_sent(0))?;
    if !answer.delay.is_zero() {
        tokio::time::sleep(answer.delay).await;
    }
    let content_type = answer.content_type;
    exchange.begin_answer(answer.status.as_u16(), Some(content_type.as_bytes()));
    let mut response = Response::new(AnswerSource::Buffered(answer.pieces));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(seconds) = answer.retry_after_seconds {
        headers.insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok((response, Vec::new()))
}
