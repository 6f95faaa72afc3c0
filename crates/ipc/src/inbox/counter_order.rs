//! Serves authenticated requests in the order of their counters.
//!
//! A directory listing has no order, and may miss a file that was renamed into place in the meantime. A request whose
//! counter leaves a gap is therefore held until a listing that started after it was seen has ended: a request that was
//! written before it, and not withdrawn, has been found by then.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Instant, SystemTime};

use super::{Arrival, Ignored, Inbox, LeaseState, RETRY_INTERVAL};
use crate::auth::{Verifier, VerifyError};
use crate::id::RequestId;
use crate::message::{ExecRequest, RequestError};
use crate::names;

/// Limit for held requests. Only requests of the bridge are held; further ones are found by a later listing.
const MAX_HELD: usize = 256;

/// The decision about a request file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OrderDecision {
    /// Serve it, and call [`CounterOrder::mark_served`].
    Serve(u64),
    /// Hold it with this counter: earlier ones may still be found.
    Hold(u64),
    /// Never serve it.
    Refuse(VerifyError),
}

impl Inbox {
    /// From now on only requests that this verifier accepts are returned, in the order of their counters.
    pub fn authenticate(&mut self, verifier: Verifier) {
        self.counter_order = Some(CounterOrder::new(verifier));
    }

    /// Holds a request of the bridge until it is known that no earlier one is left.
    pub(super) fn hold_request(&mut self, id: &RequestId, counter: u64) {
        let listing = self.sources.next_listing();
        let now = Instant::now();
        match self.counter_order.as_mut().map(|counter_order| counter_order.hold(counter, id, listing)) {
            Some(HoldResult::Held) => self.sources.scan_at(now),
            // The listings continue until every request is held or served.
            Some(HoldResult::Full) => self.sources.scan_at(now + RETRY_INTERVAL),
            Some(HoldResult::AlreadyHeld) | None => {}
        }
    }

    /// A held request that need not wait any more.
    pub(super) fn release_held(&mut self) -> Option<RequestId> {
        let ended = self.sources.ended_listing();
        self.counter_order.as_mut()?.release(ended)
    }

    /// Handles a request that the verifier refuses. One that was served before may wait for an answer to its claim.
    pub(super) fn refuse_request(&mut self, id: &RequestId, problem: VerifyError) -> Option<Arrival> {
        if matches!(problem, VerifyError::Replayed { .. }) && matches!(self.volume.stat(&names::claim(id)), Ok(Some(_)))
        {
            return self.process_claimed(id, LeaseState::Unknown);
        }
        self.report_ignored(names::request(id).as_bytes(), Ignored::Unauthentic(problem))
    }
}

/// The result of holding a request.
enum HoldResult {
    Held,
    AlreadyHeld,
    /// It, or a later one in its place, is not held: a listing must find that again.
    Full,
}

/// The verifier of an inbox, and the requests that wait for earlier ones.
#[derive(Debug)]
pub(super) struct CounterOrder {
    verifier: Verifier,
    /// By counter: the request, and the number of the listing after which it need not wait any more.
    held: BTreeMap<u64, (RequestId, u64)>,
    /// The counter that may leave a gap now.
    released: Option<u64>,
}

impl CounterOrder {
    fn new(verifier: Verifier) -> Self {
        Self { verifier, held: BTreeMap::new(), released: None }
    }

    /// Decides about a request file.
    pub(super) fn decide(&self, request: &Result<ExecRequest, RequestError>) -> OrderDecision {
        let request = match request {
            Ok(request) => request,
            Err(problem) => return OrderDecision::Refuse(VerifyError::Unreadable(problem.clone())),
        };
        match self.verifier.check(request, SystemTime::now()) {
            Err(problem) => OrderDecision::Refuse(problem),
            Ok(counter) if counter == self.verifier.last_counter() + 1 => OrderDecision::Serve(counter),
            Ok(counter) if self.released == Some(counter) => OrderDecision::Serve(counter),
            Ok(counter) => OrderDecision::Hold(counter),
        }
    }

    /// Holds a request until the listing of this number has ended. If the list is full, the latest one is dropped: an
    /// earlier one that is not held would be overtaken.
    fn hold(&mut self, counter: u64, id: &RequestId, until_listing: u64) -> HoldResult {
        match self.held.entry(counter) {
            Entry::Occupied(_) => return HoldResult::AlreadyHeld,
            Entry::Vacant(place) => place.insert((id.clone(), until_listing)),
        };
        if self.held.len() <= MAX_HELD {
            return HoldResult::Held;
        }
        self.held.pop_last();
        HoldResult::Full
    }

    /// To be called when a request could not be read or claimed: none may overtake it before the listing of this number
    /// has ended.
    pub(super) fn postpone(&mut self, until_listing: u64) {
        for (_, until) in self.held.values_mut() {
            *until = until_listing.max(*until);
        }
        self.released = None;
    }

    /// To be called when the request with this counter is served.
    pub(super) fn mark_served(&mut self, counter: u64) {
        self.verifier.advance(counter);
        self.held = self.held.split_off(&(counter + 1));
        self.released = None;
    }

    /// The first held request, if it need not wait any more: it is the next in order, or the listing of its number has
    /// ended.
    fn release(&mut self, ended_listing: u64) -> Option<RequestId> {
        let (&counter, &(_, until)) = self.held.first_key_value()?;
        if counter != self.verifier.last_counter() + 1 && until > ended_listing {
            return None;
        }
        let (id, _) = self.held.remove(&counter)?;
        self.released = Some(counter);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::RequestKey;

    fn ordered() -> CounterOrder {
        CounterOrder::new(Verifier::new(RequestKey::from_bytes([1; 32])))
    }

    fn id(counter: u64) -> RequestId {
        RequestId::from_nanoseconds(counter)
    }

    /// However many are found before the first, and in whatever order.
    #[test]
    fn none_is_overtaken_for_want_of_room() {
        let last = 2 * MAX_HELD as u64;
        let mut ordered = ordered();
        let mut listing = 0;
        let mut served = Vec::new();
        while served.len() as u64 != last {
            listing += 1;
            let found = (1..=last).map(|counter| counter * 389 % (last + 1));
            let last_served = ordered.verifier.last_counter();
            for counter in found.filter(|counter| *counter > last_served) {
                let _ = ordered.hold(counter, &id(counter), listing);
            }
            while let Some(id) = ordered.release(listing) {
                served.push(id);
                ordered.mark_served(served.len() as u64);
            }
            assert!(listing <= 3, "{served:?}");
        }
        let expected: Vec<RequestId> = (1..=last).map(id).collect();
        assert_eq!(served, expected);
    }

    #[test]
    fn what_is_postponed_waits_for_a_further_listing() {
        let mut ordered = ordered();
        let _ = ordered.hold(3, &id(3), 1);
        assert_eq!(ordered.release(0), None);
        ordered.postpone(2);
        assert_eq!(ordered.release(1), None);
        assert_eq!(ordered.release(2), Some(id(3)));
    }
}
