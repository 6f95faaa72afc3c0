//! Idempotency keys: requests of a caller with the same key are executed once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::response::ErrorResponse;
use super::tokens::Caller;

/// How long a response is stored for repeated requests.
const RETENTION: Duration = Duration::from_secs(60 * 60);
pub const MAX_KEY_BYTES: usize = 128;
const MAX_KEYS_OF_CALLER: usize = 16 * 1024;
const MAX_KEYS: usize = 64 * 1024;
/// Bytes of the stored responses of all callers.
const MAX_BYTES: usize = 32 * 1024 * 1024;
const MAX_BYTES_OF_CALLER: usize = MAX_BYTES / 4;

pub type StoredResponse = Result<(StatusCode, Bytes), ErrorResponse>;

#[derive(Debug, Default)]
pub struct IdempotencyKeys {
    keys: Mutex<Inner>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    keys: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Key, Entry>,
    of_caller: HashMap<Caller, Usage>,
    bytes: usize,
}

/// A digest of the caller and the key that it chose.
type Key = [u8; 32];

#[derive(Debug)]
struct Entry {
    caller: Caller,
    request: [u8; 32],
    response: watch::Receiver<Option<StoredResponse>>,
    finished: Option<(Instant, usize)>,
}

/// How to handle a request with a key.
#[derive(Debug)]
pub enum Claim {
    /// Execute it, and [publish](IdempotencyKeys::publish) the response.
    First(Publisher),
    /// Wait for the response to the first one.
    Repeated(watch::Receiver<Option<StoredResponse>>),
    /// The key was used for another request.
    Conflict,
    /// A quota is exceeded.
    Full,
}

/// Its holder must publish the response.
#[derive(Debug)]
pub struct Publisher {
    key: Key,
    sender: watch::Sender<Option<StoredResponse>>,
}

impl Publisher {
    pub fn subscribe(&self) -> watch::Receiver<Option<StoredResponse>> {
        self.sender.subscribe()
    }
}

impl IdempotencyKeys {
    /// Claims `key` of `caller` for the request with this skill and body.
    pub fn claim(&self, caller: Caller, key: &str, skill: &str, body: &[u8], now: Instant) -> Claim {
        let key = Sha256::new().chain_update(caller.digest()).chain_update(key).finalize().into();
        let request: [u8; 32] =
            Sha256::new().chain_update(skill).chain_update([0]).chain_update(body).finalize().into();
        let mut inner = self.keys.lock();
        inner.remove_if_expired(&key, now);
        if let Some(entry) = inner.entries.get(&key) {
            return if entry.request == request { Claim::Repeated(entry.response.clone()) } else { Claim::Conflict };
        }
        if inner.is_full(caller) {
            inner.remove_expired(now);
            if inner.is_full(caller) {
                return Claim::Full;
            }
        }
        let (sender, response) = watch::channel(None);
        inner.of_caller.entry(caller).or_default().keys += 1;
        let entry = Entry { caller, request, response, finished: None };
        inner.entries.insert(key, entry);
        Claim::First(Publisher { key, sender })
    }

    /// Sends the response to all waiting requests, and stores it if something may have been executed.
    ///
    /// An error before the execution is not stored: a request with the same key is then executed.
    pub fn publish(&self, publisher: Publisher, response: StoredResponse, now: Instant) {
        let may_have_run = match &response {
            Ok(_) => true,
            Err(error) => error.status == StatusCode::INTERNAL_SERVER_ERROR,
        };
        let bytes = response.as_ref().map_or(0, |(_, body)| body.len());
        {
            let mut inner = self.keys.lock();
            if may_have_run {
                if let Some(entry) = inner.entries.get_mut(&publisher.key) {
                    entry.finished = Some((now, bytes));
                    let caller = entry.caller;
                    inner.bytes += bytes;
                    inner.of_caller.entry(caller).or_default().bytes += bytes;
                }
            } else {
                inner.remove(&publisher.key);
            }
        }
        publisher.sender.send_replace(Some(response));
    }

    /// Returns how many there were.
    pub fn remove_expired(&self, now: Instant) -> usize {
        self.keys.lock().remove_expired(now)
    }
}

impl Inner {
    fn is_full(&self, caller: Caller) -> bool {
        let usage = self.of_caller.get(&caller).copied().unwrap_or_default();
        self.entries.len() >= MAX_KEYS
            || self.bytes >= MAX_BYTES
            || usage.keys >= MAX_KEYS_OF_CALLER
            || usage.bytes >= MAX_BYTES_OF_CALLER
    }

