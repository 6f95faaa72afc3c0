//! Requests that are sent twice and executed once: by the key that their caller gave them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::answer::ErrorAnswer;
use super::tokens::Caller;

/// How long an answer is kept for whoever asks again.
pub const KEPT: Duration = Duration::from_secs(60 * 60);
/// Characters of a key.
pub const MAX_KEY_BYTES: usize = 128;
/// Keys of one caller.
pub const MAX_KEYS_OF_CALLER: usize = 16 * 1024;
/// Keys of all callers.
pub const MAX_KEYS: usize = 64 * 1024;
/// Bytes of the answers that are kept.
pub const MAX_BYTES: usize = 32 * 1024 * 1024;
/// And of one caller.
pub const MAX_BYTES_OF_CALLER: usize = MAX_BYTES / 4;

/// An answer that can be given again.
pub type Stored = Result<(StatusCode, Bytes), ErrorAnswer>;

/// The keys that were used, each with what came of it.
#[derive(Debug, Default)]
pub struct Keys {
    keys: Mutex<Inner>,
}

/// What one caller has of all that is kept.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    keys: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Key, Entry>,
    of_caller: HashMap<Caller, Held>,
    bytes: usize,
}

/// Caller and key, and nothing of either can be read from it.
type Key = [u8; 32];

#[derive(Debug)]
struct Entry {
    caller: Caller,
    request: [u8; 32],
    answer: watch::Receiver<Option<Stored>>,
    finished: Option<(Instant, usize)>,
}

/// What to do with a request that has a key.
#[derive(Debug)]
pub enum Claim {
    /// It is the first: execute it, and [finish](Keys::finish) with this.
    First(First),
    /// It has been seen: wait for the answer that is, or will be, in here.
    Again(watch::Receiver<Option<Stored>>),
    /// The key was used for another request.
    Conflict,
    /// There is no room for another key.
    Full,
}

/// The duty to publish the answer.
#[derive(Debug)]
pub struct First {
    key: Key,
    publish: watch::Sender<Option<Stored>>,
}

impl First {
    /// Where the answer will be.
    pub fn answer(&self) -> watch::Receiver<Option<Stored>> {
        self.publish.subscribe()
    }
}

impl Keys {
    /// Looks up `key` of `caller` for the request with this skill and body.
    pub fn claim(&self, caller: Caller, key: &str, skill: &str, body: &[u8], now: Instant) -> Claim {
        let key = Sha256::new().chain_update(caller.digest()).chain_update(key).finalize().into();
        let request: [u8; 32] =
            Sha256::new().chain_update(skill).chain_update([0]).chain_update(body).finalize().into();
        let mut inner = self.keys.lock();
        inner.forget_if_expired(&key, now);
        if let Some(entry) = inner.entries.get(&key) {
            return if entry.request == request { Claim::Again(entry.answer.clone()) } else { Claim::Conflict };
        }
        if inner.is_full(caller) {
            inner.reap(now);
            if inner.is_full(caller) {
                return Claim::Full;
            }
        }
        let (publish, answer) = watch::channel(None);
        inner.of_caller.entry(caller).or_default().keys += 1;
        let entry = Entry { caller, request, answer, finished: None };
        inner.entries.insert(key, entry);
        Claim::First(First { key, publish })
    }

    /// Publishes the answer to everybody who waits for it, and keeps it if it must not be made again.
    ///
    /// An error before anything was executed is not kept: the same key may be tried again.
    pub fn finish(&self, first: First, answer: Stored, now: Instant) {
        let may_have_run = match &answer {
            Ok(_) => true,
            Err(error) => error.status == StatusCode::INTERNAL_SERVER_ERROR,
        };
        let bytes = answer.as_ref().map_or(0, |(_, body)| body.len());
        {
            let mut inner = self.keys.lock();
            if may_have_run {
                if let Some(entry) = inner.entries.get_mut(&first.key) {
                    entry.finished = Some((now, bytes));
                    let caller = entry.caller;
                    inner.bytes += bytes;
                    inner.of_caller.entry(caller).or_default().bytes += bytes;
                }
            } else {
                inner.forget(&first.key);
            }
        }
        first.publish.send_replace(Some(answer));
    }

    /// Throws away what has expired; how many there were.
    pub fn reap(&self, now: Instant) -> usize {
        self.keys.lock().reap(now)
    }
}

impl Inner {
    fn is_full(&self, caller: Caller) -> bool {
        let held = self.of_caller.get(&caller).copied().unwrap_or_default();
        self.entries.len() >= MAX_KEYS
            || self.bytes >= MAX_BYTES
            || held.keys >= MAX_KEYS_OF_CALLER
            || held.bytes >= MAX_BYTES_OF_CALLER
    }

