//! Waits for events on the descriptors of a volume.

use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that is readable when an event has arrived. Without one, the directory is polled.
pub(super) struct Events(AsyncFd<OwnedFd>);

impl Events {
    #[expect(
        deprecated,
        reason = "its successor is unsafe because of types that give out another descriptor each time; this one does not"
    )]
    pub(super) fn new(descriptor: Option<BorrowedFd<'_>>) -> Option<Self> {
        let own = descriptor?.try_clone_to_owned().ok()?;
        AsyncFd::with_interest(own, Interest::READABLE).ok().map(Self)
    }

    pub(super) async fn readable(events: &Option<Self>) {
        match events {
            None => std::future::pending().await,
            Some(events) => {
                if let Ok(mut ready) = events.0.readable().await {
                    // Events after this make it readable again: the descriptor is read after this call.
                    ready.clear_ready();
                }
            }
        }
    }
}
