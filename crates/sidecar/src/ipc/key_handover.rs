//! The handover of the request key, between the announcement of the start and the first request.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sympozium_ipc::{RequestKey, StartNonce, StartReport, Verifier, Volume};
use sympozium_program::Failure;

use crate::isolation::IsolationSummary;

/// How often to look for the key: on gVisor there may be no event for it.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// An announced start for which no key has arrived.
pub(super) struct KeyHandover {
    volume: Volume,
    start: StartNonce,
}

impl KeyHandover {
    /// Announces this start and the isolation of its commands. Each start has its own nonce, so that a key that was written
    /// before a restart is not accepted.
    pub(super) fn announce_start(volume: &Volume, isolation: &IsolationSummary) -> Result<Self, Failure> {
        // Before the key arrives, so that no command can read it from this process. In a container the executor has done so
        // already.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).context("the process cannot be made undumpable")?;
        let report = StartReport {
            nonce: StartNonce::generate().context("there is no randomness")?,
            isolation: isolation.as_json().clone(),
        };
        volume.announce_start(&report).map_err(|error| {
            Failure::new(error, "the volume must be writable, and only this executor may have used it before")
        })?;
        Ok(Self { volume: volume.clone(), start: report.nonce })
    }

    /// When to call [`take_verifier`](Self::take_verifier) even without an event.
    pub(super) fn next_poll(&self) -> Instant {
        Instant::now() + POLL_INTERVAL
    }

    /// `None` before the key has arrived. Afterwards the key exists only in this process.
    pub(super) fn take_verifier(&self) -> anyhow::Result<Option<Verifier>> {
        let key: Option<RequestKey> = (self.volume).take_key(&self.start).context("the request key cannot be taken")?;
        Ok(key.map(Verifier::new))
    }
}
