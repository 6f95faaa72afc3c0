//! The claims of an executor.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::id::RequestId;
use crate::message::{ExecResult, ResultError};
use crate::names;
use crate::volume::{Existing, Volume, VolumeError};

/// Why a result was not written. It may be retried.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The result is for another request.
    #[error("the result is for {given}, and the claim for {claimed}")]
    OtherId {
        /// The id in the result.
        given: RequestId,
        /// The id of the claim.
        claimed: RequestId,
    },
    /// Every reader would refuse it.
    #[error(transparent)]
    Result(#[from] ResultError),
    /// It cannot be written, for example because the volume is full or read-only.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// The requests that this process is working on.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnClaims(Arc<Mutex<HashSet<RequestId>>>);

impl OwnClaims {
    pub(super) fn contains(&self, id: &RequestId) -> bool {
        self.0.lock().contains(id)
    }
}

/// A request that only this process may run or refuse.
///
/// Dropped without an answer it counts as claimed by an executor that died: it is returned as [`AbandonedClaim`] when
/// its lease has expired, and never run again.
#[derive(Debug)]
pub struct Claim {
    volume: Volume,
    id: RequestId,
    own_claims: OwnClaims,
}

impl Claim {
    pub(super) fn new(volume: &Volume, id: &RequestId, mine: &OwnClaims) -> Self {
        mine.0.lock().insert(id.clone());
        Self { volume: volume.clone(), id: id.clone(), own_claims: mine.clone() }
    }

    /// The request's id.
    #[must_use]
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    /// Writes the result atomically. After an error it may be retried.
    ///
    /// # Errors
    /// When it is for another request, too large, or cannot be written.
    pub fn answer(&self, result: &ExecResult) -> Result<(), AnswerError> {
        let json = encode_result(&self.id, result)?;
        self.volume.write(&names::result(&self.id), &json, Existing::Replace)?;
        Ok(())
    }

    /// Releases the request, to be claimed again by the executor that lists the directory next. An executor that has
    /// seen the claim cannot know that nothing ran; it will return the request as [`AbandonedClaim`] instead.
    ///
    /// # Caller's duties
    /// Only if no part of it has run.
    pub fn release(self) {
        self.volume.remove_marker(&names::claim(&self.id));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.own_claims.0.lock().remove(&self.id);
    }
}

/// A request whose claim is older than any command may run, and which has no result.
///
/// Dropped without an answer it is returned again, by a later check of the directory, to the first executor that finds
/// it.
#[derive(Debug)]
pub struct AbandonedClaim {
    volume: Volume,
    id: RequestId,
    own_claims: OwnClaims,
    answered: AtomicBool,
}

impl AbandonedClaim {
    pub(super) fn new(volume: &Volume, id: &RequestId, mine: &OwnClaims) -> Self {
        mine.0.lock().insert(id.clone());
        Self { volume: volume.clone(), id: id.clone(), own_claims: mine.clone(), answered: AtomicBool::new(false) }
    }

    /// The request's id.
    #[must_use]
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    /// Answers that the outcome of the request is unknown. A result that its holder has written meanwhile stays.
    ///
    /// # Errors
    /// Like [`Claim::answer`].
    pub fn answer(&self, result: &ExecResult) -> Result<(), AnswerError> {
        let json = encode_result(&self.id, result)?;
        match self.volume.write(&names::result(&self.id), &json, Existing::Keep) {
            Err(VolumeError::Write { source, .. }) if source.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
            written => {
                written?;
            }
        }
        self.answered.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for AbandonedClaim {
    fn drop(&mut self) {
        if !self.answered.load(Ordering::Relaxed) {
            self.volume.remove_marker(&names::expired(&self.id));
        }
        self.own_claims.0.lock().remove(&self.id);
    }
}

fn encode_result(claimed: &RequestId, result: &ExecResult) -> Result<Vec<u8>, AnswerError> {
    if result.id != *claimed {
        return Err(AnswerError::OtherId { given: result.id.clone(), claimed: claimed.clone() });
    }
    Ok(result.to_json()?)
}
