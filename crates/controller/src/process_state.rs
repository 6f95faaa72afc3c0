//! What the probes answer: which state the process is in.

use std::sync::Arc;

use parking_lot::Mutex;
use sympozium_program::probes::ProbeHandler;

use crate::caches::Caches;
use crate::metrics::Metrics;

/// The state of the process that the probes show. Clones share it.
#[derive(Clone)]
pub struct ProcessState {
    metrics: Arc<Metrics>,
    phase: Arc<Mutex<ProcessPhase>>,
}

#[derive(Clone, Default)]
enum ProcessPhase {
    /// The API server was not reached yet.
    #[default]
    Starting,
    /// Another process holds the Lease.
    StandingBy,
    /// This process holds the Lease, and its caches are not complete.
    Watching,
    /// This process reconciles.
    Leading(Caches),
    /// This process is shutting down.
    Ending,
}

impl ProcessState {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, phase: Arc::default() }
    }

    /// To be called when the API server answers and the process waits for the Lease.
    pub fn set_standby(&self) {
        self.set(ProcessPhase::StandingBy);
    }

    /// To be called when the process holds the Lease.
    pub fn set_watching(&self) {
        self.set(ProcessPhase::Watching);
    }

    /// To be called when the caches are complete.
    pub fn set_leading(&self, caches: Caches) {
        self.set(ProcessPhase::Leading(caches));
    }

    /// To be called when the process is shutting down.
    pub fn set_ending(&self) {
        self.set(ProcessPhase::Ending);
    }

    fn set(&self, phase: ProcessPhase) {
        *self.phase.lock() = phase;
    }
}

impl ProbeHandler for ProcessState {
    fn check_ready(&self) -> Result<&'static str, &'static str> {
        match &*self.phase.lock() {
            ProcessPhase::Leading(_) => Ok("ok: leader"),
            ProcessPhase::StandingBy => Ok("ok: standby"),
            ProcessPhase::Starting => Err("starting"),
            ProcessPhase::Watching => Err("leader, and the watches are not complete"),
            ProcessPhase::Ending => Err("ending"),
        }
    }

    fn metrics(&self) -> String {
        let caches = match &*self.phase.lock() {
            ProcessPhase::Leading(caches) => Some(caches.clone()),
            _ => None,
        };
        self.metrics.to_text(caches.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_says_what_it_is() {
        let state = ProcessState::new(Arc::new(Metrics::new()));
        assert_eq!(state.check_ready(), Err("starting"));
        state.set_standby();
        assert_eq!(state.check_ready(), Ok("ok: standby"));
        state.set_watching();
        assert_eq!(state.check_ready(), Err("leader, and the watches are not complete"));
        state.set_ending();
        assert_eq!(state.check_ready(), Err("ending"));
        assert!(state.metrics().ends_with("# EOF\n"));
    }
}