    fn forget_if_expired(&mut self, key: &Key, now: Instant) {
        let entry = self.entries.get(key);
        if entry.is_some_and(|entry| entry.is_expired(now)) {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        let bytes = entry.finished.map_or(0, |(_, bytes)| bytes);
        self.bytes -= bytes;
        if let Some(held) = self.of_caller.get_mut(&entry.caller) {
            held.keys -= 1;
            held.bytes -= bytes;
            if held.keys == 0 {
                self.of_caller.remove(&entry.caller);
            }
        }
    }

    fn reap(&mut self, now: Instant) -> usize {
        let expired: Vec<Key> =
            (self.entries.iter()).filter(|(_, entry)| entry.is_expired(now)).map(|(key, _)| *key).collect();
        for key in &expired {
            self.forget(key);
        }
        if self.entries.is_empty() {
            self.entries.shrink_to_fit();
        }
        expired.len()
    }
}

impl Entry {
    fn is_expired(&self, now: Instant) -> bool {
        self.finished.is_some_and(|(at, _)| now.saturating_duration_since(at) >= KEPT)
    }
}

/// Whether this can be a key: visible ASCII, and not too much of it.
pub fn is_key(key: &[u8]) -> bool {
    (1..=MAX_KEY_BYTES).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tokens::Tokens;

    fn caller(token: &str) -> Caller {
        let tokens = Tokens::load(Some(token), None).unwrap();
        tokens.caller(token.as_bytes()).unwrap()
    }

    fn first(claim: Claim) -> First {
        match claim {
            Claim::First(first) => first,
            other => panic!("{other:?}"),
        }
    }

    fn stored(text: &'static str) -> Stored {
        Ok((StatusCode::OK, Bytes::from_static(text.as_bytes())))
    }

    #[test]
    fn the_second_gets_the_answer_of_the_first_before_and_after_it_is_there() {
        let (keys, now, caller) = (Keys::default(), Instant::now(), caller("a"));
        let claim = |body: &[u8]| keys.claim(caller, "key", "gh", body, now);
        let one = first(claim(b"{}"));
        let Claim::Again(waiting) = claim(b"{}") else { panic!("it was executed twice") };
        assert_eq!(*waiting.borrow(), None);
        keys.finish(one, stored("done"), now);
        assert_eq!(*waiting.borrow(), Some(stored("done")));
        let Claim::Again(replay) = claim(b"{}") else { panic!("it was executed twice") };
        assert_eq!(*replay.borrow(), Some(stored("done")));
    }

    #[test]
    fn another_request_with_the_key_is_a_conflict_and_another_caller_is_not() {
        let (keys, now, one) = (Keys::default(), Instant::now(), caller("a"));
        let _first = first(keys.claim(one, "key", "gh", b"{}", now));
        assert!(matches!(keys.claim(one, "key", "gh", b"{ }", now), Claim::Conflict));
        assert!(matches!(keys.claim(one, "key", "aws", b"{}", now), Claim::Conflict));
        first(keys.claim(one, "other", "gh", b"{}", now));
        first(keys.claim(caller("b"), "key", "gh", b"{}", now));
    }

    #[test]
    fn answers_expire_and_what_was_not_executed_is_not_kept() {
        let (keys, now, caller) = (Keys::default(), Instant::now(), caller("a"));
        let claim = |now| keys.claim(caller, "key", "gh", b"", now);
        keys.finish(first(claim(now)), Err(ErrorAnswer::new(StatusCode::NOT_FOUND, "")), now);
        let lost = ErrorAnswer::new(StatusCode::INTERNAL_SERVER_ERROR, "");
        keys.finish(first(claim(now)), Err(lost), now);
        assert!(matches!(claim(now), Claim::Again(_)));
        assert_eq!(keys.reap(now), 0);
        first(claim(now + KEPT));
        assert_eq!(keys.keys.lock().of_caller[&caller].keys, 1);
    }

    #[test]
    fn keys_are_bounded_by_count_and_by_bytes() {
        let (keys, now, one) = (Keys::default(), Instant::now(), caller("a"));
        for number in 0..MAX_KEYS_OF_CALLER {
            let first = first(keys.claim(one, &number.to_string(), "gh", b"", now));
            keys.finish(first, stored(""), now);
        }
        assert!(matches!(keys.claim(one, "more", "gh", b"", now), Claim::Full));
        let other = caller("b");
        let large = first(keys.claim(other, "large", "gh", b"", now));
        let body = Bytes::from(vec![0; MAX_BYTES_OF_CALLER]);
        keys.finish(large, Ok((StatusCode::OK, body)), now);
        assert!(matches!(keys.claim(other, "more", "gh", b"", now), Claim::Full));
        // Which is nothing to anybody else.
        let third = first(keys.claim(caller("c"), "key", "gh", b"", now));
        keys.finish(third, stored(""), now);
        // Time frees all of it.
        first(keys.claim(one, "more", "gh", b"", now + KEPT));
        assert_eq!(keys.keys.lock().entries.len(), 1);
        assert_eq!(keys.keys.lock().bytes, 0);
    }

    #[test]
    fn keys_are_visible_ascii() {
        assert!(is_key(b"550e8400-e29b"));
        assert!(is_key(&[b'x'; MAX_KEY_BYTES]));
        for key in [&b""[..], b"a b", b"\xc3\xa9", &[b'x'; MAX_KEY_BYTES + 1]] {
            assert!(!is_key(key));
        }
    }
}
