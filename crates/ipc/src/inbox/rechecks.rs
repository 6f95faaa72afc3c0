//! Requests that are checked again at a certain time: a bounded list.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use crate::id::RequestId;

/// Limit for the number of requests. Further ones are found again by listing the directory.
pub(super) const MAX_RECHECKS: usize = 1024;

/// Why a request is checked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecheckReason {
    /// It may still be incomplete.
    Incomplete {
        /// When it was first seen incomplete.
        since: Instant,
    },
    /// Another executor has claimed it and may still answer.
    Leased,
}

/// The list, by time and by id.
#[derive(Debug, Default)]
pub(super) struct Rechecks {
    times: BTreeSet<(Instant, RequestId)>,
    reasons: HashMap<RequestId, (Instant, RecheckReason)>,
}

impl Rechecks {
    /// Adds a request, replacing an earlier entry for it. `false`: the list is full.
    pub(super) fn insert(&mut self, id: &RequestId, at: Instant, reason: RecheckReason) -> bool {
        self.remove(id);
        if self.reasons.len() >= MAX_RECHECKS {
            return false;
        }
        self.times.insert((at, id.clone()));
        self.reasons.insert(id.clone(), (at, reason));
        true
    }

    pub(super) fn remove(&mut self, id: &RequestId) {
        if let Some((id, (at, _))) = self.reasons.remove_entry(id) {
            self.times.remove(&(at, id));
        }
    }

    pub(super) fn contains(&self, id: &RequestId) -> bool {
        self.reasons.contains_key(id)
    }

    /// Whether it waits for the answer of another executor.
    pub(super) fn is_leased(&self, id: &RequestId) -> bool {
        matches!(self.reasons.get(id), Some((_, RecheckReason::Leased)))
    }

    /// Since when a request has been incomplete.
    pub(super) fn incomplete_since(&self, id: &RequestId) -> Option<Instant> {
        match self.reasons.get(id)? {
            (_, RecheckReason::Incomplete { since }) => Some(*since),
            (_, RecheckReason::Leased) => None,
        }
    }

    /// The time of the first entry.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.times.first().map(|(at, _)| *at)
    }

    /// Removes and returns an entry whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(RequestId, RecheckReason)> {
        if self.next_time()? > now {
            return None;
        }
        let (_, id) = self.times.pop_first()?;
        let (_, reason) = self.reasons.remove(&id)?;
        Some((id, reason))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(number: usize) -> RequestId {
        RequestId::from_nanoseconds(number as u64)
    }

    #[test]
    fn what_is_due_comes_in_order_and_once() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut later = Rechecks::default();
        assert!(later.insert(&id(1), at(3), RecheckReason::Leased));
        assert!(later.insert(&id(2), at(1), RecheckReason::Incomplete { since: now }));
        assert!(later.insert(&id(1), at(2), RecheckReason::Leased), "it moves");
        assert_eq!(later.incomplete_since(&id(2)), Some(now));
        assert_eq!(later.incomplete_since(&id(1)), None);
        assert_eq!(later.pop_due(now), None);
        assert_eq!(later.next_time(), Some(at(1)));
        assert_eq!(later.pop_due(at(5)), Some((id(2), RecheckReason::Incomplete { since: now })));
        assert_eq!(later.pop_due(at(5)), Some((id(1), RecheckReason::Leased)));
        assert_eq!(later.pop_due(at(5)), None);
        assert!(!later.contains(&id(1)));
    }

    #[test]
    fn the_list_is_bounded_and_room_comes_back() {
        let now = Instant::now();
        let mut later = Rechecks::default();
        for number in 0..MAX_RECHECKS {
            assert!(later.insert(&id(number), now, RecheckReason::Leased));
        }
        assert!(!later.insert(&id(MAX_RECHECKS), now, RecheckReason::Leased));
        assert!(later.insert(&id(7), now, RecheckReason::Leased), "it has its place");
        later.remove(&id(0));
        assert!(later.insert(&id(MAX_RECHECKS), now, RecheckReason::Leased));
    }
}
