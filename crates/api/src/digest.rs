//! Hashes that we publish: SHA-256 over JSON in its canonical form (RFC 8785), after a word that says what the hash is of.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::names::Digest;

/// A value that has no JSON: a map whose keys are no texts, a number that is not finite.
#[derive(Debug, thiserror::Error)]
#[error("cannot be written as JSON")]
pub struct NoJson(#[from] serde_json::Error);

/// The one way to write a value: no white space, keys in order, numbers in their shortest form.
///
/// # Errors
///
/// When the value has no JSON.
pub fn canonical(value: &impl Serialize) -> Result<Vec<u8>, NoJson> {
    Ok(serde_json_canonicalizer::to_vec(value)?)
}

/// The hash of a value. `domain` keeps hashes of different things apart, whatever their JSON.
///
/// # Errors
///
/// When the value has no JSON.
pub fn digest(domain: &str, value: &impl Serialize) -> Result<Digest, NoJson> {
    Ok(of_canonical(domain, &canonical(value)?))
}

/// The hash of a value that is in its canonical form already.
pub fn of_canonical(domain: &str, json: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(domain.as_bytes());
    // No domain contains it, so that none can run on into a value.
    hash.update([0]);
    hash.update(json);
    let mut text = "sha256:".to_owned();
    for byte in hash.finalize() {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    Digest::new(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_and_white_space_do_not_count_and_the_domain_does() -> Result<(), NoJson> {
        let value = json!({ "b": 1.0, "a": [1e30, "\u{20ac}"] });
        assert_eq!(canonical(&value)?, "{\"a\":[1e+30,\"\u{20ac}\"],\"b\":1}".as_bytes());
        let one = digest("one", &value)?;
        assert_eq!(one.check(), Ok(()));
        assert_eq!(one, digest("one", &json!({ "a": [1e30, "\u{20ac}"], "b": 1 }))?);
        assert_ne!(one, digest("two", &value)?);
        // Made with coreutils: printf 'one\0{"a":1}' | sha256sum
        let known = "sha256:aa185c42ca88d3a68128dee3d901885d1081dc29efb728a21ba7888dc64438c3";
        assert_eq!(digest("one", &json!({ "a": 1 }))?, *known);
        Ok(())
    }
}
