//! Authentication of requests: a key for one start of one executor, and on each request a counter, an expiry and a
//! message authentication code (MAC).
//!
//! Where commands can write to the volume (gVisor has no Landlock), a request file proves nothing about its author. So
//! an executor that verifies announces its start with a random [`StartNonce`] and the isolation of its commands, and
//! serves nothing yet. The bridge compares that isolation with the floor of the run and answers the first start with a
//! [`RequestKey`] for its nonce; the executor reads the key once and unlinks it before its first command. An executor
//! that was restarted has a new nonce, for which the bridge writes no key: a key that a command planted before the
//! restart names a nonce that the command could not know.
//!
//! The MAC is HMAC-SHA-256 over a domain prefix, a NUL and the RFC 8785 form of the request without `_meta.mac`. It is
//! computed from the parsed request, so that what is verified is what is executed.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Map, Value, json};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use sympozium_api::digest::CanonicalJsonError;
use sympozium_api::hex::encode;
use zeroize::Zeroizing;

use crate::message::{ExecRequest, RequestError};
use crate::volume::fill_random;
use crate::{hex, unique_keys};

/// Separates these MACs from any other use of HMAC-SHA-256.
pub const DOMAIN: &str = "sympozium.ai/ipc-request/v1";
/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Length of a start nonce, in bytes.
pub const NONCE_BYTES: usize = 16;
/// The largest counter: the largest integer that every JSON parser reads exactly.
pub const MAX_COUNTER: u64 = (1 << 53) - 1;

const COUNTER: &str = "counter";
const EXPIRES: &str = "expiresAtMs";
const MAC: &str = "mac";

/// Identifies one start of an executor. Not secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartNonce([u8; NONCE_BYTES]);

impl StartNonce {
    /// Generates a random nonce.
    ///
    /// # Errors
    /// When the kernel provides no randomness.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; NONCE_BYTES];
        fill_random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The nonce as hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        encode(&self.0)
    }

    /// Parses hexadecimal digits.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        hex::decode(digits).map(|bytes| Self(*bytes))
    }
}

/// The announcement of an executor's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartReport {
    /// The nonce of this start.
    pub nonce: StartNonce,
    /// The isolation around its commands, in the format of `_meta.isolation` of results.
    pub isolation: Value,
}

impl StartReport {
    /// The content of the announcement file: one line of JSON.
    #[must_use]
    pub fn to_line(&self) -> String {
        let report = json!({ "nonce": self.nonce.to_hex(), "isolation": self.isolation });
        format!("{report}\n")
    }

    /// Parses the content of an announcement file. `None` if it is not exactly one announcement.
    #[must_use]
    pub fn parse(content: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content).ok()?.strip_suffix('\n')?;
        let Value::Object(mut fields) = unique_keys::from_str(text).ok()? else {
            return None;
        };
        let report = Self {
            nonce: StartNonce::from_hex(fields.remove("nonce")?.as_str()?)?,
            isolation: fields.remove("isolation")?,
        };
        fields.is_empty().then_some(report)
    }
}

/// The key of one skill in one run. Zeroized when dropped.
pub struct RequestKey(Zeroizing<[u8; KEY_BYTES]>);

impl RequestKey {
    /// Generates a random key.
    ///
    /// # Errors
    /// When the kernel provides no randomness.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        fill_random(&mut *bytes)?;
        Ok(Self(bytes))
    }

    /// Uses these bytes, which must be secret.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(crate) fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(encode(&*self.0))
    }

    pub(crate) fn from_hex(digits: &str) -> Option<Self> {
        hex::decode(digits).map(Self)
    }

    /// The MAC of a request, computed without `_meta.mac`.
    fn mac(&self, request: &ExecRequest) -> Result<[u8; 32], CanonicalJsonError> {
        let meta = request.meta.as_ref().map(|meta| {
            let mut meta = meta.clone();
            meta.remove(MAC);
            meta
        });
        let json = request.to_canonical_json(meta.as_ref())?;
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&*self.0) else {
            unreachable!("HMAC takes keys of every length");
        };
        mac.update(DOMAIN.as_bytes());
        // A separator that no domain contains, so that a domain cannot run on into a request.
        mac.update(&[0]);
        mac.update(&json);
        Ok(mac.finalize().into_bytes().into())
    }
}

/// Does not print the key.
impl fmt::Debug for RequestKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RequestKey(..)")
    }
}

/// Why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The request cannot be written as canonical JSON.
    #[error("the request cannot be signed")]
    Json(#[from] CanonicalJsonError),
    /// The counter has reached [`MAX_COUNTER`].
    #[error("the run has made more requests than it may")]
    Exhausted,
}

