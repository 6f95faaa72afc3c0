//! Decides which runs have ended.

use std::collections::{HashSet, VecDeque};

use sympozium_api::agent_run::Phase;

use super::PartialRun;

/// Maximum number of ended runs that are remembered: the result of a lookup may be older than what the watch has
/// delivered.
pub const MAX_ENDED: usize = 4096;

/// The UIDs of the runs that ended last.
#[derive(Debug, Default)]
pub(super) struct EndedRuns {
    set: HashSet<String>,
    order: VecDeque<String>,
}

impl EndedRuns {
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.set.contains(uid)
    }

    pub(super) fn add(&mut self, uid: &str) {
        if !self.set.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > MAX_ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }
}

/// Why a run has ended, or `None`. A run with a phase that this release does not know is not served.
pub(super) fn end_reason(run: &PartialRun) -> Option<&'static str> {
    if run.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted");
    }
    let status = run.status.as_ref()?;
    if status.revoked_at.is_some() {
        return Some("its rights were taken back");
    }
    let phase = status.phase.as_ref()?;
    match serde_json::from_value::<Phase>(phase.as_str().into()) {
        Ok(phase) => phase.is_terminal().then_some("it has ended"),
        Err(_) => Some("its phase is not one that this release knows"),
    }
}
