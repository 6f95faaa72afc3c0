//! A bounded cache whose entries expire.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use sympozium_api::names::Digest;
use tokio::time::Instant;

use super::lock;

pub(super) struct Memory<V> {
    most: usize,
    life: Duration,
    answers: Mutex<HashMap<Digest, (Instant, V)>>,
}

impl<V: Clone> Memory<V> {
    pub(super) fn new(most: usize, life: Duration) -> Self {
        Self { most, life, answers: Mutex::default() }
    }

    pub(super) fn get(&self, key: &Digest) -> Option<V> {
        let answers = lock(&self.answers);
        let (asked, answer) = answers.get(key)?;
        (asked.elapsed() < self.life).then(|| answer.clone())
    }

    /// Stores an entry if there is room. What is not stored is asked for again.
    pub(super) fn put(&self, key: Digest, asked: Instant, answer: V) {
        let mut answers = lock(&self.answers);
        if answers.len() >= self.most {
            answers.retain(|_, (asked, _)| asked.elapsed() < self.life);
        }
        if answers.len() < self.most {
            answers.insert(key, (asked, answer));
        }
    }
}
