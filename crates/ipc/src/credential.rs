//! Credentials that identify a part of a run at the gateway: a user name and a password for a proxy.
//!
//! The user name is `KEY.RUN.CREDENTIAL.EXPIRY`: the id of the signing key, the run's UID, the credential's name in the
//! run's plan, and the Unix time in seconds at which it expires. The password is the HMAC-SHA256 of those, in
//! hexadecimal digits. Both can be used without escaping in `http://USER:PASSWORD@HOST:PORT`.
//!
//! A credential identifies the sender, and does not define what it may reach: that is in the plan. The caller provides
//! the time. The reason for a refusal is for the log; the sender only gets a refusal.

mod keys;

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use sympozium_api::hex::encode;
use zeroize::Zeroizing;

pub use keys::{KeyId, KeyRing, KeyRingError, MAX_KEYS};

/// The domain of the MAC, so that no other use of the same key gives a MAC that is valid here.
const DOMAIN: &[u8] = b"sympozium.ai/gateway-credential/v1";
/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 32;
/// Limit for a key's id, in bytes.
pub const MAX_KEY_ID_BYTES: usize = 32;
/// Limit for a run's UID, in bytes.
pub const MAX_RUN_BYTES: usize = 64;
/// Limit for a credential's name, in bytes: a pack's name with a prefix.
pub const MAX_NAME_BYTES: usize = 272;
/// Limit for the digits of an expiry: until the year 5138.
const MAX_EXPIRY_DIGITS: usize = 11;
/// Limit for the user name, in bytes.
pub const MAX_USER_BYTES: usize = MAX_KEY_ID_BYTES + MAX_RUN_BYTES + MAX_NAME_BYTES + MAX_EXPIRY_DIGITS + 3;
/// Length of the password, in characters.
pub const PASSWORD_BYTES: usize = 64;

/// The claims of a credential.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claims {
    /// The run's UID.
    pub run: String,
    /// The credential's name in the run's plan.
    pub name: String,
    /// The Unix time in seconds at which it expires.
    pub expires: u64,
}

/// A credential as it is sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The claims and the key's id. Not secret.
    pub user: String,
    /// The proof of the claims.
    pub password: Zeroizing<String>,
}

/// Why a credential is refused. For the log only: the sender must not learn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// It does not have the required format.
    #[error("the credential is malformed")]
    Malformed,
    /// It was signed with a key that is not in use.
    #[error("the credential names a key that is not in use")]
    UnknownKey,
    /// The password does not match the claims.
    #[error("the credential is forged or damaged")]
    Forged,
    /// It has expired.
    #[error("the credential has expired")]
    Expired,
}

/// Why claims cannot be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimsError {
    /// The run's UID is too long or has other characters than the format allows.
    #[error("the run's UID does not fit into a credential")]
    Run,
    /// The name is too long or has other characters than the format allows.
    #[error("the credential's name does not fit into a credential")]
    Name,
    /// The expiry has too many digits.
    #[error("the credential expires too late")]
    Expiry,
}

impl KeyRing {
    /// Signs with the first key.
    ///
    /// # Errors
    ///
    /// When the claims do not fit the format.
    pub fn sign(&self, claims: &Claims) -> Result<Credential, ClaimsError> {
        if !is_run_uid(&claims.run) {
            return Err(ClaimsError::Run);
        }
        if !is_credential_name(&claims.name) {
            return Err(ClaimsError::Name);
        }
        let expires = claims.expires.to_string();
        if expires.len() > MAX_EXPIRY_DIGITS {
            return Err(ClaimsError::Expiry);
        }
        let (id, key) = self.signing_key();
        let code = compute_mac(id, key, claims);
        Ok(Credential {
            user: format!("{id}.{}.{}.{expires}", claims.run, claims.name),
            password: Zeroizing::new(encode(&*code)),
        })
    }

    /// Returns the claims, if the password is right and they have not expired at `now`, in seconds of Unix time.
    ///
    /// The duration depends on the lengths of the input and on the key's id, and on nothing secret.
    ///
    /// # Errors
    ///
    /// When it is not one of our credentials, or not valid any more.
    pub fn verify(&self, user: &str, password: &str, now: u64) -> Result<Claims, CredentialError> {
        let (id, claims) = parse_user(user).ok_or(CredentialError::Malformed)?;
        if password.len() != PASSWORD_BYTES {
            return Err(CredentialError::Malformed);
        }
        let key = self.key(id).ok_or(CredentialError::UnknownKey)?;
        let expected = Zeroizing::new(encode(&*compute_mac(id, key, &claims)));
        if !bool::from(expected.as_bytes().ct_eq(password.as_bytes())) {
            return Err(CredentialError::Forged);
        }
        // After the password: a sender without a valid one learns nothing about times.
        if now >= claims.expires {
            return Err(CredentialError::Expired);
        }
        Ok(claims)
    }
}

impl Credential {
    /// The URL of a proxy at `authority`, for `HTTP_PROXY` and similar variables.
    pub fn proxy_url(&self, authority: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("http://{}:{}@{authority}", self.user, *self.password))
    }
}

/// Does not print the password.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.user)
    }
}

/// Splits a user name. Only the credential's name may contain dots.
fn parse_user(user: &str) -> Option<(&str, Claims)> {
    if user.len() > MAX_USER_BYTES {
        return None;
    }
    let (id, rest) = user.split_once('.')?;
    let (run, rest) = rest.split_once('.')?;
    let (name, expires) = rest.rsplit_once('.')?;
    let plain = !expires.is_empty()
        && expires.len() <= MAX_EXPIRY_DIGITS
        && expires.bytes().all(|byte| byte.is_ascii_digit())
        // Each number has exactly one form.
        && (expires == "0" || !expires.starts_with('0'));
    if !keys::is_key_id(id) || !is_run_uid(run) || !is_credential_name(name) || !plain {
        return None;
    }
    let claims = Claims { run: run.to_owned(), name: name.to_owned(), expires: expires.parse().ok()? };
    Some((id, claims))
}

fn is_run_uid(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=MAX_RUN_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

fn is_credential_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

/// Each field is preceded by its length, so that no two lists of fields give the same bytes.
fn compute_mac(id: &str, key: &[u8; KEY_BYTES], claims: &Claims) -> Zeroizing<[u8; 32]> {
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

#[cfg(test)]
mod tests;
