//! Ids of calls. Results are matched to calls by them, by some servers through the whole conversation, and some providers take
//! each only once. But there are servers that begin to count anew with every answer, and servers that leave ids out.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use super::MAX_NAME;

/// Digits of a number in an id.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// How many there are at least.
const WIDTH: usize = 5;

/// Which ids are used, and how those look that are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Whatever came. Made ones have nine letters and digits: Mistral's models insist on that, and it suits all others.
    Any,
    /// Only plain ones. Anthropic takes no others.
    Plain,
}

/// All ids of a run.
#[derive(Debug, Clone)]
pub struct Ids {
    form: Form,
    used: Arc<Mutex<Used>>,
}

#[derive(Debug, Default)]
struct Used {
    /// Hashes of the ids: two ids with one hash only mean that the second is replaced.
    seen: HashSet<u64>,
    hasher: RandomState,
    made: u64,
}

impl Ids {
    /// Of a run in which there was no call.
    pub fn new(form: Form) -> Self {
        Self { form, used: Arc::default() }
    }

    /// The id that was given, where it can be used; otherwise one that no call has.
    pub fn take(&self, given: &str) -> String {
        let mut used = self.used.lock();
        if self.form.allows(given) && used.is_first(given) {
            return given.to_owned();
        }
        loop {
            let made = self.form.make(used.made);
            used.made += 1;
            if used.is_first(&made) {
                return made;
            }
        }
    }
}

impl Used {
    fn is_first(&mut self, id: &str) -> bool {
        self.seen.insert(self.hasher.hash_one(id))
    }
}

impl Form {
    fn allows(self, id: &str) -> bool {
        let is_bounded = !id.is_empty() && id.len() <= MAX_NAME;
        is_bounded && (self == Self::Any || id.bytes().all(is_plain))
    }

    fn make(self, number: u64) -> String {
        match self {
            Self::Any => format!("call{}", digits(number)),
            Self::Plain => format!("call_{}", number.saturating_add(1)),
        }
    }
}

fn digits(mut number: u64) -> String {
    let mut digits = Vec::with_capacity(WIDTH);
    while number > 0 || digits.len() < WIDTH {
        let digit = usize::try_from(number % 36).unwrap_or(0);
        digits.push(char::from(DIGITS[digit]));
        number /= 36;
    }
    digits.into_iter().rev().collect()
}

/// Characters of plain ids, and of the names of tools.
pub fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_used_once_and_made_where_there_is_none() {
        let given = ["", "call00001", "a", "a", "f.list:0", "ü", "call_2", ""];
        let long = "x".repeat(MAX_NAME + 1);
        for (form, expected) in [
            (
                Form::Any,
                ["call00000", "call00001", "a", "call00002", "f.list:0", "ü", "call_2", "call00003", "call00004"],
            ),
            (Form::Plain, ["call_1", "call00001", "a", "call_2", "call_3", "call_4", "call_5", "call_6", "call_7"]),
        ] {
            let ids = Ids::new(form);
            let mut found: Vec<String> = given.iter().map(|id| ids.take(id)).collect();
            found.push(ids.clone().take(&long));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn made_ids_count_on() {
        let of = |number: u64| Form::Any.make(number);
        let expected = ["call00000", "call00011", "call100000"];
        assert_eq!([of(0), of(37), of(36_u64.pow(5))], expected);
    }
}
