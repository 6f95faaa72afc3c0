//! The Prometheus metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Skills that are counted by name; further ones are counted as [`OTHER`].
const MAX_SKILL_LABELS: usize = 256;
/// Also for names that are no skill.
const OTHER: &str = "other";
/// Of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// Exit code 0.
    Ok,
    /// Another exit code, or a signal.
    Error,
    Timeout,
    /// By its caller, or by the shutdown.
    Cancelled,
    /// Not executed, because of the request or the skill.
    Refused,
    /// Not executed, or not completely, because of an error of the executor.
    Failed,
}

impl CallOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SkillLabels {
    skill: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<SkillLabels, Counter>,
    seconds: Histogram,
    answers: Family<StatusLabels, Counter>,
    unauthorized: Counter,
    tasks: Family<StateLabels, Gauge>,
    skill_labels: Mutex<BTreeSet<String>>,
    pub running: Gauge,
    pub waiting: Gauge,
    /// Of callers.
    pub connections: Gauge,
    pub probe_connections: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("skill_sidecar");
        let calls = Family::default();
        registry.register("calls", "Calls of skills, by skill and outcome", calls.clone());
        let seconds = Histogram::new(SECONDS);
        registry.register("call_duration_seconds", "How long skills ran", seconds.clone());
        let answers = Family::default();
        registry.register("answers", "Responses, by HTTP status", answers.clone());
        let unauthorized = Counter::default();
        registry.register("unauthorized", "Requests without a valid token", unauthorized.clone());
        let tasks = Family::default();
        registry.register("tasks", "Stored tasks, by state", tasks.clone());
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::<i64, std::sync::atomic::AtomicI64>::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let running = gauge("running", "Running skills");
        let waiting = gauge("waiting", "Calls that wait for a slot");
        let connections = gauge("connections", "Open connections of callers");
        let probe_connections = gauge("probe_connections", "Open connections of probes");
        Self {
            calls,
            seconds,
            answers,
            unauthorized,
            tasks,
            skill_labels: Mutex::default(),
            running,
            waiting,
            connections,
            probe_connections,
            registry,
        }
    }
}

impl Metrics {
    /// `skill` must exist: only such names may become labels. At most [`MAX_SKILL_LABELS`] do.
    pub fn count_call(&self, skill: &str, kind: CallOutcome, duration: Option<Duration>) {
        let skill = if self.has_label(skill) { skill } else { OTHER };
        let labels = SkillLabels { skill: skill.to_owned(), outcome: kind.as_str() };
        self.calls.get_or_create(&labels).inc();
        if let Some(duration) = duration {
            self.seconds.observe(duration.as_secs_f64());
        }
    }

    /// A call of a skill that does not exist or must not run, or with invalid input.
    pub fn count_refused(&self) {
        self.count_call(OTHER, CallOutcome::Refused, None);
    }

    pub fn count_response(&self, code: u16) {
        self.answers.get_or_create(&StatusLabels { code }).inc();
    }

    /// A request without a valid token.
    pub fn count_unauthorized(&self) {
        self.unauthorized.inc();
    }

    /// `tasks` are the numbers of pending and finished tasks.
    pub fn render(&self, tasks: (usize, usize)) -> String {
        for (state, count) in [("pending", tasks.0), ("finished", tasks.1)] {
            let gauge = self.tasks.get_or_create(&StateLabels { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn has_label(&self, skill: &str) -> bool {
        let mut labels = self.skill_labels.lock();
        labels.contains(skill) || (labels.len() < MAX_SKILL_LABELS && labels.insert(skill.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_skills_are_bounded() {
        let metrics = Metrics::default();
        for number in 0..2 * MAX_SKILL_LABELS {
            metrics.count_call(&format!("skill-{number}"), CallOutcome::Ok, None);
        }
        let text = metrics.render((1, 2));
        assert_eq!(text.matches("skill_sidecar_calls_total{").count(), MAX_SKILL_LABELS + 1);
        let others = format!("{{skill=\"other\",outcome=\"ok\"}} {MAX_SKILL_LABELS}\n");
        assert!(text.contains(&others), "{text}");
        assert!(text.contains("skill_sidecar_tasks{state=\"finished\"} 2\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
