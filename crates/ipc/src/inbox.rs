//! The executor's side: requests, one at a time, as the caller has room for them.
//!
//! The caller pulls. What it does not pull stays on the volume and in the kernel's queue, so back-pressure costs
//! nothing and memory is bounded whatever is in the directory: a batch of events, a buffer of a directory listing, and
//! two bounded lists.
//!
//! The order for one request is fixed: read and parse it once, claim it, then check whether it still exists. What was
//! parsed is what runs. Therefore a requester that removes the request first and the claim last never has it run after
//! it took its result.
//!
//! With a [`Verifier`](crate::Verifier) only requests that the bridge signed are claimed, each counter once and in
//! order. Any other is neither claimed nor answered: it is reported once, for the log, and does not affect requests of
//! the bridge.

mod claim;
mod counter_order;
mod rechecks;
mod sources;

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant, SystemTime};

use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::auth::VerifyError;
use crate::id::{IdError, RequestId};
use crate::message::{DEFAULT_MAX_TIMEOUT, Draft, ExecRequest, MAX_REQUEST_BYTES, RequestError};
use crate::names;
use crate::volume::{self, OpenedFile, ReadError, Volume, VolumeError};
use crate::watch::{PollReason, SAFETY_INTERVAL, WatchMode};
use claim::OwnClaims;
pub use claim::{AbandonedClaim, AnswerError, Claim};
use counter_order::{CounterOrder, OrderDecision};
use rechecks::{RecheckReason, Rechecks};
use sources::{Candidate, Origin, Sources};

/// How long after its last change an incomplete request may still be written.
pub const INCOMPLETE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a request may be incomplete in total.
pub const MAX_INCOMPLETE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after the longest timeout an executor may take to answer its claim.
pub const LEASE_GRACE: Duration = Duration::from_secs(30);
/// How long a process that has marked a claim as expired may take to answer it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between checks of an incomplete request.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Delay before a retry after an error that is not the request's fault.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Names that one call of [`Inbox::next`] examines, so that it returns soon whatever is in the directory.
const MAX_NAMES_PER_CALL: usize = 1024;
/// Malformed names that are remembered so as not to be reported again. Further ones are not reported at all.
const MAX_REPORTED_NAMES: usize = 1024;
/// Limit for the part of a malformed name that is reported, in bytes.
const MAX_REPORTED_BYTES: usize = 255;

/// Settings of an executor.
#[derive(Debug, Clone)]
pub struct InboxSettings {
    /// The pack that it serves; see [`ExecRequest::targets`].
    pub pack: Option<String>,
    /// The longest timeout of any executor of this volume: claims of others expire after it.
    pub max_timeout: Duration,
    /// Additional time before a claim of another executor expires.
    pub lease_grace: Duration,
    /// How changes are detected.
    pub watch: WatchMode,
    /// Interval between listings of the directory while events are delivered.
    pub safety_interval: Duration,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self {
            pack: None,
            max_timeout: DEFAULT_MAX_TIMEOUT,
            lease_grace: LEASE_GRACE,
            watch: WatchMode::Automatic,
            safety_interval: SAFETY_INTERVAL,
        }
    }
}

/// Work for the executor.
#[derive(Debug)]
pub enum Arrival {
    /// Run it and answer.
    Request(Claim, Box<ExecRequest>),
    /// Do not run it; answer with the error.
    Refused(Claim, RequestError),
    /// An executor claimed it and never answered. It may have run, in part or completely: never run it; answer that its
    /// outcome is unknown.
    Abandoned(AbandonedClaim),
    /// Nothing to do: for the log.
    Ignored {
        /// The name of the entry, with unprintable bytes escaped.
        name: String,
        /// Why it is ignored.
        reason: Ignored,
    },
}

/// Why an entry is ignored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// It cannot be answered, because the result would have a malformed name too.
    #[error(transparent)]
    BadName(#[from] IdError),
    /// It cannot be claimed now, and will be retried. Returned once until a claim succeeds.
    #[error("it cannot be claimed: {}", volume_trouble(*.0))]
    NotClaimed(Errno),
    /// The bridge did not write it, or its counter has passed. It is never served.
    #[error("refused: {0}")]
    Unauthentic(VerifyError),
}

