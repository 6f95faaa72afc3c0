//! The sources of request names: events, and listings of the directory.
//!
//! A listing advances only as far as the caller pulls, so a directory of any size costs one buffer, and each name is
//! examined once per listing. Events come before names of a listing; so a request that a routine listing finds is one
//! that no event has announced.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::fd::BorrowedFd;
use rustix::fs::Dir;
use rustix::fs::inotify::WatchFlags;
use rustix::io::Errno;

use crate::id::{IdError, RequestId};
use crate::names::{self, Entry};
use crate::volume::{Volume, VolumeError};
use crate::watch::{InotifyEvent, PollReason, Watch, WatchMode};

/// A name to be examined.
#[derive(Debug)]
pub(super) enum Candidate {
    Request(RequestId),
    BadName(Box<[u8]>, IdError),
}

/// Where a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// An event, or our own list.
    Event,
    /// A listing that was expected to find requests: at the start, after lost events, while polling.
    Scan,
    /// A listing that should find nothing new.
    SafetyScan,
}

impl Origin {
    pub(super) fn is_scan(self) -> bool {
        self != Self::Event
    }
}

#[derive(Debug)]
pub(super) struct Sources {
    watch: Watch,
    root_watch: Option<i32>,
    announced: VecDeque<Candidate>,
    scan: Option<(Dir, Origin)>,
    next_scan: Instant,
    next_origin: Origin,
    check_tools: bool,
    safety_interval: Duration,
    /// How many listings were started, and the number of the last one that has ended.
    started_listings: u64,
    ended_listing: u64,
}

impl Sources {
    pub(super) fn new(volume: &Volume, mode: WatchMode, safety: Duration) -> Self {
        let mut watch = Watch::new(mode, volume.tools());
        // CREATE too: links, FIFOs and directories are never closed after writing, and a file may get its name by
        // link(2). All of them need an answer.
        watch.add(
            volume.tools(),
            WatchFlags::CLOSE_WRITE
                | WatchFlags::MOVED_TO
                | WatchFlags::CREATE
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF,
        );
        // There is no event for the deletion of a directory that is still open, but its parent loses a name.
        let root_watch = watch.add(volume.root(), WatchFlags::DELETE | WatchFlags::MOVED_FROM);
        Self {
            watch,
            root_watch,
            announced: VecDeque::new(),
            scan: None,
            next_scan: Instant::now(),
            next_origin: Origin::Scan,
            check_tools: false,
            safety_interval: safety,
            started_listings: 0,
            ended_listing: 0,
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.descriptor()
    }

    pub(super) fn poll_reason(&self) -> Option<&PollReason> {
        self.watch.poll_reason()
    }

    pub(super) fn start_polling(&mut self, reason: PollReason) {
        self.watch.start_polling(reason);
    }

    pub(super) fn has_more(&self) -> bool {
        !self.announced.is_empty() || self.scan.is_some()
    }

    /// The number of the listing that starts next.
    pub(super) fn next_listing(&self) -> u64 {
        self.started_listings + 1
    }

    /// The number of the last listing that has ended.
    pub(super) fn ended_listing(&self) -> u64 {
        self.ended_listing
    }

    pub(super) fn next_scan(&self) -> Instant {
        self.next_scan
    }

    /// Lists the directory at `at` or earlier.
    pub(super) fn scan_at(&mut self, at: Instant) {
        self.next_scan = self.next_scan.min(at);
        self.next_origin = Origin::Scan;
    }

    /// Aborts the current listing and starts a new one at `at`.
    pub(super) fn restart_scan_at(&mut self, at: Instant) {
        self.scan = None;
        self.next_scan = at;
        self.next_origin = Origin::Scan;
    }

    /// The next name, or `None` when there is none for now.
    pub(super) fn next(&mut self, volume: &Volume, now: Instant) -> Result<Option<(Candidate, Origin)>, VolumeError> {
        if self.announced.is_empty() {
            self.read_events(now);
        }
        if self.check_tools {
            volume.check_tools()?;
            self.check_tools = false;
        }
        if let Some(candidate) = self.announced.pop_front() {
            return Ok(Some((candidate, Origin::Event)));
        }
        if self.scan.is_none() && self.next_scan <= now {
            volume.check_tools()?;
            self.start_scan(volume, now)?;
        }
        self.continue_scan(now)
    }

    /// Reads one batch of events; only names of requests are kept.
    fn read_events(&mut self, now: Instant) {
        let Self { watch, root_watch, announced, check_tools, .. } = self;
        let mut overflow = false;
        watch.read(|notice| match notice {
            InotifyEvent::Name(watch, name, _) if Some(watch) == *root_watch => {
                *check_tools |= name == names::TOOLS.as_bytes();
            }
            InotifyEvent::Name(_, name, _) => announced.extend(to_candidate(name)),
            InotifyEvent::Directory => *check_tools = true,
            InotifyEvent::Overflow => overflow = true,
        });
        if overflow {
            // The current listing may have passed the position of a lost event.
            self.scan_at(now);
            if let Some((_, origin)) = &mut self.scan {
                *origin = Origin::Scan;
            }
        }
    }

    fn start_scan(&mut self, volume: &Volume, now: Instant) -> Result<(), VolumeError> {
        let origin = std::mem::replace(&mut self.next_origin, Origin::SafetyScan);
        self.next_scan = now + self.watch.interval(self.safety_interval);
        match volume.open_listing() {
            Ok(directory) => {
                let polled = self.watch.poll_reason().is_some();
                self.started_listings += 1;
                self.scan = Some((directory, if polled { Origin::Scan } else { origin }));
                Ok(())
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
                self.next_origin = Origin::Scan;
                Ok(())
            }
            Err(error) => Err(list_error(error)),
        }
    }

    fn continue_scan(&mut self, now: Instant) -> Result<Option<(Candidate, Origin)>, VolumeError> {
        let Some((directory, origin)) = &mut self.scan else {
            return Ok(None);
        };
        let origin = *origin;
        loop {
            match directory.read() {
                Some(Ok(entry)) => {
                    if let Some(candidate) = to_candidate(entry.file_name().to_bytes()) {
                        return Ok(Some((candidate, origin)));
                    }
                }
                Some(Err(error)) => return Err(list_error(error)),
                None => {
                    self.scan = None;
                    self.ended_listing = self.started_listings;
                    if self.next_origin == Origin::SafetyScan {
                        self.next_scan = now + self.watch.interval(self.safety_interval);
                    }
                    return Ok(None);
                }
            }
        }
    }
}

fn to_candidate(name: &[u8]) -> Option<Candidate> {
    match Entry::parse(name) {
        Entry::Request(id) => Some(Candidate::Request(id)),
        Entry::BadRequestName(problem) => Some(Candidate::BadName(name.into(), problem)),
        _ => None,
    }
}

fn list_error(error: Errno) -> VolumeError {
    VolumeError::Stat { name: names::TOOLS.to_owned(), source: error.into() }
}
