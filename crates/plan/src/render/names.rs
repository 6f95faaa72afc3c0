//! Names of objects: readable at the front, unique at the back.
//!
//! A name ends in the run's UID and a fixed suffix. No user chooses either, so neither a second run of the same name
//! nor names with the same truncated prefix can collide.

use sympozium_api::digest;
use sympozium_api::names::Uid;
use sympozium_api::run_plan::RunIdentity;

use super::RenderError;

/// Characters of the run's name that an object's name begins with.
const MAX_PREFIX_LEN: usize = 16;
/// Hexadecimal digits of a UID in a name.
const UID_DIGITS: usize = 32;
/// Maximum length of the suffix, so that a name has at most 63 characters: 16, a dash, 32, a dash and this.
pub const MAX_SUFFIX_LEN: usize = 13;
/// Maximum length of a label's value.
const MAX_LABEL_VALUE_LEN: usize = 63;
/// Characters that are left of a value that is too long.
const TRUNCATED_LEN: usize = 46;
/// Digits of the hash after them.
const HASH_DIGITS: usize = 16;
/// The domain of hashes in names.
const DOMAIN: &str = "sympozium.ai/name/v1";

/// The name of an object of a run. `word` is a suffix of lower-case letters and digits, at most [`WORD`] of them.
pub fn object_name(run: &RunIdentity, word: &str) -> String {
    ObjectNames::new(run).with_suffix(word)
}

/// The names of the objects of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectNames {
    stem: String,
}

impl ObjectNames {
    /// The names of the objects of this run.
    pub fn new(run: &RunIdentity) -> Self {
        let mut stem: String = run
            .name
            .as_str()
            .chars()
            .take(MAX_PREFIX_LEN)
            .map(|letter| if letter.is_ascii_lowercase() || letter.is_ascii_digit() { letter } else { '-' })
            .collect();
        stem.truncate(stem.trim_end_matches('-').len());
        let leading = stem.len() - stem.trim_start_matches('-').len();
        stem.drain(..leading);
        if stem.is_empty() {
            stem.push_str("run");
        }
        stem.push('-');
        stem.push_str(&uid_digits(&run.uid));
        Self { stem }
    }

    /// The name of the workload.
    pub fn workload(&self) -> &str {
        &self.stem
    }

    /// The name of another object, by its suffix.
    pub fn with_suffix(&self, word: &str) -> String {
        format!("{}-{word}", self.stem)
    }
}

/// The suffix for something that the plan names.
pub(super) fn suffix(what: &'static str, name: &str) -> Result<String, RenderError> {
    let word = name.replace('-', "");
    let ours = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if word.is_empty() || word.len() > MAX_SUFFIX_LEN || !word.bytes().all(ours) {
        return Err(RenderError::InvalidName { what, name: name.to_owned() });
    }
    Ok(word)
}

/// Whether a name has the form of [`object_name`]: it ends in the digits of a UID, or in those and a suffix.
pub fn is_run_object_name(name: &str) -> bool {
    let is_uid =
        |part: &str| part.len() == UID_DIGITS && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = name.rsplit('-');
    let last = parts.next().unwrap_or_default();
    let before = parts.next();
    (is_uid(last) && before.is_some()) || (before.is_some_and(is_uid) && parts.next().is_some())
}

/// A UID as an API server generates it, without dashes; for any other text its hash.
fn uid_digits(uid: &Uid) -> String {
    if uid.is_canonical_uuid() {
        return uid.as_str().replace('-', "");
    }
    hash(uid.as_str(), UID_DIGITS)
}

/// A label value for any name: the name itself where it is valid, and otherwise a prefix of it and its hash.
pub fn label_value(name: &str) -> String {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    if bytes.len() <= MAX_LABEL_VALUE_LEN
        && bytes.iter().all(|byte| inner(*byte))
        && ends(bytes.first())
        && ends(bytes.last())
    {
        return name.to_owned();
    }
    let kept = name.bytes().take(TRUNCATED_LEN);
    let mut value: String = kept.map(|byte| if inner(byte) { char::from(byte) } else { '-' }).collect();
    if !ends(value.as_bytes().first()) {
        value.replace_range(..value.len().min(1), "x");
    }
    value.push('-');
    value.push_str(&hash(name, HASH_DIGITS));
    value
}

fn hash(text: &str, digits: usize) -> String {
    let digest = digest::digest_canonical(DOMAIN, text.as_bytes());
    let start = "sha256:".len();
    digest.as_str()[start..start + digits].to_owned()
}
