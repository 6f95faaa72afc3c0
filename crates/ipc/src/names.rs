//! The names of entries in the `tools` directory, and their meaning.

use crate::id::{IdError, RequestId};

/// The directory with requests, claims and results.
pub const TOOLS: &str = "tools";
/// The file beside [`TOOLS`] that tells executors to exit.
pub const DONE: &str = "done";
/// The file beside [`TOOLS`] with which an executor that verifies requests announces its start.
pub const START: &str = ".start";
/// The file beside [`TOOLS`] with the key for such an executor. It exists only for a moment.
pub const KEY: &str = ".key";

const REQUEST: &str = "exec-request-";
const RESULT: &str = "exec-result-";
const CLAIM: &str = ".claim-";
const EXPIRED: &str = ".lapsed-";
const JSON: &str = ".json";
const TEMPORARY: &str = ".tmp";

/// The meaning of a name in `tools`. The entry itself may still be of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A request.
    Request(RequestId),
    /// A result.
    Result(RequestId),
    /// A claim.
    Claim(RequestId),
    /// A process answers a claim whose holder never did.
    Expired(RequestId),
    /// A file that is being written: its name ends in `.tmp`.
    Temporary,
    /// The name of a request with a malformed id.
    BadRequestName(IdError),
    /// Any other name.
    Foreign,
}

impl Entry {
    /// Parses a file name.
    #[must_use]
    pub fn parse(name: &[u8]) -> Self {
        let between =
            |prefix: &str, suffix: &str| name.strip_prefix(prefix.as_bytes())?.strip_suffix(suffix.as_bytes());
        if let Some(id) = between(REQUEST, JSON) {
            return RequestId::parse_bytes(id).map_or_else(Self::BadRequestName, Self::Request);
        }
        let other = [
            (between(RESULT, JSON), Self::Result as fn(RequestId) -> Self),
            (between(CLAIM, ""), Self::Claim),
            (between(EXPIRED, ""), Self::Expired),
        ];
        for (id, entry) in other {
            if let Some(id) = id.and_then(|id| RequestId::parse_bytes(id).ok()) {
                return entry(id);
            }
        }
        if name.ends_with(TEMPORARY.as_bytes()) {
            return Self::Temporary;
        }
        Self::Foreign
    }
}

/// `exec-request-{id}.json`
#[must_use]
pub fn request(id: &RequestId) -> String {
    format!("{REQUEST}{id}{JSON}")
}

/// `exec-result-{id}.json`
#[must_use]
pub fn result(id: &RequestId) -> String {
    format!("{RESULT}{id}{JSON}")
}

/// `.claim-{id}`: the directory whose creation decides which executor runs a request.
#[must_use]
pub fn claim(id: &RequestId) -> String {
    format!("{CLAIM}{id}")
}

/// `.lapsed-{id}`: the directory whose creation decides which process reports that a claim's holder never answered.
///
/// It is beside the claim and not in it, because a planted claim may be a link or a file.
#[must_use]
pub fn expired(id: &RequestId) -> String {
    format!("{EXPIRED}{id}")
}

/// A name for a temporary file that other programs cannot guess and prepare.
pub(crate) fn temporary(random: [u8; 16]) -> String {
    format!(".{:032x}{TEMPORARY}", u128::from_le_bytes(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RequestId {
        RequestId::parse(text).unwrap()
    }

    #[test]
    fn every_name_we_make_is_read_back() {
        for text in ["1", "a.json", "a.tmp", "x".repeat(128).as_str()] {
            let id = id(text);
            assert_eq!(Entry::parse(request(&id).as_bytes()), Entry::Request(id.clone()));
            assert_eq!(Entry::parse(result(&id).as_bytes()), Entry::Result(id.clone()));
            assert_eq!(Entry::parse(claim(&id).as_bytes()), Entry::Claim(id.clone()));
            assert_eq!(Entry::parse(expired(&id).as_bytes()), Entry::Expired(id));
        }
        assert_eq!(Entry::parse(temporary([7; 16]).as_bytes()), Entry::Temporary);
        assert!(temporary([0; 16]).starts_with(".00"));
    }

    #[test]
    fn other_files_are_distinguished_from_requests_with_a_bad_id() {
        let longest = [b"exec-request-".as_slice(), &[b'x'; 237], b".json"].concat();
        let bad: [(&[u8], _); 7] = [
            (b"exec-request-.json", IdError::Empty),
            (b"exec-request-..json", IdError::BadStart),
            (b"exec-request-.claim-1.json", IdError::BadStart),
            (b"exec-request-a\nb.json", IdError::BadCharacter),
            (b"exec-request-a\\b.json", IdError::BadCharacter),
            (b"exec-request-\xff.json", IdError::BadCharacter),
            (&longest, IdError::TooLong { bytes: 237 }),
        ];
        for (name, problem) in bad {
            assert_eq!(Entry::parse(name), Entry::BadRequestName(problem), "{}", name.escape_ascii());
        }
        let foreign: [&[u8]; 8] =
            [b"", b".", b"..", b"mcp-tools.json", b"exec-request-1", b"exec-result-.json", b".claim-", b".claim-../x"];
        for name in foreign {
            assert_eq!(Entry::parse(name), Entry::Foreign, "{}", name.escape_ascii());
        }
        for name in [b"exec-result-1.json.tmp".as_slice(), b".x.tmp", b"exec-request-1.tmp"] {
            assert_eq!(Entry::parse(name), Entry::Temporary, "{}", name.escape_ascii());
        }
    }
}
