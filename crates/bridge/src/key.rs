//! The model key: taken out of the environment, never printed, zeroised when it is dropped.

use std::fmt;

use bytes::Bytes;
use http::HeaderValue;
use http::header::InvalidHeaderValue;
use sympozium_api::names::EnvName;
use sympozium_api::run_plan::ModelKey;
use sympozium_exec::secret_env::{self, SecretError};
use zeroize::{Zeroize as _, Zeroizing};

pub struct ProviderKey {
    variable: EnvName,
    value: Zeroizing<String>,
}

/// Why there is no usable key. Contains no part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The environment could not be read and overwritten.
    #[error("the key in {variable} cannot be taken")]
    Environment {
        variable: EnvName,
        #[source]
        source: SecretError,
    },
    #[error("the key in {0} has a space, a control character or another one that no header can hold")]
    Characters(EnvName),
}

impl ProviderKey {
    /// Takes every key variable of the plan out of the environment, and returns the first that is set and not empty.
    /// The others are overwritten as well: the memory of this process contains no key that is not in use.
    ///
    /// Must be called before the first thread is started and before the lockdown, as [`secret_env::take`] requires.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable cannot be overwritten, or if the first key is not valid in a header.
    pub fn take(keys: &[ModelKey]) -> Result<Option<Self>, KeyError> {
        let mut first = None;
        for key in keys {
            let variable = key.variable.clone();
            let taken = secret_env::take(variable.as_str());
            let taken = taken.map_err(|source| KeyError::Environment { variable: variable.clone(), source })?;
            if let (Some(value), None) = (taken, &first) {
                first = Self::new(variable, value).transpose();
            }
        }
        first.transpose()
    }

    /// A key of these bytes, without trailing line breaks; `None` if nothing is left.
    ///
    /// # Errors
    ///
    /// Returns an error if a header cannot hold it.
    pub fn new(variable: EnvName, mut value: Zeroizing<Vec<u8>>) -> Result<Option<Self>, KeyError> {
        while let Some(b'\n' | b'\r') = value.last() {
            value.pop();
        }
        if value.is_empty() {
            return Ok(None);
        }
        // The value is not copied: a copy would have to be zeroised too.
        match String::from_utf8(std::mem::take(&mut *value)) {
            Ok(text) => {
                let value = Zeroizing::new(text);
                if value.bytes().all(|byte| byte.is_ascii_graphic()) {
                    Ok(Some(Self { variable, value }))
                } else {
                    Err(KeyError::Characters(variable))
                }
            }
            Err(error) => {
                error.into_bytes().zeroize();
                Err(KeyError::Characters(variable))
            }
        }
    }

    /// The variable that the key was in.
    pub const fn variable(&self) -> &EnvName {
        &self.variable
    }

    /// The key, for the one header that carries it.
    pub fn expose(&self) -> &str {
        &self.value
    }
}

/// A header value that is secret: marked as sensitive, and zeroised when the last reference is dropped.
///
/// # Errors
///
/// Returns an error if a header cannot hold it.
pub(crate) fn secret_header(bytes: Zeroizing<Vec<u8>>) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(bytes))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Prints the variable, and nothing of the key.
impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderKey({})", self.variable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Err` for refused, `None` for absent.
    fn read(value: &[u8]) -> Result<Option<String>, String> {
        let key = ProviderKey::new("API_KEY".into(), Zeroizing::new(value.to_vec()));
        key.map(|read| read.map(|key| key.expose().to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_a_key() {
        for (value, key) in [
            (&b""[..], None),
            (b"\n", None),
            (b"\r\n\r\n", None),
            (b"sk-1", Some("sk-1")),
            (b"sk-1\n", Some("sk-1")),
            (b"sk-1\r\n", Some("sk-1")),
            (b"a=b:c~!", Some("a=b:c~!")),
        ] {
            assert_eq!(read(value), Ok(key.map(str::to_owned)), "{value:?}");
        }
        for value in [
            &b"sk-1\nX: y"[..],
            b"\nsk-1",
            b"sk\r1",
            b"sk\t1",
            b"sk 1",
            b"sk\x001",
            b"sk\x7f",
            "sk-ü".as_bytes(),
            b"sk-\xff",
        ] {
            let error = read(value).unwrap_err();
            assert!(error.starts_with("the key in API_KEY has"), "{error}");
            assert!(!error.contains("sk"), "{error}");
        }
    }

    #[test]
    fn nothing_of_it_is_shown() {
        let key = ProviderKey::new("API_KEY".into(), Zeroizing::new(b"sk-1".to_vec()));
        assert_eq!(format!("{:?}", key.unwrap().unwrap()), "ProviderKey(API_KEY)");
    }
}
