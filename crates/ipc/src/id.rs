//! Request ids, which are part of four file names and therefore restricted to plain characters.

use std::fmt;

/// A request id: 1 to [`RequestId::MAX_BYTES`] bytes of `[A-Za-z0-9._-]`, not starting with `.` or `-`, without `..`.
///
/// That makes it safe as a part of a file name, in a log line and as an argument of a command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(Box<str>);

/// Why a text is not a request id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("the request id is empty")]
    Empty,
    /// It is longer than [`RequestId::MAX_BYTES`].
    #[error("the request id has {bytes} bytes, and may have {}", RequestId::MAX_BYTES)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It starts like a hidden file or like an option.
    #[error("the request id starts with a dot or a hyphen")]
    BadStart,
    /// It contains other characters than letters, digits, dots, underscores and hyphens.
    #[error("the request id may hold letters, digits, dots, underscores and hyphens only")]
    BadCharacter,
    /// It contains two dots in a row.
    #[error("the request id holds two dots in a row")]
    DoubleDot,
}

impl RequestId {
    /// Limit for the length of an id, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Parses a text. It is not normalised.
    ///
    /// # Errors
    /// The first rule that it violates.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        Self::check(text.as_bytes())?;
        Ok(Self(text.into()))
    }

    /// Like [`parse`](Self::parse), for a part of a file name, which need not be UTF-8.
    pub(crate) fn parse_bytes(bytes: &[u8]) -> Result<Self, IdError> {
        Self::check(bytes)?;
        let text = std::str::from_utf8(bytes).map_err(|_| IdError::BadCharacter)?;
        Ok(Self(text.into()))
    }

    /// The format of existing agents: nanoseconds since 1970 as a decimal number.
    #[must_use]
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds.to_string().into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn check(bytes: &[u8]) -> Result<(), IdError> {
        let Some(first) = bytes.first() else {
            return Err(IdError::Empty);
        };
        if bytes.len() > Self::MAX_BYTES {
            return Err(IdError::TooLong { bytes: bytes.len() });
        }
        if matches!(first, b'.' | b'-') {
            return Err(IdError::BadStart);
        }
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if !bytes.iter().all(plain) {
            return Err(IdError::BadCharacter);
        }
        if bytes.windows(2).any(|pair| pair == b"..") {
            return Err(IdError::DoubleDot);
        }
        Ok(())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_ids_are_taken_as_they_are() {
        let longest = "x".repeat(RequestId::MAX_BYTES);
        for text in ["1718100000000000000", "a", "_", "A.b-c_9", "a.", "a-", &longest] {
            let id = RequestId::parse(text);
            assert_eq!(id.as_ref().map(RequestId::as_str), Ok(text));
            assert_eq!(id.map(|id| id.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(RequestId::from_nanoseconds(u64::MAX).as_str(), "18446744073709551615");
    }

    #[test]
    fn anything_else_is_refused_with_the_rule_it_breaks() {
        let long = "x".repeat(4096);
        let cases = [
            ("", IdError::Empty),
            (&long, IdError::TooLong { bytes: 4096 }),
            ("../../x", IdError::BadStart),
            (".claim-x", IdError::BadStart),
            ("-rf", IdError::BadStart),
            ("a/b", IdError::BadCharacter),
            ("a\nb", IdError::BadCharacter),
            ("a\0b", IdError::BadCharacter),
            ("a b", IdError::BadCharacter),
            ("é", IdError::BadCharacter),
            ("a..b", IdError::DoubleDot),
        ];
        for (text, problem) in cases {
            assert_eq!(RequestId::parse(text), Err(problem), "{text:?}");
            assert_eq!(RequestId::parse_bytes(text.as_bytes()), Err(problem), "{text:?}");
        }
        assert_eq!(RequestId::parse_bytes(b"a\xff"), Err(IdError::BadCharacter));
    }
}
