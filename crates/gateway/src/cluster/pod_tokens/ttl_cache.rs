//! A bounded cache whose entries expire.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use sympozium_api::names::Digest;
use tokio::time::Instant;

pub(super) struct TtlCache<V> {
    capacity: usize,
    ttl: Duration,
    entries: Mutex<HashMap<Digest, (Instant, V)>>,
}

impl<V: Clone> TtlCache<V> {
    pub(super) fn new(most: usize, life: Duration) -> Self {
        Self { capacity: most, ttl: life, entries: Mutex::default() }
    }

    pub(super) fn get(&self, key: &Digest) -> Option<V> {
        let answers = self.entries.lock();
        let (asked, answer) = answers.get(key)?;
        (asked.elapsed() < self.ttl).then(|| answer.clone())
    }

    /// Stores an entry if there is room. What is not stored is asked for again.
    pub(super) fn put(&self, key: Digest, asked: Instant, answer: V) {
        let mut answers = self.entries.lock();
        if answers.len() >= self.capacity {
            answers.retain(|_, (asked, _)| asked.elapsed() < self.ttl);
        }
        if answers.len() < self.capacity {
            answers.insert(key, (asked, answer));
        }
    }
}
