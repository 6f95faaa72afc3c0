//! The requester's side: writes a request, waits, reads and removes the result.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::auth::SignError;
use crate::id::RequestId;
use crate::message::{ExecRequest, ExecResult, MAX_REQUEST_BYTES, MAX_RESULT_BYTES, RequestError, ResultError};
use crate::names::{self, Entry};
use crate::volume::{Existing, FileStamp, ReadError, Volume, VolumeError};
use crate::watch::{InotifyEvent, PollReason, SAFETY_INTERVAL, Watch, WatchMode};

/// Delay before the first check for a result that no event has announced; each further delay is twice as long, up to
/// [`SAFETY_INTERVAL`].
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Limit for the batches of events per call; each batch is bounded by its buffer.
const MAX_READS: usize = 64;
/// Entries of the directory that one listing looks at, and those of them that it gives.
const MAX_LISTED: usize = 65_536;
const MAX_GIVEN: usize = 4096;

/// Writes requests and takes results.
#[derive(Debug)]
pub struct Requester {
    volume: Volume,
    watch: Watch,
    changes: VecDeque<VolumeChange>,
    next_check: Instant,
}

/// Why a request was not written.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// An executor would refuse it.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It cannot be signed.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// It cannot be written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// A change that [`Requester::next_change`] returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeChange {
    /// An entry with the name of this request's result exists; [`Requester::take`] it.
    Result(RequestId),
    /// A request got its name, or was written to under its name. [`Requester::submit`] causes this once for each request: a
    /// second time is another's doing, even if nothing is there any more.
    Request(RequestId),
    /// A request was closed by one that could write it, a request with an unusable id came, or a claim was made. Whose it is is
    /// for the caller to know.
    Entry(Entry),
    /// `tools` was moved or removed. Another directory may have been in its place since.
    Moved,
    /// Events were lost: anything may have come, and be gone. [`Requester::take`] all that are waited for.
    Lost,
    /// [`Requester::take`] all that are waited for, in case events do not come here.
    CheckAll,
    /// Much has happened that is none of our business, and there may be more: ask again.
    Busy,
    /// Nothing for now.
    None,
}

/// A request as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenRequest {
    stamp: FileStamp,
    /// The SHA-256 of its bytes.
    content: [u8; 32],
}

/// The state of a request when it was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawal {
    /// No executor had claimed it, and none will.
    NotStarted,
    /// An executor has claimed it, and may complete it. [`Requester::take`] removes what is left.
    Started,
}

impl Requester {
    /// Starts to watch for results.
    #[must_use]
    pub fn open(volume: &Volume, mode: WatchMode) -> Self {
        let mut watch = Watch::new(mode, volume.tools());
        // CLOSE_WRITE too: not every executor renames. CREATE for claims, and for requests that get their name by link(2).
        // MODIFY for requests that are changed in place: only their temporary files are written by us.
        watch.add(
            volume.tools(),
            WatchFlags::MOVED_TO
                | WatchFlags::CLOSE_WRITE
                | WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::MOVE_SELF
                | WatchFlags::DELETE_SELF,
        );
        Self {
            volume: volume.clone(),
            watch,
            changes: VecDeque::new(),
            next_check: Instant::now() + MIN_CHECK_INTERVAL,
        }
    }