/// The bridge's side: signs requests with a strictly increasing counter.
#[derive(Debug)]
pub struct Signer {
    key: RequestKey,
    last_counter: u64,
}

impl Signer {
    /// Signs with this key, starting at counter 1.
    #[must_use]
    pub fn new(key: RequestKey) -> Self {
        Self { key, last_counter: 0 }
    }

    /// The key, to be handed to the executor.
    #[must_use]
    pub fn key(&self) -> &RequestKey {
        &self.key
    }

    /// Adds counter, expiry and MAC to the request's `_meta`. An executor does not start it after `expires`.
    ///
    /// # Errors
    /// When the counter is exhausted, or the request cannot be written as canonical JSON.
    pub fn sign(&mut self, request: &mut ExecRequest, expires: SystemTime) -> Result<(), SignError> {
        if self.last_counter >= MAX_COUNTER {
            return Err(SignError::Exhausted);
        }
        let counter = self.last_counter + 1;
        let meta = request.meta.get_or_insert_with(Map::new);
        meta.insert(COUNTER.to_owned(), counter.into());
        meta.insert(EXPIRES.to_owned(), unix_milliseconds(expires).into());
        let mac = self.key.mac(request)?;
        let mac = Value::from(encode(&mac));
        let meta = request.meta.get_or_insert_with(Map::new);
        meta.insert(MAC.to_owned(), mac);
        self.last_counter = counter;
        Ok(())
    }
}

/// Why an executor does not serve a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// It cannot be parsed as a request.
    #[error("it is not a request of the bridge: {0}")]
    Unreadable(RequestError),
    /// The MAC is missing or malformed.
    #[error("it carries no MAC of the bridge")]
    Unsigned,
    /// The MAC is not that of this request under this executor's key.
    #[error("its MAC is wrong: the bridge did not write it, or not for this executor")]
    Forged,
    /// A request with this counter, or with a later one, was served.
    #[error("its counter {counter} is not above {last}: it is replayed or out of order")]
    Replayed {
        /// The counter of this request.
        counter: u64,
        /// The counter of the last request that was served.
        last: u64,
    },
    /// The bridge no longer waits for it.
    #[error("it has expired: the bridge no longer waits for it")]
    Expired,
}

/// The executor's side: verifies requests and their order.
#[derive(Debug)]
pub struct Verifier {
    key: RequestKey,
    last_counter: u64,
}

impl Verifier {
    /// Verifies with this key.
    #[must_use]
    pub fn new(key: RequestKey) -> Self {
        Self { key, last_counter: 0 }
    }

    /// The counter of the last request that was served; 0 before the first.
    #[must_use]
    pub fn last_counter(&self) -> u64 {
        self.last_counter
    }

    /// Returns the counter of a request that the bridge signed, that was not served yet and has not expired at `now`.
    /// Changes no state: a refused request leaves no trace in the verifier.
    ///
    /// The duration of the comparison does not depend on the MAC.
    ///
    /// # Errors
    /// Why the request must not be served.
    pub fn check(&self, request: &ExecRequest, now: SystemTime) -> Result<u64, VerifyError> {
        let meta = request.meta.as_ref().ok_or(VerifyError::Unsigned)?;
        let number = |name: &str| meta.get(name).and_then(Value::as_u64);
        let sent = meta.get(MAC).and_then(Value::as_str);
        let sent = sent.and_then(hex::decode::<32>);
        let sent = sent.ok_or(VerifyError::Unsigned)?;
        let expected = self.key.mac(request).map_err(|_| VerifyError::Forged)?;
        if !bool::from(expected.ct_eq(&*sent)) {
            return Err(VerifyError::Forged);
        }
        // Only now: the author of a forged request learns nothing about counters and times.
        let (Some(counter), Some(expires)) = (number(COUNTER), number(EXPIRES)) else {
            return Err(VerifyError::Unsigned);
        };
        if counter <= self.last_counter {
            let last = self.last_counter;
            return Err(VerifyError::Replayed { counter, last });
        }
        if unix_milliseconds(now) >= expires {
            return Err(VerifyError::Expired);
        }
        Ok(counter)
    }

    /// To be called when the request with this counter is served: from now on only later ones are.
    pub fn advance(&mut self, counter: u64) {
        self.last_counter = self.last_counter.max(counter);
    }
}

/// Milliseconds since 1970.
fn unix_milliseconds(time: SystemTime) -> u64 {
    let since: Duration = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).map_or(MAX_COUNTER, |millis| millis.min(MAX_COUNTER))
}
