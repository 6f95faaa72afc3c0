//! The keys of credentials: the first one signs, all of them verify, so that keys can be rotated.

use std::fmt;

use zeroize::Zeroizing;

use super::{KEY_BYTES, MAX_KEY_ID_BYTES};
use crate::hex;

/// Limit for the number of keys: the signing one, and those whose credentials have not all expired yet.
pub const MAX_KEYS: usize = 8;
/// Limit for the text of a key ring, in bytes, including comments.
const MAX_TEXT_BYTES: usize = 16 * 1024;

/// The id of a key.
pub type KeyId = String;

/// The keys in use.
pub struct KeyRing {
    keys: Vec<(KeyId, Zeroizing<[u8; KEY_BYTES]>)>,
}

/// Why a text is not a key ring. The messages repeat nothing of the text: a misplaced line may be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingError {
    /// It is too long.
    #[error("it has more than {MAX_TEXT_BYTES} bytes")]
    TooLong,
    /// It has no key.
    #[error("it has no key")]
    NoKey,
    /// It has more than [`MAX_KEYS`] keys.
    #[error("it has more than {MAX_KEYS} keys")]
    TooMany,
    /// This line is not `ID KEY`.
    #[error("line {0} is not an id of lower-case letters, digits and `-`, a space, and 64 hexadecimal digits")]
    InvalidLine(usize),
    /// This line repeats an id.
    #[error("line {0} has the id of a key before it")]
    DuplicateId(usize),
}

impl KeyRing {
    /// A ring with one key.
    ///
    /// # Errors
    ///
    /// When the id is malformed.
    pub fn single(id: &str, key: [u8; KEY_BYTES]) -> Result<Self, KeyRingError> {
        if !is_key_id(id) {
            return Err(KeyRingError::InvalidLine(1));
        }
        Ok(Self { keys: vec![(id.to_owned(), Zeroizing::new(key))] })
    }

    /// Parses keys: one per line, with its id, a space and 64 hexadecimal digits. Blank lines and lines that start with
    /// `#` are ignored. The first key signs.
    ///
    /// # Errors
    ///
    /// When a line is malformed, or there is no key.
    pub fn parse(text: &str) -> Result<Self, KeyRingError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(KeyRingError::TooLong);
        }
        let mut keys: Vec<(KeyId, Zeroizing<[u8; KEY_BYTES]>)> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (id, digits) = line.split_once(' ').ok_or(KeyRingError::InvalidLine(number))?;
            let key = parse_key(digits.trim_start()).ok_or(KeyRingError::InvalidLine(number))?;
            if !is_key_id(id) {
                return Err(KeyRingError::InvalidLine(number));
            }
            if keys.iter().any(|(known, _)| known == id) {
                return Err(KeyRingError::DuplicateId(number));
            }
            if keys.len() == MAX_KEYS {
                return Err(KeyRingError::TooMany);
            }
            keys.push((id.to_owned(), key));
        }
        if keys.is_empty() {
            return Err(KeyRingError::NoKey);
        }
        Ok(Self { keys })
    }

    /// The ids, the signing one first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(id, _)| id.as_str())
    }

    pub(super) fn signing_key(&self) -> (&str, &[u8; KEY_BYTES]) {
        let (id, key) = &self.keys[0];
        (id, key)
    }

    pub(super) fn key(&self, id: &str) -> Option<&[u8; KEY_BYTES]> {
        let found = self.keys.iter().find(|(known, _)| known == id);
        found.map(|(_, key)| &**key)
    }
}

/// Prints ids only.
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

pub(super) fn is_key_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_KEY_ID_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

fn parse_key(digits: &str) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    hex::decode(&Zeroizing::new(digits.to_ascii_lowercase()))
}
