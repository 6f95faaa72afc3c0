//! How a part of a run says at the gateway who it is: a name and a password for a proxy.
//!
//! The name is `KEY.RUN.CREDENTIAL.EXPIRY`: which key signed it, the run's UID, the credential's name in the run's plan,
//! and the Unix time in seconds from which on it is worth nothing. The password is the HMAC-SHA256 of those, in
//! hexadecimal digits. Both pass through the user part of `http://USER:PASSWORD@HOST:PORT` as they are.
//!
//! A credential says who asks, and nothing about what may be reached: that is in the plan. The clock comes from the
//! caller. What was wrong with a credential is for the log; whoever sent it is told no.

mod keys;

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

pub use keys::{KeyId, KeyRing, MAX_KEYS, UnusableKeys};

/// What the code is about, so that no other use of the same key gives a code that fits here.
const DOMAIN: &[u8] = b"sympozium.ai/gateway-credential/v1";
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of a key's id.
pub const MAX_KEY_ID_BYTES: usize = 32;
/// Bytes of a run's UID.
pub const MAX_RUN_BYTES: usize = 64;
/// Bytes of a credential's name: a pack's, and a word before it.
pub const MAX_NAME_BYTES: usize = 272;
/// Digits of an expiry: until the year 5138.
const MAX_EXPIRY_DIGITS: usize = 11;
/// Bytes of the user part.
pub const MAX_USER_BYTES: usize = MAX_KEY_ID_BYTES + MAX_RUN_BYTES + MAX_NAME_BYTES + MAX_EXPIRY_DIGITS + 3;
/// Characters of the password.
pub const PASSWORD_BYTES: usize = 64;

/// Who asks, as far as a credential says so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claims {
    /// The run's UID.
    pub run: String,
    /// The credential's name in the run's plan.
    pub name: String,
    /// The Unix time in seconds from which on it is worth nothing.
    pub expires: u64,
}

/// A credential as it is sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Says who. Not secret.
    pub user: String,
    /// Proves it.
    pub password: Zeroizing<String>,
}

/// Why a credential is refused. For the log: whoever sent it learns nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not of the form.
    #[error("the credential is malformed")]
    Malformed,
    /// Signed with a key that is not among ours.
    #[error("the credential names a key that is not in use")]
    UnknownKey,
    /// The password does not belong to the name.
    #[error("the credential is forged or damaged")]
    Forged,
    /// Too late.
    #[error("the credential has expired")]
    Expired,
}

/// Claims that cannot be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsignable {
    /// The run's UID has characters, or so many, that the form does not allow.
    #[error("the run's UID does not fit into a credential")]
    Run,
    /// So has the name.
    #[error("the credential's name does not fit into a credential")]
    Name,
    /// Later than can be written.
    #[error("the credential expires too late")]
    Expiry,
}

impl KeyRing {
    /// Signs with the first key.
    ///
    /// # Errors
    ///
    /// When the claims do not fit the form.
    pub fn sign(&self, claims: &Claims) -> Result<Credential, Unsignable> {
        if !is_run(&claims.run) {
            return Err(Unsignable::Run);
        }
        if !is_name(&claims.name) {
            return Err(Unsignable::Name);
        }
        let expires = claims.expires.to_string();
        if expires.len() > MAX_EXPIRY_DIGITS {
            return Err(Unsignable::Expiry);
        }
        let (id, key) = self.signing();
        let code = code(id, key, claims);
        Ok(Credential { user: format!("{id}.{}.{}.{expires}", claims.run, claims.name), password: hexadecimal(&code) })
    }

    /// Who sent this, if the password is right and it has not expired at `now`, in seconds of Unix time.
    ///
    /// How long it takes depends on the lengths of what was sent and on the key's id, and on nothing secret.
    ///
    /// # Errors
    ///
    /// When it is no credential of ours, or no longer.
    pub fn verify(&self, user: &str, password: &str, now: u64) -> Result<Claims, Refused> {
        let (id, claims) = parse(user).ok_or(Refused::Malformed)?;
        if password.len() != PASSWORD_BYTES {
            return Err(Refused::Malformed);
        }
        let key = self.key(id).ok_or(Refused::UnknownKey)?;
        let expected = hexadecimal(&code(id, key, &claims));
        if !bool::from(expected.as_bytes().ct_eq(password.as_bytes())) {
            return Err(Refused::Forged);
        }
        // After the password: whoever has none learns nothing of times.
        if now >= claims.expires {
            return Err(Refused::Expired);
        }
        Ok(claims)
    }
}

impl Credential {
    /// The address of a proxy at `authority`, as `HTTP_PROXY` and the like take it.
    pub fn proxy_url(&self, authority: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("http://{}:{}@{authority}", self.user, *self.password))
    }
}

/// The password stays out of logs.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.user)
    }
}

/// The parts of a user name. A credential's name may have dots in it, nothing else may.
fn parse(user: &str) -> Option<(&str, Claims)> {
    if user.len() > MAX_USER_BYTES {
        return None;
    }
    let (id, rest) = user.split_once('.')?;
    let (run, rest) = rest.split_once('.')?;
    let (name, expires) = rest.rsplit_once('.')?;
    let plain = !expires.is_empty()
        && expires.len() <= MAX_EXPIRY_DIGITS
        && expires.bytes().all(|byte| byte.is_ascii_digit())
        // One way to write each number.
        && (expires == "0" || !expires.starts_with('0'));
    if !keys::is_key_id(id) || !is_run(run) || !is_name(name) || !plain {
        return None;
    }
    let claims = Claims { run: run.to_owned(), name: name.to_owned(), expires: expires.parse().ok()? };
    Some((id, claims))
}

fn is_run(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=MAX_RUN_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

/// Each field with its length before it, so that no two lists of fields are the same bytes.
fn code(id: &str, key: &[u8; KEY_BYTES], claims: &Claims) -> Zeroizing<[u8; 32]> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of every length");
    };
    let expires = claims.expires.to_be_bytes();
    let fields = [DOMAIN, id.as_bytes(), claims.run.as_bytes(), claims.name.as_bytes(), &expires];
    for field in fields {
        mac.update(&(field.len() as u64).to_be_bytes());
        mac.update(field);
    }
    Zeroizing::new(mac.finalize().into_bytes().into())
}

fn hexadecimal(bytes: &[u8; 32]) -> Zeroizing<String> {
    // As long as it will be from the start: growing would leave a copy behind.
    let mut text = Zeroizing::new(String::with_capacity(PASSWORD_BYTES));
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    text
}

#[cfg(test)]
mod tests;
