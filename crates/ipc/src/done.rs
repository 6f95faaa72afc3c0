//! Watches for `done` independently of the inbox.

use std::time::Instant;

use rustix::fd::BorrowedFd;
use rustix::fs::inotify::WatchFlags;

use crate::volume::{DoneState, FileKind, Volume, VolumeError};
use crate::watch::{PollReason, SAFETY_INTERVAL, Watch, WatchMode};

/// Limit for the reads of a burst of events in one check; the rest leaves the descriptor readable.
const MAX_READS: usize = 64;

/// Watches for `done`, separately from the [`Inbox`](crate::Inbox), which is not polled while there is no room for
/// requests.
#[derive(Debug)]
pub struct DoneWatch {
    volume: Volume,
    watch: Watch,
    next_check: Instant,
    reported_kind: Option<FileKind>,
}

/// The result of a check for `done`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoneCheck {
    /// There is no `done`: the run is active.
    Running,
    /// The run has ended.
    Done,
    /// An entry named `done` is not a regular file, which does not count. Returned once per kind of entry.
    Foreign(FileKind),
}

impl DoneWatch {
    /// Watches the IPC directory.
    #[must_use]
    pub fn new(volume: &Volume, mode: WatchMode) -> Self {
        let mut watch = Watch::new(mode, volume.root());
        watch.add(volume.root(), WatchFlags::CREATE | WatchFlags::MOVED_TO);
        Self { volume: volume.clone(), watch, next_check: Instant::now(), reported_kind: None }
    }

    /// Readable when [`check`](Self::check) may have a new result. `None` if the directory is polled.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.descriptor()
    }

    /// When to call [`check`](Self::check) even without an event.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        self.next_check
    }

    /// Why `done` is polled, if it is.
    #[must_use]
    pub fn poll_reason(&self) -> Option<&PollReason> {
        self.watch.poll_reason()
    }

    /// Polls from now on: for a caller that has learnt elsewhere that no events are delivered.
    pub fn start_polling(&mut self, reason: PollReason) {
        self.watch.start_polling(reason);
        self.next_check = Instant::now();
    }

    /// Checks for `done`. Cheap, never blocks; may be called at any time.
    ///
    /// # Errors
    /// When the volume cannot be read any more.
    pub fn check(&mut self) -> Result<DoneCheck, VolumeError> {
        // Before the check: a later event makes the descriptor readable again.
        let mut reads = 0;
        while self.watch.read(|_| ()) && reads < MAX_READS {
            reads += 1;
        }
        self.next_check = Instant::now() + self.watch.interval(SAFETY_INTERVAL);
        Ok(match self.volume.done_state()? {
            DoneState::Present => DoneCheck::Done,
            DoneState::Absent => DoneCheck::Running,
            DoneState::Foreign(kind) if self.reported_kind == Some(kind) => DoneCheck::Running,
            DoneState::Foreign(kind) => {
                self.reported_kind = Some(kind);
                DoneCheck::Foreign(kind)
            }
        })
    }
}
