//! Ids of tool calls. They match results to calls, for some servers through the whole conversation, and some providers
//! accept each only once. But some servers restart their counter with every response, and some send no ids.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use super::MAX_NAME;

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const WIDTH: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdFormat {
    /// Accepts every id. Generated ones have nine letters and digits: Mistral's models insist on that, and all others
    /// accept it.
    Any,
    /// Accepts only `[A-Za-z0-9_-]`, as Anthropic does.
    Plain,
}

#[derive(Debug, Clone)]
pub struct CallIds {
    form: IdFormat,
    used: Arc<Mutex<UsedIds>>,
}

#[derive(Debug, Default)]
struct UsedIds {
    /// Hashes of the ids: a collision only means that the second id is replaced.
    hashes: HashSet<u64>,
    hasher: RandomState,
    generated: u64,
}

impl CallIds {
    pub fn new(form: IdFormat) -> Self {
        Self { form, used: Arc::default() }
    }

    /// The given id if it is valid and unused, otherwise a generated one.
    pub fn assign(&self, given: &str) -> String {
        let mut used = self.used.lock();
        if self.form.allows(given) && used.insert(given) {
            return given.to_owned();
        }
        loop {
            let generated = self.form.generate(used.generated);
            used.generated += 1;
            if used.insert(&generated) {
                return generated;
            }
        }
    }
}

impl UsedIds {
    fn insert(&mut self, id: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(id))
    }
}

impl IdFormat {
    fn allows(self, id: &str) -> bool {
        let is_bounded = !id.is_empty() && id.len() <= MAX_NAME;
        is_bounded && (self == Self::Any || id.bytes().all(is_plain))
    }

    fn generate(self, number: u64) -> String {
        match self {
            Self::Any => format!("call{}", base36(number)),
            Self::Plain => format!("call_{}", number.saturating_add(1)),
        }
    }
}

fn base36(mut number: u64) -> String {
    let mut base36 = Vec::with_capacity(WIDTH);
    while number > 0 || base36.len() < WIDTH {
        let digit = usize::try_from(number % 36).unwrap_or(0);
        base36.push(char::from(DIGITS[digit]));
        number /= 36;
    }
    base36.into_iter().rev().collect()
}

pub fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_generated_where_missing() {
        let given = ["", "call00001", "a", "a", "f.list:0", "ü", "call_2", ""];
        let long = "x".repeat(MAX_NAME + 1);
        for (form, expected) in [
            (
                IdFormat::Any,
                ["call00000", "call00001", "a", "call00002", "f.list:0", "ü", "call_2", "call00003", "call00004"],
            ),
            (IdFormat::Plain, ["call_1", "call00001", "a", "call_2", "call_3", "call_4", "call_5", "call_6", "call_7"]),
        ] {
            let ids = CallIds::new(form);
            let mut found: Vec<String> = given.iter().map(|id| ids.assign(id)).collect();
            found.push(ids.clone().assign(&long));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn generated_ids_are_numbered() {
        let of = |number: u64| IdFormat::Any.generate(number);
        let expected = ["call00000", "call00011", "call100000"];
        assert_eq!([of(0), of(37), of(36_u64.pow(5))], expected);
    }
}
