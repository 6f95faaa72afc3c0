//! The memory budget for request bodies: of each run, of each namespace, and in total.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sympozium_ipc::run_api::MAX_REQUEST;
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit};

use super::MAX_BODY_BYTES;
use crate::plans::Run;

/// The room that there is.
#[derive(Debug, Default)]
pub(super) struct BodyBudget {
    held: Mutex<Held>,
    /// Notified when a body gives its room back.
    freed: Notify,
}

/// The bytes that bodies hold.
#[derive(Debug, Default)]
struct Held {
    all: usize,
    /// By namespace. One without a body is not remembered: there are many.
    namespaces: HashMap<String, usize>,
}

/// The memory of one body, reserved until this is dropped.
#[derive(Debug)]
pub(super) struct BodyReservation {
    rooms: Arc<BodyBudget>,
    namespace: String,
    bytes: usize,
    _of_run: OwnedSemaphorePermit,
}

impl BodyBudget {
    /// Waits for the room of a body of this length, or of the longest where the length is unknown.
    pub(super) async fn take(self: &Arc<Self>, run: &Run, bytes: Option<u64>) -> Result<BodyReservation, AcquireError> {
        let of_run = Arc::clone(&run.state.bodies).acquire_owned().await?;
        let namespace = run.namespace();
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(MAX_REQUEST).min(MAX_REQUEST);
        loop {
            // Made before the look: it is woken by whatever is given back from here on.
            let freed = self.freed.notified();
            if self.held.lock().take(namespace, bytes) {
                return Ok(BodyReservation {
                    rooms: Arc::clone(self),
                    namespace: namespace.to_owned(),
                    bytes,
                    _of_run: of_run,
                });
            }
            freed.await;
        }
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.rooms.held.lock().give_back(&self.namespace, self.bytes);
        self.rooms.freed.notify_waiters();
    }
}

impl Held {
    /// Takes room for a body of a namespace, if there is enough. Of a namespace that holds some already, only as long as it holds no
    /// more with it than is free then: so one has at most half, two leave a quarter, and another always finds room for its first body.
    fn take(&mut self, namespace: &str, bytes: usize) -> bool {
        let held = self.namespaces.get(namespace).copied().unwrap_or(0);
        let Some(left) = MAX_BODY_BYTES.checked_sub(self.all + bytes) else {
            return false;
        };
        let may = held == 0 || held + bytes <= left;
        if may {
            self.all += bytes;
            self.namespaces.insert(namespace.to_owned(), held + bytes);
        }
        may
    }

    fn give_back(&mut self, namespace: &str, bytes: usize) {
        self.all -= bytes;
        if let Some(held) = self.namespaces.get_mut(namespace) {
            *held -= bytes;
            if *held == 0 {
                self.namespaces.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// By namespace, how many MiB each body has that it sends one after the other, and whether there is room for it.
    #[test]
    fn a_namespace_holds_no_more_than_it_leaves() {
        let table: [&[(&str, usize, bool)]; 3] = [
            // Two runs of each of two namespaces, with two of the longest bodies each: others still find room.
            &[
                ("a", 4, true),
                ("a", 4, true),
                ("a", 4, true),
                ("a", 4, false),
                ("b", 4, true),
                ("b", 4, false),
                ("b", 2, true),
                ("c", 4, true),
                ("d", 4, false),
                ("d", 2, true),
            ],
            // The same in turns.
            &[
                ("a", 4, true),
                ("b", 4, true),
                ("a", 4, true),
                ("b", 4, true),
                ("a", 4, false),
                ("b", 1, false),
                ("c", 4, true),
                ("c", 1, false),
                ("d", 3, true),
                ("e", 1, true),
                ("f", 1, false),
            ],
            &[
                ("a", 4, true),
                ("b", 4, true),
                ("c", 4, true),
                ("d", 4, true),
                ("e", 4, true),
                ("f", 4, true),
                ("g", 1, false),
            ],
        ];
        for bodies in table {
            let mut held = Held::default();
            for (index, (namespace, mebibytes, expected)) in bodies.iter().enumerate() {
                assert_eq!(held.take(namespace, mebibytes * MIB), *expected, "{index} of {bodies:?}");
            }
        }
    }

    /// However two namespaces send, and whatever they have given back.
    #[test]
    fn a_third_namespace_always_finds_room_for_the_longest_body() {
        for step in 1..=MAX_REQUEST / MIB {
            let mut held = Held::default();
            for round in 0..100 {
                let bytes = (1 + round * step % 4) * MIB;
                held.take(["a", "b"][round * step / 3 % 2], bytes);
                assert!(held.all + MAX_REQUEST <= MAX_BODY_BYTES, "{held:?}");
                let namespace = ["b", "a"][round % 2];
                if round % 5 == 0 && held.namespaces.get(namespace).is_some_and(|bytes| *bytes >= MIB) {
                    held.give_back(namespace, MIB);
                }
            }
        }
    }

    #[test]
    fn namespaces_without_a_body_are_forgotten() {
        let mut held = Held::default();
        assert!(held.take("a", 1) && held.take("a", 2) && held.take("b", 3));
        held.give_back("a", 1);
        held.give_back("a", 2);
        assert_eq!((held.all, held.namespaces), (3, HashMap::from([("b".to_owned(), 3)])));
    }
}
