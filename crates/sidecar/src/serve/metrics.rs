//! What is counted, for Prometheus.

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

/// Skills that are counted by name; further ones are counted together.
pub const MAX_SKILL_LABELS: usize = 256;
/// The name under which the others are counted, and whatever is no skill at all.
const OTHER: &str = "other";
/// The format of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0];

/// How a call went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Exit code 0.
    Ok,
    /// Another exit code, or a signal.
    Error,
    /// Ended by its timeout.
    Timeout,
    /// Ended by its caller.
    Cancelled,
    /// Not executed, because of the request or the skill.
    Refused,
    /// Not executed, or not to its end, because of us.
    Failed,
}

impl Kind {
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

/// All counters of a server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<SkillLabels, Counter>,
    seconds: Histogram,
    answers: Family<StatusLabels, Counter>,
    unauthorized: Counter,
    tasks: Family<StateLabels, Gauge>,
    known: Mutex<BTreeSet<String>>,
    /// Skills that run now.
    pub running: Gauge,
    /// Calls that wait for their turn.
    pub waiting: Gauge,
    /// Connections of callers.
    pub connections: Gauge,
    /// Connections of probes.
    pub probe_connections: Gauge,
}

/// All of them at zero.
impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("skill_sidecar");
        let calls = Family::default();
        registry.register("calls", "Calls of skills, by skill and outcome", calls.clone());
        let seconds = Histogram::new(SECONDS);
        registry.register("call_duration_seconds", "How long skills ran", seconds.clone());
        let answers = Family::default();
        registry.register("answers", "Answers, by HTTP status", answers.clone());
        let unauthorized = Counter::default();
        registry.register("unauthorized", "Requests without a valid token", unauthorized.clone());
        let tasks = Family::default();
        registry.register("tasks", "Tasks that are kept, by state", tasks.clone());
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::<i64, std::sync::atomic::AtomicI64>::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let running = gauge("running", "Skills that run now");
        let waiting = gauge("waiting", "Calls that wait for their turn");
        let connections = gauge("connections", "Open connections of callers");
        let probe_connections = gauge("probe_connections", "Open connections of probes");
        Self {
            calls,
            seconds,
            answers,
            unauthorized,
            tasks,
            known: Mutex::default(),
            running,
            waiting,
            connections,
            probe_connections,
            registry,
        }
    }
}

impl Metrics {
    /// A skill that exists was called. Only such names become labels, and only so many.
    pub fn called(&self, skill: &str, kind: Kind, duration: Option<Duration>) {
        let skill = if self.is_known(skill) { skill } else { OTHER };
        let labels = SkillLabels { skill: skill.to_owned(), outcome: kind.as_str() };
        self.calls.get_or_create(&labels).inc();
        if let Some(duration) = duration {
            self.seconds.observe(duration.as_secs_f64());
        }
    }

    /// Something was called that does not exist, or may not run.
    pub fn refused(&self) {
        self.called(OTHER, Kind::Refused, None);
    }

    /// An answer was given.
    pub fn answered(&self, code: u16) {
        self.answers.get_or_create(&StatusLabels { code }).inc();
    }

    /// A request had no valid token.
    pub fn unauthorized(&self) {
        self.unauthorized.inc();
    }

    /// Everything, as text; with how many tasks there are, pending and finished.
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

    fn is_known(&self, skill: &str) -> bool {
        let mut known = self.known.lock();
        known.contains(skill) || (known.len() < MAX_SKILL_LABELS && known.insert(skill.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_skills_are_bounded() {
        let metrics = Metrics::default();
        for number in 0..2 * MAX_SKILL_LABELS {
            metrics.called(&format!("skill-{number}"), Kind::Ok, None);
        }
        let text = metrics.render((1, 2));
        assert_eq!(text.matches("skill_sidecar_calls_total{").count(), MAX_SKILL_LABELS + 1);
        let others = format!("{{skill=\"other\",outcome=\"ok\"}} {MAX_SKILL_LABELS}\n");
        assert!(text.contains(&others), "{text}");
        assert!(text.contains("skill_sidecar_tasks{state=\"finished\"} 2\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
