//! Metrics of the controller, for `/metrics`.
//!
//! Each metric has one plain method. Labels have a fixed set of values: kinds, verbs and phases, never names, so that
//! the number of series does not grow with the number of runs.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;

use crate::caches::Caches;

/// Upper bounds of the buckets of durations [seconds]: from one request to the API server to the longest start of a
/// pod.
const BUCKETS: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0];

const PHASES: [(Phase, &str); 9] = [
    (Phase::Pending, "Pending"),
    (Phase::Running, "Running"),
    (Phase::Serving, "Serving"),
    (Phase::PostRunning, "PostRunning"),
    (Phase::AwaitingDelegate, "AwaitingDelegate"),
    (Phase::Succeeded, "Succeeded"),
    (Phase::Failed, "Failed"),
    (Phase::Skipped, "Skipped"),
    (Phase::Cancelled, "Cancelled"),
];

type Label = [(&'static str, &'static str); 1];

/// Labels of a write request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: String,
    verb: &'static str,
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    runs: Family<Label, Gauge>,
    reconciles: Family<Label, Counter>,
    errors: Family<Label, Counter>,
    writes: Family<WriteLabels, Counter>,
    until_job: Histogram,
    until_revoked: Histogram,
    waiting: Gauge,
    leader: Gauge,
    user_namespaces: Gauge,
    certificate_faults: Family<Label, Gauge>,
    swept: Family<Label, Counter>,
    foreign: Family<Label, Gauge>,
    renewals: Gauge<f64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("sympozium_controller"),
            runs: Family::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            writes: Family::default(),
            until_job: Histogram::new(BUCKETS),
            until_revoked: Histogram::new(BUCKETS),
            waiting: Gauge::default(),
            leader: Gauge::default(),
            user_namespaces: Gauge::default(),
            certificate_faults: Family::default(),
            swept: Family::default(),
            foreign: Family::default(),
            renewals: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let Self {
            registry,
            runs,
            reconciles,
            errors,
            writes,
            until_job,
            until_revoked,
            waiting,
            leader,
            user_namespaces,
            certificate_faults,
            swept,
            foreign,
            renewals,
        } = self;
        registry.register("runs", "Runs that there are, by phase", runs.clone());
        registry.register("reconciles", "Times that an object was looked at, by kind", reconciles.clone());
        registry.register("reconcile_errors", "Times that this failed and is tried again, by kind", errors.clone());
        registry.register("api_writes", "Writes to the API server, by kind of object and verb", writes.clone());
        registry.register_with_unit(
            "run_until_job",
            "Time from a run's creation until its Job or Sandbox was made",
            Unit::Seconds,
            until_job.clone(),
        );
        registry.register_with_unit(
            "run_until_revoked",
            "Time from a run's end until its rights were gone",
            Unit::Seconds,
            until_revoked.clone(),
        );
        registry.register("runs_waiting", "Runs that are to be looked at and wait for a place", waiting.clone());
        registry.register("leader", "1 where this process is the one that works, 0 where it stands by", leader.clone());
        registry.register(
            "user_namespaces",
            "1 where pods of runs have a user namespace of their own",
            user_namespaces.clone(),
        );
        registry.register(
            "certificate_faults",
            "1 where a Secret of ours cannot be used and a person has to look, by Secret",
            certificate_faults.clone(),
        );
        registry.register("swept", "Objects of runs that are gone, found and deleted, by kind", swept.clone());
        registry.register(
            "foreign_objects",
            "Objects with our labels that are not of our form, found by the last whole sweep and left alone, by kind",
            foreign.clone(),
        );
        registry.register_with_unit(
            "lease_renewed",
            "When the Lease was last renewed by this process, in Unix time",
            Unit::Seconds,
            renewals.clone(),
        );
    }

    /// Counts a write request: the object's kind, and `create`, `update`, `patch` or `delete`.
    pub fn count_write(&self, kind: &str, verb: &'static str) {
        let write = WriteLabels { kind: kind.to_owned(), verb };
        self.writes.get_or_create(&write).inc();
    }

    /// Observes the time from a run's creation until its Job or Sandbox was created.
    pub fn observe_job_created(&self, duration: Duration) {
        self.until_job.observe(duration.as_secs_f64());
    }

    /// Observes the time from a run's end until its grants were revoked.
    pub fn observe_revoked(&self, duration: Duration) {
        self.until_revoked.observe(duration.as_secs_f64());
    }

    pub fn count_reconcile(&self, kind: &'static str) {
        self.reconciles.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a reconcile that failed and is retried.
    pub fn count_failure(&self, kind: &'static str) {
        self.errors.get_or_create(&[("kind", kind)]).inc();
    }

    /// Sets the number of queued runs.
    pub fn set_waiting(&self, count: usize) {
        self.waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub fn set_leader(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Sets when the Lease was renewed, in seconds of Unix time.
    pub fn set_lease_renewed(&self, unix_seconds: f64) {
        self.renewals.set(unix_seconds);
    }

    /// Sets whether pods of runs have their own user namespace.
    pub fn set_user_namespaces(&self, have: bool) {
        self.user_namespaces.set(have.into());
    }

    /// Sets whether one of our Secrets is unusable.
    pub fn set_certificate_fault(&self, secret: &'static str, faulty: bool) {
        let labels = [("secret", secret)];
        (self.certificate_faults.get_or_create(&labels)).set(faulty.into());
    }

    /// Counts a deleted orphan.
    pub fn count_swept(&self, kind: &'static str) {
        self.swept.get_or_create(&[("kind", kind)]).inc();
    }

    /// Sets the number of objects of a kind with our labels that are not ours.
    pub fn set_foreign(&self, kind: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.foreign.get_or_create(&[("kind", kind)]).set(count);
    }

    /// All metrics in the text format of OpenMetrics. Runs are counted now, from the cache.
    pub fn to_text(&self, caches: Option<&Caches>) -> String {
        if let Some(caches) = caches {
            self.count_runs(caches.runs.state().iter().map(AsRef::as_ref));
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn count_runs<'a>(&self, runs: impl Iterator<Item = &'a AgentRun>) {
        let mut counts: HashMap<Phase, i64> = HashMap::new();
        for run in runs {
            let phase = run.status.as_ref().and_then(|status| status.phase);
            *counts.entry(phase.unwrap_or_default()).or_default() += 1;
        }
        for (phase, name) in PHASES {
            let count = counts.get(&phase).copied().unwrap_or_default();
            self.runs.get_or_create(&[("phase", name)]).set(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sympozium_api::agent_run::AgentRunStatus;

    fn run(phase: Option<Phase>) -> AgentRun {
        let mut run = AgentRun::new("run", Default::default());
        run.status = phase.map(|phase| AgentRunStatus { phase: Some(phase), ..AgentRunStatus::default() });
        run
    }

    fn line<'a>(text: &'a str, start: &str) -> &'a str {
        let found = text.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no {start} in {text}"))
    }

    #[test]
    fn runs_are_counted_by_phase_and_a_phase_that_empties_goes_to_zero() {
        let metrics = Metrics::new();
        metrics.count_runs([run(None), run(Some(Phase::Pending)), run(Some(Phase::Failed))].iter());
        let text = metrics.to_text(None);
        for (phase, count) in [("Pending", 2), ("Failed", 1), ("Running", 0)] {
            let start = format!("sympozium_controller_runs{{phase=\"{phase}\"}}");
            assert_eq!(line(&text, &start), format!("{start} {count}"));
        }
        metrics.count_runs([].into_iter());
        let start = "sympozium_controller_runs{phase=\"Pending\"}";
        assert_eq!(line(&metrics.to_text(None), start), format!("{start} 0"));
    }

    #[test]
    fn metrics_show_what_was_counted() {
        let metrics = Metrics::new();
        metrics.count_write("Role", "create");
        metrics.count_write("Role", "create");
        metrics.observe_job_created(Duration::from_millis(20));
        metrics.observe_revoked(Duration::from_secs(2));
        metrics.count_reconcile("AgentRun");
        metrics.count_failure("AgentRun");
        metrics.set_waiting(7);
        metrics.set_leader(true);
        metrics.count_swept("Role");
        metrics.set_foreign("ClusterRole", 3);
        metrics.set_certificate_fault("sympozium-authority", true);
        let text = metrics.to_text(None);
        for expected in [
            "sympozium_controller_api_writes_total{kind=\"Role\",verb=\"create\"} 2",
            "sympozium_controller_run_until_job_seconds_count 1",
            "sympozium_controller_run_until_revoked_seconds_sum 2.0",
            "sympozium_controller_reconciles_total{kind=\"AgentRun\"} 1",
            "sympozium_controller_reconcile_errors_total{kind=\"AgentRun\"} 1",
            "sympozium_controller_runs_waiting 7",
            "sympozium_controller_leader 1",
            "sympozium_controller_swept_total{kind=\"Role\"} 1",
            "sympozium_controller_foreign_objects{kind=\"ClusterRole\"} 3",
            "sympozium_controller_certificate_faults{secret=\"sympozium-authority\"} 1",
        ] {
            assert_eq!(line(&text, expected), expected);
        }
    }
}
