//! Removes a secret from a stream, however its bytes are split.
//!
//! Otherwise a server that echoes the request would give the agent the key. Bytes that may be the beginning of the
//! secret are held back until that is decided. They are equal to the first bytes of the secret, so only their number is
//! stored.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};

/// Shorter secrets can be guessed, and occur in ordinary texts: `ollama`, `none` and `EMPTY` are keys that people set
/// for servers that need none.
pub const MIN_SECRET: usize = 8;
/// Replaces each byte of a secret.
const REPLACEMENT: u8 = b'*';

/// Searches for one secret (Knuth-Morris-Pratt).
pub struct Redactor {
    secret: Bytes,
    /// For each number of matched bytes: how many of them still match if the next byte does not.
    fallback: Arc<[usize]>,
    /// Number of bytes that are held back.
    held: usize,
}

impl Redactor {
    /// `None` if the secret is too short to be redacted.
    pub fn new(secret: Bytes) -> Option<Self> {
        if secret.len() < MIN_SECRET {
            return None;
        }
        let mut fallback = vec![0; secret.len()];
        let mut right = 0;
        for index in 1..secret.len() {
            while right > 0 && secret[right] != secret[index] {
                right = fallback[right - 1];
            }
            if secret[right] == secret[index] {
                right += 1;
            }
            fallback[index] = right;
        }
        Some(Self { secret, fallback: fallback.into(), held: 0 })
    }

    /// A redactor of the same secret for another stream.
    pub fn restart(&self) -> Self {
        Self { secret: self.secret.clone(), fallback: Arc::clone(&self.fallback), held: 0 }
    }

    /// Returns what can be passed on of these bytes and of those held back. Usually these are the same bytes, without a
    /// copy.
    pub fn pass(&mut self, bytes: Bytes) -> Bytes {
        let first = self.secret[0];
        if self.held == 0 && !bytes.contains(&first) {
            return bytes;
        }
        let held = self.held;
        // Offsets of the secrets found, relative to the held bytes followed by these.
        let mut found: Vec<usize> = Vec::new();
        let mut index = 0;
        while index < bytes.len() {
            if self.held == 0 {
                let next = bytes[index..].iter().position(|byte| *byte == first);
                let Some(next) = next else {
                    break;
                };
                index += next;
            }
            self.advance(bytes[index]);
            index += 1;
            if self.held == self.secret.len() {
                found.push(held + index - self.secret.len());
                self.held = 0;
            }
        }
        let passing = held + bytes.len() - self.held;
        if found.is_empty() && held == 0 {
            return bytes.slice(..passing);
        }
        let mut out = BytesMut::with_capacity(passing);
        out.put_slice(&self.secret[..held.min(passing)]);
        out.put_slice(&bytes[..passing.saturating_sub(held)]);
        for start in found {
            out[start..start + self.secret.len()].fill(REPLACEMENT);
        }
        out.freeze()
    }

    fn advance(&mut self, byte: u8) {
        while self.held > 0 && self.secret[self.held] != byte {
            self.held = self.fallback[self.held - 1];
        }
        if self.secret[self.held] == byte {
            self.held += 1;
        }
    }

    /// The bytes that are left at the end of the stream: a proper prefix of the secret.
    pub fn finish(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held);
        Bytes::copy_from_slice(&self.secret[..held])
    }

    pub fn is_in(&self, bytes: &[u8]) -> bool {
        let mut fresh = self.restart();
        bytes.iter().any(|byte| {
            fresh.advance(*byte);
            let found = fresh.held == fresh.secret.len();
            if found {
                fresh.held = 0;
            }
            found
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn passed(secret: &[u8], pieces: &[&[u8]]) -> Vec<u8> {
        let secret = Bytes::copy_from_slice(secret);
        let mut redactor = Redactor::new(secret).expect("long enough");
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&redactor.pass(Bytes::copy_from_slice(piece)));
        }
        out.extend_from_slice(&redactor.finish());
        out
    }

    /// A naive implementation.
    fn replaced(secret: &[u8], bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        let mut index = 0;
        while index + secret.len() <= out.len() {
            if &out[index..index + secret.len()] == secret {
                out[index..index + secret.len()].fill(REPLACEMENT);
                index += secret.len();
            } else {
                index += 1;
            }
        }
        out
    }

    #[test]
    fn short_secrets_are_none() {
        assert!(Redactor::new(Bytes::from_static(b"ollama")).is_none());
        assert!(Redactor::new(Bytes::from_static(b"1234567")).is_none());
        assert!(Redactor::new(Bytes::from_static(b"12345678")).is_some());
    }

    #[test]
    fn bytes_that_hold_nothing_of_it_are_not_copied_or_held() {
        let mut redactor = Redactor::new(Bytes::from_static(b"sk-secret")).expect("long enough");
        let plain = Bytes::from_static(b"no letter of that kind: abcdf");
        assert_eq!(redactor.pass(plain.clone()).as_ptr(), plain.as_ptr());
        let near = Bytes::from_static(b"sk-sk-secreT");
        assert_eq!(redactor.pass(near.clone()).as_ptr(), near.as_ptr());
        assert_eq!(redactor.pass(Bytes::from_static(b"sk-se")), Bytes::new());
        assert_eq!(redactor.pass(Bytes::from_static(b"lf")), "sk-self");
    }

    #[test]
    fn every_split_of_an_echo_is_redacted() {
        let secret = b"sk-sk-sk-secret";
        let text = b"key sk-sk-sk-sk-secretsk-sk-sk-secret and sk-sk-";
        let expected = b"key sk-****************************** and sk-sk-";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(passed(secret, &pieces), expected, "{first} {second}");
            }
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(passed(secret, &bytes), expected);
    }

    proptest! {
        /// So few letters that secrets and near misses are frequent.
        #[test]
        fn what_passes_does_not_depend_on_the_pieces(
            secret in "[ab]{8,12}",
            text in "[ab]{0,60}",
            cuts in prop::collection::vec(0_usize..60, 0..8),
        ) {
            let (secret, text) = (secret.as_bytes(), text.as_bytes());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            prop_assert_eq!(passed(secret, &pieces), replaced(secret, text));
            let finds = Redactor::new(Bytes::copy_from_slice(secret)).expect("long enough").is_in(text);
            prop_assert_eq!(finds, text.windows(secret.len()).any(|window| window == secret));
        }
    }
}