    fn remove_if_expired(&mut self, key: &Key, now: Instant) {
        let entry = self.entries.get(key);
        if entry.is_some_and(|entry| entry.is_expired(now)) {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        let bytes = entry.finished.map_or(0, |(_, bytes)| bytes);
        self.bytes -= bytes;
        if let Some(usage) = self.of_caller.get_mut(&entry.caller) {
            usage.keys -= 1;
            usage.bytes -= bytes;
            if usage.keys == 0 {
                self.of_caller.remove(&entry.caller);
            }
        }
    }

    fn remove_expired(&mut self, now: Instant) -> usize {
        let expired: Vec<Key> =
            (self.entries.iter()).filter(|(_, entry)| entry.is_expired(now)).map(|(key, _)| *key).collect();
        for key in &expired {
            self.remove(key);
        }
        if self.entries.is_empty() {
            self.entries.shrink_to_fit();
        }
        expired.len()
    }
}

impl Entry {
    fn is_expired(&self, now: Instant) -> bool {
        self.finished.is_some_and(|(at, _)| now.saturating_duration_since(at) >= RETENTION)
    }
}

/// A key is visible ASCII.
pub fn is_valid_key(key: &[u8]) -> bool {
    (1..=MAX_KEY_BYTES).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tokens::Tokens;

    fn caller(token: &str) -> Caller {
        let tokens = Tokens::load(Some(token), None).unwrap();
        tokens.authenticate(token.as_bytes()).unwrap()
    }

    fn first(claim: Claim) -> Publisher {
        match claim {
            Claim::First(publisher) => publisher,
            other => panic!("{other:?}"),
        }
    }

    fn stored(text: &'static str) -> StoredResponse {
        Ok((StatusCode::OK, Bytes::from_static(text.as_bytes())))
    }

    #[test]
    fn a_repeated_request_gets_the_response_of_the_first_before_and_after_it_is_published() {
        let (keys, now, caller) = (IdempotencyKeys::default(), Instant::now(), caller("a"));
        let claim = |body: &[u8]| keys.claim(caller, "key", "gh", body, now);
        let one = first(claim(b"{}"));
        let Claim::Repeated(waiting) = claim(b"{}") else { panic!("it was executed twice") };
        assert_eq!(*waiting.borrow(), None);
        keys.publish(one, stored("done"), now);
        assert_eq!(*waiting.borrow(), Some(stored("done")));
        let Claim::Repeated(replay) = claim(b"{}") else { panic!("it was executed twice") };
        assert_eq!(*replay.borrow(), Some(stored("done")));
    }

    #[test]
    fn another_request_with_the_key_is_a_conflict_and_another_caller_is_not() {
        let (keys, now, one) = (IdempotencyKeys::default(), Instant::now(), caller("a"));
        let _first = first(keys.claim(one, "key", "gh", b"{}", now));
        assert!(matches!(keys.claim(one, "key", "gh", b"{ }", now), Claim::Conflict));
        assert!(matches!(keys.claim(one, "key", "aws", b"{}", now), Claim::Conflict));
        first(keys.claim(one, "other", "gh", b"{}", now));
        first(keys.claim(caller("b"), "key", "gh", b"{}", now));
    }

    #[test]
    fn responses_expire_and_one_without_execution_is_not_stored() {
        let (keys, now, caller) = (IdempotencyKeys::default(), Instant::now(), caller("a"));
        let claim = |now| keys.claim(caller, "key", "gh", b"", now);
        keys.publish(first(claim(now)), Err(ErrorResponse::new(StatusCode::NOT_FOUND, "")), now);
        let lost = ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "");
        keys.publish(first(claim(now)), Err(lost), now);
        assert!(matches!(claim(now), Claim::Repeated(_)));
        assert_eq!(keys.remove_expired(now), 0);
        first(claim(now + RETENTION));
        assert_eq!(keys.keys.lock().of_caller[&caller].keys, 1);
    }

    #[test]
    fn keys_are_bounded_by_count_and_by_bytes() {
        let (keys, now, one) = (IdempotencyKeys::default(), Instant::now(), caller("a"));
        for number in 0..MAX_KEYS_OF_CALLER {
            let first = first(keys.claim(one, &number.to_string(), "gh", b"", now));
            keys.publish(first, stored(""), now);
        }
        assert!(matches!(keys.claim(one, "more", "gh", b"", now), Claim::Full));
        let other = caller("b");
        let large = first(keys.claim(other, "large", "gh", b"", now));
        let body = Bytes::from(vec![0; MAX_BYTES_OF_CALLER]);
        keys.publish(large, Ok((StatusCode::OK, body)), now);
        assert!(matches!(keys.claim(other, "more", "gh", b"", now), Claim::Full));
        // Other callers are not affected.
        let third = first(keys.claim(caller("c"), "key", "gh", b"", now));
        keys.publish(third, stored(""), now);
        // Everything expires.
        first(keys.claim(one, "more", "gh", b"", now + RETENTION));
        assert_eq!(keys.keys.lock().entries.len(), 1);
        assert_eq!(keys.keys.lock().bytes, 0);
    }

    #[test]
    fn keys_are_visible_ascii() {
        assert!(is_valid_key(b"550e8400-e29b"));
        assert!(is_valid_key(&[b'x'; MAX_KEY_BYTES]));
        for key in [&b""[..], b"a b", b"\xc3\xa9", &[b'x'; MAX_KEY_BYTES + 1]] {
            assert!(!is_valid_key(key));
        }
    }
}
