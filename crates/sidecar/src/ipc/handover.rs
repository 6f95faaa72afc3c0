//! The key of a run: waited for once, from the announcement of the start to the first request.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sympozium_ipc::{RequestKey, StartNonce, StartReport, Verifier, Volume};
use sympozium_program::Failure;

use crate::isolation::Isolation;

/// How often to look for the key: on gVisor no event may tell of it.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// An executor that has announced its start and has no key yet.
pub(super) struct Handover {
    volume: Volume,
    start: StartNonce,
}

impl Handover {
    /// Announces this start, and how its commands are isolated. Each start has a nonce of its own, so that a key from before a restart, whoever wrote it, is none.
    pub(super) fn begin(volume: &Volume, isolation: &Isolation) -> Result<Self, Failure> {
        // Before the key is here: no command may read it out of this process. The executor has done so already in a container.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).context("the process cannot be closed to others")?;
        let report = StartReport {
            nonce: StartNonce::generate().context("there is no randomness")?,
            isolation: isolation.as_json().clone(),
        };
        volume.announce_start(&report).map_err(|error| {
            Failure::new(error, "the volume must be writable, and nothing but this executor may have been there before")
        })?;
        Ok(Self { volume: volume.clone(), start: report.nonce })
    }

    /// When to look even without an event.
    pub(super) fn wake_at(&self) -> Instant {
        Instant::now() + LOOK_INTERVAL
    }

    /// What verifies requests, once the key is here. The key is then nowhere but in this process.
    pub(super) fn verifier(&self) -> anyhow::Result<Option<Verifier>> {
        let key: Option<RequestKey> =
            (self.volume).take_key(&self.start).context("the key of the run cannot be taken")?;
        Ok(key.map(Verifier::new))
    }
}
