//! Pending questions, shared fairly: a namespace with many questions does not keep another one from asking.

use std::collections::HashMap;

use tokio::sync::watch;

use super::ObservedApproval;
use crate::connection_limits::{Share, ShareExceeded, Shares};

/// Maximum number of pending questions of all runs. Further ones are refused.
pub const MAX_PENDING: usize = 4096;

/// Namespace and name of the object.
pub type Key = (String, String);

#[derive(Debug, Default)]
pub struct PendingQuestions {
    questions: HashMap<Key, (watch::Sender<ObservedApproval>, Share)>,
    shares: Shares,
}

impl PendingQuestions {
    /// Adds a question. The receiver gets the observed states of its object.
    ///
    /// # Errors
    ///
    /// Returns a message for the bridge if there is no room.
    pub fn add(&mut self, key: &Key, run: &str) -> Result<watch::Receiver<ObservedApproval>, String> {
        let free = MAX_PENDING.saturating_sub(self.questions.len());
        if free == 0 {
            return Err(format!("{MAX_PENDING} questions wait for a person already"));
        }
        if self.questions.contains_key(key) {
            return Err("this question waits already".to_owned());
        }
        let share = self.shares.take(&key.0, run, free);
        let share = share.map_err(|refused| {
            let who = match refused {
                ShareExceeded::Namespace => "the runs of this namespace",
                ShareExceeded::Run => "this run",
            };
            format!("too many questions of {who} wait for a person already")
        })?;
        let (sender, seen) = watch::channel(ObservedApproval::NotSeen);
        self.questions.insert(key.clone(), (sender, share));
        Ok(seen)
    }

    pub fn remove(&mut self, key: &Key) {
        if let Some((_, share)) = self.questions.remove(key) {
            self.shares.release(&share);
        }
    }

    /// The sender for the states of an object, if a question waits for it.
    pub fn sender(&self, key: &Key) -> Option<watch::Sender<ObservedApproval>> {
        self.questions.get(key).map(|(sender, _)| sender.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_api::MAX_OPEN_QUESTIONS;

    fn key(namespace: &str, number: usize) -> Key {
        (namespace.to_owned(), number.to_string())
    }

    /// As many questions as the runs of one namespace get.
    fn flood(waiting: &mut PendingQuestions, namespace: &str) -> usize {
        let asked = (0..2 * MAX_PENDING).filter(|number| {
            let run = format!("{namespace}-{}", number / MAX_OPEN_QUESTIONS);
            waiting.add(&key(namespace, *number), &run).is_ok()
        });
        asked.count()
    }

    #[test]
    fn a_namespace_that_asks_much_leaves_room_for_others() {
        let mut waiting = PendingQuestions::default();
        assert_eq!(flood(&mut waiting, "greedy"), MAX_PENDING / 2);
        assert_eq!(flood(&mut waiting, "another"), MAX_PENDING / 4);
        assert_eq!(flood(&mut waiting, "third"), MAX_PENDING / 8);
        for number in 0..MAX_OPEN_QUESTIONS {
            let asked = waiting.add(&key("modest", number), "run");
            assert!(asked.is_ok(), "{number}: {asked:?}");
        }
        let refused = waiting.add(&key("greedy", 9999), "greedy-new");
        let message = "too many questions of the runs of this namespace wait for a person already";
        assert_eq!(refused.map(drop), Err(message.to_owned()));
    }

    #[test]
    fn what_is_answered_makes_room() {
        let mut waiting = PendingQuestions::default();
        let many = flood(&mut waiting, "greedy");
        let one_more = key("greedy", 2 * MAX_PENDING);
        assert!(waiting.add(&one_more, "run").is_err());
        // Some of them never waited, because their run had its share: they release nothing.
        for number in 0..2 * MAX_PENDING {
            waiting.remove(&key("greedy", number));
        }
        waiting.remove(&key("greedy", 0));
        assert_eq!(waiting.shares.held(), 0);
        assert_eq!(flood(&mut waiting, "greedy"), many);
        // A question can be added once.
        let twice = waiting.add(&key("greedy", 0), "run").map(drop);
        assert_eq!(twice, Err("this question waits already".to_owned()));
    }
}
