//! Noticing `done` while everything else is busy.

use std::time::Instant;

use rustix::fd::BorrowedFd;
use rustix::fs::inotify::WatchFlags;

use crate::volume::{Done, FileKind, Volume, VolumeError};
use crate::watch::{PollReason, SAFETY_INTERVAL, Watch, WatchMode};

/// How much of a flood of events is taken at once; the rest leaves the descriptor readable.
const MAX_READS: usize = 64;

/// Waits for `done`, apart from the [`Inbox`](crate::Inbox), which is not asked while there is no room for requests.
#[derive(Debug)]
pub struct DoneWatch {
    volume: Volume,
    watch: Watch,
    next_look: Instant,
    told: Option<FileKind>,
}

/// What a look at `done` gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoneCheck {
    /// The run goes on.
    Running,
    /// The run is over.
    Done,
    /// Something else than a file is named `done`, which does not count. Said once per kind of thing.
    Foreign(FileKind),
}

impl DoneWatch {
    /// Watches the IPC directory.
    #[must_use]
    pub fn new(volume: &Volume, mode: WatchMode) -> Self {
        let mut watch = Watch::new(mode, volume.root());
        watch.add(volume.root(), WatchFlags::CREATE | WatchFlags::MOVED_TO);
        Self { volume: volume.clone(), watch, next_look: Instant::now(), told: None }
    }

    /// Readable when [`check`](Self::check) may have news. There is none where the directory is polled.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.descriptor()
    }

    /// When to call [`check`](Self::check) even without an event.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        self.next_look
    }

    /// Why `done` is polled, if it is.
    #[must_use]
    pub fn polling(&self) -> Option<&PollReason> {
        self.watch.polling()
    }

    /// Polls from now on: for a caller that has learnt elsewhere that events do not come.
    pub fn poll(&mut self, reason: PollReason) {
        self.watch.poll(reason);
        self.next_look = Instant::now();
    }

    /// Looks. Cheap, never blocks; may be called at any time.
    ///
    /// # Errors
    /// When the volume cannot be looked at any more.
    pub fn check(&mut self) -> Result<DoneCheck, VolumeError> {
        // Before the look: what happens after it makes the descriptor readable again.
        let mut reads = 0;
        while self.watch.read(|_| ()) && reads < MAX_READS {
            reads += 1;
        }
        self.next_look = Instant::now() + self.watch.interval(SAFETY_INTERVAL);
        Ok(match self.volume.done()? {
            Done::Yes => DoneCheck::Done,
            Done::No => DoneCheck::Running,
            Done::Foreign(kind) if self.told == Some(kind) => DoneCheck::Running,
            Done::Foreign(kind) => {
                self.told = Some(kind);
                DoneCheck::Foreign(kind)
            }
        })
    }
}
