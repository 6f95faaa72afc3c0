//! The headers of a call, and the head of the request.

use serde_json::{Map, Value};
use sympozium_api::text::quote;

use super::address::Address;

/// Maximum number of headers of one call.
pub const MAX_HEADERS: usize = 32;
/// Maximum number of bytes of all names and values together.
pub const MAX_HEADER_BYTES: usize = 8192;

/// Headers that belong to the connection, or that the URL decides.
const RESERVED_NAMES: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers with this prefix are for proxies.
const RESERVED_PREFIX: &str = "proxy-";

/// Sent unless the call sets them.
const DEFAULT_HEADERS: &[(&str, &str)] =
    &[("User-Agent", concat!("Sympozium/", env!("CARGO_PKG_VERSION"))), ("Accept", "*/*")];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("there are more than {MAX_HEADERS}")]
    TooMany,
    #[error("together they have more than {MAX_HEADER_BYTES} bytes")]
    TooLong,
    #[error("{} is not the name of a header", quote(.0))]
    Name(String),
    /// A header that a call may not set.
    #[error("{} is not for a call to choose; leave it out", quote(.0))]
    Reserved(String),
    #[error("the value of {} is not text of visible ASCII characters and spaces", quote(.0))]
    Value(String),
    /// Two names that differ in case only.
    #[error("{} comes twice", quote(.0))]
    Duplicate(String),
}

impl Headers {
    /// Parses the `headers` argument of a call.
    pub fn from_json(object: &Map<String, Value>) -> Result<Self, HeaderError> {
        if object.len() > MAX_HEADERS {
            return Err(HeaderError::TooMany);
        }
        let mut headers: Vec<(String, String)> = Vec::new();
        let mut bytes = 0;
        for (name, value) in object {
            check_name(name)?;
            let value = value.as_str().map(|text| text.trim_matches(' '));
            let visible = |text: &&str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
            let value = value.filter(visible);
            let value = value.ok_or_else(|| HeaderError::Value(name.to_owned()))?;
            if headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name)) {
                return Err(HeaderError::Duplicate(name.to_owned()));
            }
            bytes += name.len() + value.len();
            if bytes > MAX_HEADER_BYTES {
                return Err(HeaderError::TooLong);
            }
            headers.push((name.clone(), value.to_owned()));
        }
        Ok(Self(headers))
    }

    /// The head of a request for this URL. It is the only request on its connection.
    pub fn request_head(&self, address: &Address) -> String {
        let mut head = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept-Encoding: gzip, deflate\r\n",
            address.request_target(),
            address.authority()
        );
        let given = self.0.iter().map(|(name, value)| (&**name, &**value));
        let is_given = |name: &str| self.0.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
        let usual = DEFAULT_HEADERS.iter().filter(|(name, _)| !is_given(name)).copied();
        for (name, value) in usual.chain(given) {
            for piece in [name, ": ", value, "\r\n"] {
                head.push_str(piece);
            }
        }
        head.push_str("\r\n");
        head
    }
}

fn check_name(name: &str) -> Result<(), HeaderError> {
    // RFC 9110, section 5.6.2. A colon is not a token character, so HTTP/2 pseudo-headers are refused.
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(HeaderError::Name(name.to_owned()));
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED_NAMES.contains(&&*lower) || lower.starts_with(RESERVED_PREFIX) {
        return Err(HeaderError::Reserved(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
