//! The tool `fetch_url`: fetches one page through the gateway.
//!
//! The first URL and that of every redirect get a tunnel of their own with the web credential, so the gateway decides
//! about each of them: there is no list of hosts here. The size of the page is bounded after decompression, and it goes
//! to the agent as bytes: no parser of web pages runs in the process that has the model key.
//!
//! The pieces are functions of bytes: `address` parses a URL, `headers` checks the headers of a call, `frame` finds the
//! end of a body, `decode` decompresses it. `exchange` sends the one request.

mod address;
mod decode;
mod exchange;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod headers;

use std::error::Error as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sympozium_api::run_plan::ToolLimits;
use sympozium_ipc::credential::Credential;
use sympozium_ipc::door::{Refusal, RefusalCode, ToolAnswer};
use tokio::time::timeout;

use crate::egress_client::{EgressClient, Stream, TunnelError};
use address::{Address, AddressError, RedirectError};
use exchange::{PageResponse, ResponseError};
use headers::{HeaderError, Headers};

pub use address::{MAX_LOCATION_BYTES, MAX_URL_BYTES};
pub use decode::ENCODED_SLACK;
pub use exchange::{MAX_CONTENT_TYPE_BYTES, MAX_INTERIM_ANSWERS};
pub use frame::MAX_CHUNK_LINE_BYTES;
pub use headers::{MAX_HEADER_BYTES, MAX_HEADERS};

/// Maximum number of redirects that are followed for one call.
pub const MAX_REDIRECTS: usize = 5;
/// Maximum number of characters of the cause of an error.
const MAX_CAUSE: usize = 300;

/// Fetches a page. Every answer of the server is a page, including errors.
///
/// # Errors
///
/// * `Arguments`: the URL or a header cannot be sent.
/// * `Denied`: the gateway refuses the host, or a redirect must not be followed.
/// * `Unavailable`: the server does not answer, not in time, or not in valid HTTP.
/// * `Busy`, `Budget`: the gateway has no connection left, or has passed on as many bytes as it may.
pub async fn fetch(
    outward: &EgressClient,
    credential: &Credential,
    arguments: &Value,
    limits: &ToolLimits,
) -> Result<ToolAnswer, Refusal> {
    let seconds = limits.timeout_seconds;
    let fetching = fetch_page(outward, credential, arguments, limits);
    let fetched = timeout(Duration::from_secs(seconds.into()), fetching).await;
    fetched.unwrap_or(Err(FetchError::Timeout { seconds })).map_err(FetchError::into_refusal)
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("`{0}` is not of the kind that this tool takes")]
    Argument(&'static str),
    #[error("`url` cannot be fetched: {0}")]
    Address(#[from] AddressError),
    #[error("`headers` cannot be sent: {0}")]
    Header(#[from] HeaderError),
    #[error("`{host}` sends a redirect that is not followed: {why}")]
    Redirect { host: String, why: RedirectError },
    #[error("more than {MAX_REDIRECTS} redirects, the last by `{host}`")]
    TooManyRedirects { host: String },
    #[error("`{host}` cannot be reached: {source}")]
    Tunnel { host: String, source: TunnelError },
    // The gateway's own message is for people who configure a program.
    #[error("`{host}` cannot be reached: the gateway does not take this run's credential for the web (any more)")]
    Credential { host: String },
    #[error("`{host}` {source}")]
    Answer { host: String, source: ResponseError },
    #[error("no whole answer within {seconds} s")]
    Timeout { seconds: u32 },
}

impl FetchError {
    fn into_refusal(self) -> Refusal {
        let code = match &self {
            Self::Argument(_) | Self::Address(_) | Self::Header(_) => RefusalCode::Arguments,
            Self::Redirect { .. } | Self::Credential { .. } => RefusalCode::Denied,
            Self::Tunnel { source, .. } => refusal_code(source),
            Self::TooManyRedirects { .. } | Self::Answer { .. } | Self::Timeout { .. } => RefusalCode::Unavailable,
        };
        let mut message = self.to_string();
        if let Self::Tunnel { source, .. } = &self
            && let Some(cause) = source.source()
        {
            // The specific error of TLS or of the socket.
            message.push_str(": ");
            message.extend(cause.to_string().chars().take(MAX_CAUSE));
        }
        Refusal { code, message, retry_after_ms: None }
    }
}

/// Maps a refusal of the gateway to a code for the model: denied, busy, or unavailable.
fn refusal_code(error: &TunnelError) -> RefusalCode {
    match error {
        TunnelError::Refused { status, reason, .. } => match reason.as_deref() {
            Some(word) if word.starts_with("connections") => RefusalCode::Busy,
            Some(word) if word.starts_with("bytes-of") => RefusalCode::Budget,
            _ if (400..500).contains(status) => RefusalCode::Denied,
            _ => RefusalCode::Unavailable,
        },
        TunnelError::Host(_) => RefusalCode::Denied,
        _ => RefusalCode::Unavailable,
    }
}

async fn fetch_page(
    outward: &EgressClient,
    credential: &Credential,
    arguments: &Value,
    limits: &ToolLimits,
) -> Result<ToolAnswer, FetchError> {
    let url = arguments.get("url").and_then(Value::as_str);
    let asked = Address::parse(url.ok_or(FetchError::Argument("url"))?)?;
    let mut headers = match arguments.get("headers") {
        None => Headers::default(),
        Some(Value::Object(object)) => Headers::from_json(object)?,
        Some(_) => return Err(FetchError::Argument("headers")),
    };
    let most = usize::try_from(limits.output_bytes).unwrap_or(usize::MAX);
    let mut address = asked.clone();
    let mut redirects = 0;
    loop {
        let broken = |source| FetchError::Answer { host: address.authority(), source };
        let stream = open_stream(outward, credential, &address).await?;
        let answer = PageResponse::send(stream, &address, &headers).await.map_err(broken)?;
        let Some(location) = answer.location() else {
            let page = answer.read_page(most).await.map_err(broken)?;
            return Ok(ToolAnswer::Page {
                status: page.status,
                url: address.reported_url(&asked),
                content_type: page.content_type,
                body: STANDARD.encode(&page.body),
                truncated: page.truncated,
            });
        };
        let host = address.authority();
        if redirects == MAX_REDIRECTS {
            return Err(FetchError::TooManyRedirects { host });
        }
        redirects += 1;
        let next = address.resolve_redirect(location);
        let next = next.map_err(|why| FetchError::Redirect { host, why })?;
        if !next.has_same_origin(&address) {
            // Headers are meant for one server: another one does not get them, and a redirect back does not restore
            // them.
            headers = Headers::default();
        }
        address = next;
    }
}

async fn open_stream(outward: &EgressClient, credential: &Credential, address: &Address) -> Result<Stream, FetchError> {
    let unreached = |source| {
        let host = address.authority();
        match source {
            TunnelError::Refused { status: 407, .. } => FetchError::Credential { host },
            source => FetchError::Tunnel { host, source },
        }
    };
    let host = address.host();
    let tunnel = outward.tunnel(credential, host, address.port());
    let tunnel = tunnel.await.map_err(unreached)?;
    if !address.is_https() {
        return Ok(tunnel);
    }
    outward.start_tls(tunnel, host).await.map_err(unreached)
}