/// The end of an inbox: no further call returns a request.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// The volume cannot be used any more, for example because `tools` was removed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// An error was returned before.
    #[error("the inbox has ended")]
    Ended,
}

/// The requests on a volume. See the [module](self) for its guarantees.
#[derive(Debug)]
pub struct Inbox {
    volume: Volume,
    settings: InboxSettings,
    sources: Sources,
    own_claims: OwnClaims,
    rechecks: Rechecks,
    counter_order: Option<CounterOrder>,
    reported: HashSet<u64>,
    hasher: RandomState,
    last_error: Option<Errno>,
    poll_notice: Option<PollReason>,
    more: bool,
    ended: bool,
}

impl Inbox {
    /// Starts to watch. Existing requests are returned first.
    #[must_use]
    pub fn new(volume: &Volume, settings: InboxSettings) -> Self {
        let sources = Sources::new(volume, settings.watch, settings.safety_interval);
        Self {
            poll_notice: sources.poll_reason().cloned(),
            volume: volume.clone(),
            settings,
            sources,
            own_claims: OwnClaims::default(),
            rechecks: Rechecks::default(),
            counter_order: None,
            reported: HashSet::new(),
            hasher: RandomState::new(),
            last_error: None,
            more: false,
            ended: false,
        }
    }

    /// Readable when [`next`](Self::next) may have a request. `None` if the directory is polled from the start; then
    /// [`wake_at`](Self::wake_at) is enough.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.sources.descriptor()
    }

    /// When to call [`next`](Self::next) even if the descriptor is not readable; in the past when there is more work at
    /// once. `None`: never, the inbox has ended.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        if self.ended {
            return None;
        }
        if self.more || self.sources.has_more() {
            return Some(Instant::now());
        }
        let scan = self.sources.next_scan();
        Some(self.rechecks.next_time().map_or(scan, |later| later.min(scan)))
    }

    /// Why the directory is polled, if it is.
    #[must_use]
    pub fn poll_reason(&self) -> Option<&PollReason> {
        self.sources.poll_reason()
    }

    /// Like [`poll_reason`](Self::poll_reason), once: for the log. To be called after each call of
    /// [`next`](Self::next).
    pub fn take_poll_notice(&mut self) -> Option<PollReason> {
        self.poll_notice.take()
    }

    /// The next work, or `None` for now. Never blocks; call it only when there is room for a request.
    ///
    /// # Guarantees
    /// Over all inboxes on the volume, in whatever program, each request is returned to at most one caller.
    ///
    /// # Caller's duties
    /// After `None`, call again when the descriptor is readable or [`wake_at`](Self::wake_at) has passed; after `Some`,
    /// as soon as there is room. Answer every [`Claim`] and every [`AbandonedClaim`].
    ///
    /// # Errors
    /// When `tools` was removed or replaced, or the volume cannot be listed. No further request is returned then.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends; this one only pauses")]
    pub fn next(&mut self) -> Result<Option<Arrival>, InboxError> {
        if self.ended {
            return Err(InboxError::Ended);
        }
        self.more = false;
        for _ in 0..MAX_NAMES_PER_CALL {
            let now = Instant::now();
            let arrival = match self.rechecks.pop_due(now) {
                Some((id, RecheckReason::Incomplete { since })) => {
                    self.process_request(&id, Origin::Event, Some(since))
                }
                Some((id, RecheckReason::Leased)) => self.process_claimed(&id, LeaseState::Expired),
                None => match self.sources.next(&self.volume, now) {
                    Ok(Some((Candidate::Request(id), origin))) => self.process_request(&id, origin, None),
                    Ok(Some((Candidate::BadName(name, problem), _))) => {
                        self.report_ignored(&name, Ignored::BadName(problem))
                    }
                    Ok(None) => match self.release_held() {
                        Some(id) => self.process_request(&id, Origin::Event, None),
                        None => return Ok(None),
                    },
                    Err(error) => {
                        self.ended = true;
                        return Err(error.into());
                    }
                },
            };
            if arrival.is_some() {
                return Ok(arrival);
            }
        }
        self.more = true;
        Ok(None)
    }

    /// Processes one request, in the order that the module explains.
    fn process_request(&mut self, id: &RequestId, origin: Origin, first_seen: Option<Instant>) -> Option<Arrival> {
        let known = self.rechecks.is_leased(id) || origin.is_scan() && self.rechecks.contains(id);
        if known || self.own_claims.contains(id) {
            return None;
        }
        match self.has_result(id) {
            Ok(false) => {}
            Ok(true) => {
                self.rechecks.remove(id);
                return None;
            }
            Err(error) => return self.retry_later(id, error),
        }
        let name = names::request(id);
        let (opened, content) = self.volume.read(&name, MAX_REQUEST_BYTES);
        let draft = match content {
            Ok(bytes) => ExecRequest::parse_draft(&bytes, id),
            Err(ReadError::Missing) => {
                self.rechecks.remove(id);
                return None;
            }
            Err(ReadError::Temporary(error)) => return self.retry_later(id, error),
            Err(problem) => Draft { target: None, request: Err(request_error(problem)) },
        };
        if !draft.targets(self.settings.pack.as_deref()) {
            return None;
        }
        if let Err(problem) = &draft.request
            && problem.may_be_incomplete()
            && let Some(opened) = &opened
            && self.defer_incomplete(id, opened, first_seen)
        {
            return None;
        }
        self.rechecks.remove(id);
        let counter = match self.counter_order.as_ref().map(|counter_order| counter_order.decide(&draft.request)) {
            None => None,
            Some(OrderDecision::Serve(counter)) => Some(counter),
            Some(OrderDecision::Hold(counter)) => {
                self.hold_request(id, counter);
                return None;
            }
            Some(OrderDecision::Refuse(problem)) => return self.refuse_request(id, problem),
        };
        match self.volume.create_marker(&names::claim(id)) {
            Ok(true) => self.last_error = None,
            Ok(false) => return self.process_claimed(id, LeaseState::Unknown),
            Err(error) => return self.retry_later(id, error),
        }
        // From here on the claim is ours; it is released unless it is returned to the caller.
        let claimed = Claim::new(&self.volume, id, &self.own_claims);
        let still_there = match &opened {
            Some(opened) => opened.is_still_at(&self.volume, &name),
            None => self.volume.stat(&name).map(|stat| stat.is_some()),
        };
        match still_there {
            Ok(true) => {}
            Ok(false) => {
                claimed.release();
                return None;
            }
            Err(error) => {
                claimed.release();
                return self.retry_later(id, error);
            }
        }
        if let (Some(ordered), Some(counter)) = (&mut self.counter_order, counter) {
            ordered.mark_served(counter);
        }
        if origin == Origin::SafetyScan && opened.is_none_or(|opened| age(opened.changed_at()) > INCOMPLETE_TIMEOUT) {
            self.fall_back_to_polling();
        }
        Some(match draft.request {
            Ok(request) => Arrival::Request(claimed, Box::new(request)),
            Err(problem) => Arrival::Refused(claimed, problem),
        })
    }

    /// Whether an incomplete request gets more time. Then it is checked again.
    fn defer_incomplete(&mut self, id: &RequestId, opened: &OpenedFile, first_seen: Option<Instant>) -> bool {
        let now = Instant::now();
        let since = first_seen.or_else(|| self.rechecks.incomplete_since(id)).unwrap_or(now);
        if age(opened.changed_at()) >= INCOMPLETE_TIMEOUT || now.duration_since(since) >= MAX_INCOMPLETE_TIMEOUT {
            return false;
        }
        if !self.rechecks.insert(id, now + RECHECK_INTERVAL, RecheckReason::Incomplete { since }) {
            self.sources.scan_at(now + RETRY_INTERVAL);
        }
        true
    }

    /// Processes a request that another executor has claimed.
    fn process_claimed(&mut self, id: &RequestId, lease: LeaseState) -> Option<Arrival> {
        let name = names::request(id);
        let left = match (self.has_result(id), self.volume.stat(&name)) {
            (Ok(false), Ok(Some(_))) => match self.volume.stat(&names::claim(id)) {
                // The claim's age is not read twice: a process that keeps touching the claim would keep it for ever.
                Ok(Some(_)) if lease == LeaseState::Expired => Duration::ZERO,
                Ok(Some(claim)) => {
                    let whole = self.settings.max_timeout + self.settings.lease_grace;
                    whole.saturating_sub(age(volume::changed_at(&claim)))
                }
                // It was claimed and is not any more, while the request still exists: that does not show whether it
                // ran. Take the claim, so that no executor runs it now, and report it.
                Ok(None) => match self.volume.create_marker(&names::claim(id)) {
                    Ok(_) => Duration::ZERO,
                    Err(error) => return self.retry_later(id, error),
                },
                Err(error) => return self.retry_later(id, error),
            },
            (Err(error), _) | (_, Err(error)) => return self.retry_later(id, error),
            _ => return None,
        };
        if !left.is_zero() {
            let now = Instant::now();
            if !self.rechecks.insert(id, now + left, RecheckReason::Leased) {
                self.sources.scan_at(now + RETRY_INTERVAL);
            }
            return None;
        }
        match self.volume.create_marker(&names::expired(id)) {
            Ok(true) => {}
            // Another process is about to answer, or died before that, or only pretends. A second answer is harmless:
            // the first one stays.
            Ok(false) => match self.volume.stat(&names::expired(id)) {
                Ok(Some(marker)) if age(volume::changed_at(&marker)) < ANSWER_TIMEOUT => {
                    if !(self.rechecks).insert(id, Instant::now() + ANSWER_TIMEOUT, RecheckReason::Leased) {
                        self.sources.scan_at(Instant::now() + RETRY_INTERVAL);
                    }
                    return None;
                }
                Ok(_) => {}
                Err(error) => return self.retry_later(id, error),
            },
            Err(error) => return self.retry_later(id, error),
        }
        let abandoned = AbandonedClaim::new(&self.volume, id, &self.own_claims);
        // Its holder may have answered, and the requester removed the request, since the check above.
        let open = matches!((self.has_result(id), self.volume.stat(&name)), (Ok(false), Ok(Some(_))));
        open.then_some(Arrival::Abandoned(abandoned))
    }

    /// Whether the request is answered. A link or the like is not an answer, whichever program created it; the real one
    /// replaces it.
    fn has_result(&self, id: &RequestId) -> Result<bool, Errno> {
        let found = self.volume.stat(&names::result(id))?;
        Ok(found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file()))
    }

    /// Handles an error that is not the request's fault: it is retried later.
    fn retry_later(&mut self, id: &RequestId, error: Errno) -> Option<Arrival> {
        self.sources.restart_scan_at(Instant::now() + RETRY_INTERVAL);
        let listing = self.sources.next_listing();
        if let Some(ordered) = &mut self.counter_order {
            ordered.postpone(listing);
        }
        (self.last_error.replace(error) != Some(error))
            .then(|| Arrival::Ignored { name: names::request(id), reason: Ignored::NotClaimed(error) })
    }

    fn report_ignored(&mut self, name: &[u8], reason: Ignored) -> Option<Arrival> {
        let fresh = self.reported.len() < MAX_REPORTED_NAMES && self.reported.insert(self.hasher.hash_one(name));
        fresh.then(|| Arrival::Ignored {
            name: name[..name.len().min(MAX_REPORTED_BYTES)].escape_ascii().to_string(),
            reason,
        })
    }

    fn fall_back_to_polling(&mut self) {
        if self.sources.poll_reason().is_none() {
            self.sources.start_polling(PollReason::Silent);
            self.poll_notice = Some(PollReason::Silent);
        }
    }
}

/// What is known about the claim of another executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseState {
    /// Nothing yet: its age has to be read.
    Unknown,
    /// Its time was waited for.
    Expired,
}

/// The age of a time; zero for a time in the future.
fn age(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

fn request_error(problem: ReadError) -> RequestError {
    match problem {
        ReadError::WrongKind(kind) => RequestError::NotAFile(kind),
        ReadError::HardLinked { links } => RequestError::HardLinked { links },
        ReadError::TooLarge { bytes } => RequestError::TooLarge { bytes },
        ReadError::Missing => RequestError::Unreadable(Errno::NOENT.to_string()),
        ReadError::Temporary(error) | ReadError::Unreadable(error) => RequestError::Unreadable(error.to_string()),
    }
}

fn volume_trouble(error: Errno) -> String {
    match error {
        Errno::NOSPC | Errno::DQUOT => "the volume is full".to_owned(),
        Errno::ROFS => "the volume is read-only".to_owned(),
        error => error.to_string(),
    }
}