    /// Readable when [`next_change`](Self::next_change) may have a change. `None` if the directory is polled.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.watch.descriptor()
    }

    /// When to call [`next_change`](Self::next_change) even without an event, while a result is pending.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        if self.changes.is_empty() { self.next_check } else { Instant::now() }
    }

    /// Why the directory is polled, if it is.
    #[must_use]
    pub fn poll_reason(&self) -> Option<&PollReason> {
        self.watch.poll_reason()
    }

    /// Writes a request atomically.
    ///
    /// # Errors
    /// When an executor would refuse it, when it cannot be written, or when `tools` is no longer the directory that was
    /// opened, so that no executor would find it.
    pub fn submit(&self, request: &ExecRequest) -> Result<WrittenRequest, SubmitError> {
        let json = request.to_json()?;
        self.volume.check_tools()?;
        // An id is used once; a second request of that name would be run as the first.
        let name = names::request(&request.id);
        let stamp = self.volume.write(&name, &json, Existing::Keep)?;
        let content = Sha256::digest(&json).into();
        Ok(WrittenRequest { stamp, content })
    }

    /// Whether a request is still the unchanged file that [`submit`](Self::submit) wrote, or is gone.
    #[must_use]
    pub fn is_unchanged(&self, id: &RequestId, written: &WrittenRequest) -> bool {
        let now = self.volume.stamp(&names::request(id));
        // By its content too: it may have been changed just before its stamp was taken.
        now.is_missing() || (now == written.stamp && self.has_same_content(id, written))
    }

    /// Whether a request has the content that [`submit`](Self::submit) wrote, or is gone.
    #[must_use]
    pub fn has_same_content(&self, id: &RequestId, written: &WrittenRequest) -> bool {
        match self.volume.read(&names::request(id), MAX_REQUEST_BYTES).1 {
            Ok(bytes) => <[u8; 32]>::from(Sha256::digest(&bytes)) == written.content,
            Err(ReadError::Missing | ReadError::Temporary(_)) => true,
            Err(_) => false,
        }
    }

    /// Whether anything is there under this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        matches!(self.volume.stat(name), Ok(Some(_)))
    }

    /// Removes a request that the bridge did not write, where no executor would run it.
    pub fn discard(&self, id: &RequestId) {
        self.volume.remove(&names::request(id));
    }

    /// Gives the requests, results and claims that are in the directory, up to a bound. The answer says whether that is all.
    #[must_use]
    pub fn list(&self, mut give: impl FnMut(Entry)) -> bool {
        let directory = match self.volume.open_listing() {
            Ok(directory) => directory,
            // This process has run out of something, which the directory is not to blame for.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return true,
            Err(_) => return false,
        };
        let mut given = 0;
        for (listed, entry) in directory.enumerate() {
            let Some(entry) = entry.ok().filter(|_| listed < MAX_LISTED) else {
                return false;
            };
            match Entry::parse(entry.file_name().to_bytes()) {
                Entry::Foreign | Entry::Temporary => {}
                _ if given == MAX_GIVEN => return false,
                entry => {
                    given += 1;
                    give(entry);
                }
            }
        }
        true
    }

    /// Takes the result of a request, if there is one, and removes request, result and claim.
    ///
    /// # Errors
    /// When the result is not valid. All entries are removed in that case too: there will be no other result.
    pub fn take(&self, id: &RequestId) -> Result<Option<ExecResult>, ResultError> {
        let (_, content) = self.volume.read(&names::result(id), MAX_RESULT_BYTES);
        let result = match content {
            Ok(bytes) => ExecResult::parse(&bytes, id),
            Err(ReadError::Missing | ReadError::Temporary(_)) => return Ok(None),
            Err(problem) => Err(result_error(problem)),
        };
        self.remove_entries(id);
        result.map(Some)
    }

    /// Withdraws a request.
    #[must_use]
    pub fn withdraw(&self, id: &RequestId) -> Withdrawal {
        self.volume.remove(&names::request(id));
        // After the removal: an executor that claims now checks for the request, does not find it, and gives up.
        match self.volume.stat(&names::claim(id)) {
            Ok(None) => Withdrawal::NotStarted,
            Ok(Some(_)) | Err(_) => Withdrawal::Started,
        }
    }

    /// The request is removed first, because an executor that claims late checks whether it still exists; the claim is
    /// removed last, because without it, and with the request still there, an executor would run it again.
    fn remove_entries(&self, id: &RequestId) {
        self.volume.remove(&names::request(id));
        self.volume.remove(&names::result(id));
        self.volume.remove_marker(&names::claim(id));
        self.volume.remove_marker(&names::expired(id));
    }

    /// The next change. Never blocks. The ids are from file names that any program may have created: ignore ids that
    /// are not pending.
    pub fn next_change(&mut self) -> VolumeChange {
        if let Some(arrived) = self.changes.pop_front() {
            return arrived;
        }
        let Self { watch, changes: arrived, .. } = self;
        let mut reads = 0;
        let mut any = true;
        while any && arrived.is_empty() && reads < MAX_READS {
            reads += 1;
            any = watch.read(|notice| match notice {
                InotifyEvent::Name(_, name, flags) => arrived.extend(VolumeChange::from_name(name, flags)),
                InotifyEvent::Overflow => arrived.push_back(VolumeChange::Lost),
                InotifyEvent::Directory => arrived.push_back(VolumeChange::Moved),
            });
        }
        if let Some(arrived) = self.changes.pop_front() {
            return arrived;
        }
        if any {
            return VolumeChange::Busy;
        }
        let now = Instant::now();
        if self.next_check <= now {
            self.next_check = now + self.watch.interval(SAFETY_INTERVAL);
            return VolumeChange::CheckAll;
        }
        VolumeChange::None
    }

    /// To be called when a result was found that no event had announced: the directory is polled from now on.
    pub fn fall_back_to_polling(&mut self) {
        self.watch.start_polling(PollReason::Silent);
        self.next_check = Instant::now();
    }

    /// Waits for the result of one request and [takes](Self::take) it. `None`: there was none by the deadline.
    ///
    /// For a caller with one request at a time: changes of others are lost.
    ///
    /// # Errors
    /// Like [`take`](Self::take).
    pub fn wait(&mut self, id: &RequestId, deadline: Instant) -> Result<Option<ExecResult>, ResultError> {
        let mut pause = MIN_CHECK_INTERVAL;
        let mut announced = true;
        loop {
            if let Some(result) = self.take(id)? {
                // An event may have arrived since the wait ended.
                if !announced && !self.wait_for_event(Instant::now()) {
                    self.watch.start_polling(PollReason::Silent);
                }
                return Ok(Some(result));
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            pause = pause.min(self.watch.interval(SAFETY_INTERVAL));
            announced = self.wait_for_event((now + pause).min(deadline));
            if !announced {
                pause *= 2;
            }
        }
    }

    /// Waits for an event or for the deadline, and reads the events. Returns whether there were any.
    fn wait_for_event(&mut self, until: Instant) -> bool {
        let timeout = until.saturating_duration_since(Instant::now());
        let Some(descriptor) = self.watch.descriptor() else {
            std::thread::sleep(timeout);
            return true;
        };
        let timeout = Timespec::try_from(timeout).ok();
        let mut descriptors = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        // An interrupted wait is only shorter.
        let _ = rustix::event::poll(&mut descriptors, timeout.as_ref());
        let mut any = false;
        let mut reads = 0;
        while self.watch.read(|_| ()) && reads < MAX_READS {
            any = true;
            reads += 1;
        }
        any || self.watch.poll_reason().is_some()
    }
}

impl VolumeChange {
    fn from_name(name: &[u8], flags: ReadFlags) -> Option<Self> {
        match Entry::parse(name) {
            // Made or written to, and not written to its end yet.
            Entry::Result(_) if flags.intersects(ReadFlags::CREATE | ReadFlags::MODIFY) => None,
            Entry::Result(id) => Some(Self::Result(id)),
            // An executor may open a request for writing, for one to lock it.
            Entry::Request(id) if !flags.contains(ReadFlags::CLOSE_WRITE) => Some(Self::Request(id)),
            entry @ (Entry::Request(_) | Entry::Claim(_) | Entry::BadRequestName(_)) => Some(Self::Entry(entry)),
            _ => None,
        }
    }
}

fn result_error(problem: ReadError) -> ResultError {
    match problem {
        ReadError::WrongKind(kind) => ResultError::NotAFile(kind),
        ReadError::HardLinked { links } => ResultError::HardLinked { links },
        ReadError::TooLarge { bytes } => ResultError::TooLarge { bytes },
        ReadError::Missing => ResultError::Unreadable("it is not there".to_owned()),
        ReadError::Temporary(error) | ReadError::Unreadable(error) => ResultError::Unreadable(error.to_string()),
    }
}
