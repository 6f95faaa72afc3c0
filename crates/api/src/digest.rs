//! Hashes that we publish: SHA-256 over canonical JSON (RFC 8785), after a domain that says what the hash is of.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::hex;
use crate::names::Digest;

/// A value cannot be serialised as JSON: a map whose keys are not texts, or a number that is not finite.
#[derive(Debug, thiserror::Error)]
#[error("cannot be written as JSON")]
pub struct CanonicalJsonError(#[from] serde_json::Error);

/// Canonical JSON: no white space, sorted keys, numbers in their shortest form.
///
/// # Errors
///
/// When the value cannot be serialised as JSON.
pub fn to_canonical_json(value: &impl Serialize) -> Result<Vec<u8>, CanonicalJsonError> {
    Ok(serde_json_canonicalizer::to_vec(value)?)
}

/// The hash of a value. `domain` separates hashes of different types, whatever their JSON.
///
/// # Errors
///
/// When the value cannot be serialised as JSON.
pub fn digest(domain: &str, value: &impl Serialize) -> Result<Digest, CanonicalJsonError> {
    Ok(digest_canonical(domain, &to_canonical_json(value)?))
}

/// The hash of a value that is canonical JSON already.
pub fn digest_canonical(domain: &str, json: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(domain.as_bytes());
    // No domain contains this byte, so that no domain can continue into a value.
    hash.update([0]);
    hash.update(json);
    Digest::new(format!("sha256:{}", hex::encode(&hash.finalize())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_and_white_space_do_not_count_and_the_domain_does() -> Result<(), CanonicalJsonError> {
        let value = json!({ "b": 1.0, "a": [1e30, "\u{20ac}"] });
        assert_eq!(to_canonical_json(&value)?, "{\"a\":[1e+30,\"\u{20ac}\"],\"b\":1}".as_bytes());
        let one = digest("one", &value)?;
        assert_eq!(one.check(), Ok(()));
        assert_eq!(one, digest("one", &json!({ "a": [1e30, "\u{20ac}"], "b": 1 }))?);
        assert_ne!(one, digest("two", &value)?);
        // Computed with coreutils: printf 'one\0{"a":1}' | sha256sum
        let known = "sha256:aa185c42ca88d3a68128dee3d901885d1081dc29efb728a21ba7888dc64438c3";
        assert_eq!(digest("one", &json!({ "a": 1 }))?, *known);
        Ok(())
    }
}
