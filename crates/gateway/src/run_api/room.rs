//! Room for the bodies of requests: of each run, of each namespace, and of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sympozium_ipc::run_api::MAX_REQUEST;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::{MAX_BODY_BYTES, MAX_BODY_BYTES_OF_NAMESPACE};
use crate::plans::Run;

/// In which steps bytes are counted.
const BODY_STEP: usize = 1 << 10;

/// The room that there is.
#[derive(Debug)]
pub(super) struct Rooms {
    all: Arc<Semaphore>,
    /// Held by the bodies of the namespace: one that has none is gone.
    namespaces: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The room that a body takes, until this is dropped.
#[derive(Debug)]
pub(super) struct Room {
    _of_run: OwnedSemaphorePermit,
    _of_namespace: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Rooms {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_BODY_BYTES / BODY_STEP)), namespaces: Mutex::default() }
    }
}

impl Rooms {
    /// Waits for the room of a body of this length, or of the longest where the length is unknown.
    ///
    /// The room of all comes last: permits are given in the order of the requests, so whoever waits for it keeps all others
    /// waiting, and a namespace that already has its share must not stand there.
    pub(super) async fn take(&self, run: &Run, bytes: Option<u64>) -> Result<Room, AcquireError> {
        let of_run = Arc::clone(&run.state.bodies).acquire_owned().await?;
        let steps = body_steps(bytes);
        let namespace = self.of_namespace(run.namespace());
        let of_namespace = namespace.acquire_many_owned(steps).await?;
        let of_all = Arc::clone(&self.all).acquire_many_owned(steps).await?;
        Ok(Room { _of_run: of_run, _of_namespace: of_namespace, _of_all: of_all })
    }

    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        // A panic elsewhere leaves it whole.
        let mut namespaces = (self.namespaces.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = namespaces.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        // Namespaces without a body are not remembered: there are many.
        namespaces.retain(|_, it| it.strong_count() > 0);
        let new = Arc::new(Semaphore::new(MAX_BODY_BYTES_OF_NAMESPACE / BODY_STEP));
        namespaces.insert(namespace.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// The room of a body, in steps of [`BODY_STEP`].
fn body_steps(bytes: Option<u64>) -> u32 {
    let bytes = bytes.and_then(|it| usize::try_from(it).ok());
    let bytes = bytes.unwrap_or(MAX_REQUEST).min(MAX_REQUEST);
    u32::try_from(bytes.div_ceil(BODY_STEP).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_without_a_body_are_forgotten() {
        let rooms = Rooms::default();
        let first = rooms.of_namespace("a");
        assert!(Arc::ptr_eq(&first, &rooms.of_namespace("a")));
        drop(first);
        let _other = rooms.of_namespace("b");
        let known = rooms.namespaces.lock().unwrap();
        assert_eq!(known.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn no_body_is_larger_than_the_share_of_a_namespace() {
        let most = body_steps(None) as usize;
        assert_eq!(most, body_steps(Some(u64::MAX)) as usize);
        assert!(most <= MAX_BODY_BYTES_OF_NAMESPACE / BODY_STEP);
        assert_eq!(body_steps(Some(0)), 1);
    }
}
