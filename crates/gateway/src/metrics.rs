//! Metrics of the gateway, for `/metrics`.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sympozium_ipc::run_api::ApiRefusalCode;

use crate::events::{EventKind, EventLog, Reason};

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    connections: Gauge,
    unauthenticated: Gauge,
    runs: Gauge,
    reports: Family<ByOutcome, Counter>,
    approvals: Gauge,
    reviews: Family<ByOutcome, Counter>,
    refusals: Family<ByReason, Counter>,
    missed: Counter,
}

/// Values that are read when the metrics are collected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CurrentCounts {
    /// Connected clients.
    pub connections: usize,
    /// Connected clients without a credential.
    pub unauthenticated: usize,
    /// Active runs.
    pub runs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportResult {
    Stored,
    /// Another gateway has accepted reports of the run meanwhile. It is retried.
    Conflict,
    Failed,
}

/// The result of a TokenReview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewResult {
    /// The token belongs to a pod.
    Valid,
    /// The result was cached.
    Cached,
    /// The token is not valid.
    Invalid,
    /// The API server did not answer.
    Failed,
}

impl ReportResult {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "kept",
            Self::Conflict => "overtaken",
            Self::Failed => "failed",
        }
    }
}

impl ReviewResult {
    fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "good",
            Self::Cached => "remembered",
            Self::Invalid => "bad",
            Self::Failed => "failed",
        }
    }
}

// Outcomes and reasons are constants of the code, so their number is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sympozium_gateway");
        let metrics = Self {
            connections: Gauge::default(),
            unauthenticated: Gauge::default(),
            runs: Gauge::default(),
            reports: Family::default(),
            approvals: Gauge::default(),
            reviews: Family::default(),
            refusals: Family::default(),
            missed: Counter::default(),
            registry: Registry::default(),
        };
        registry.register("connections", "Clients that are connected", metrics.connections.clone());
        registry.register(
            "connections_unauthenticated",
            "Clients that are connected and have shown no credential",
            metrics.unauthenticated.clone(),
        );
        registry.register("runs", "Runs that are served", metrics.runs.clone());
        registry.register("reports", "Reports of runs", metrics.reports.clone());
        let help = "Questions that wait for a person";
        registry.register("approvals_waiting", help, metrics.approvals.clone());
        registry.register("token_reviews", "Questions about tokens", metrics.reviews.clone());
        let help = "Requests that were refused, of parts and of runs";
        registry.register("refusals", help, metrics.refusals.clone());
        let help = "Events that were gone before they were counted";
        registry.register("events_missed", help, metrics.missed.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub fn count_report(&self, outcome: ReportResult) {
        let outcome = outcome.as_str();
        self.reports.get_or_create(&ByOutcome { outcome }).inc();
    }

    pub fn count_review(&self, outcome: ReviewResult) {
        let outcome = outcome.as_str();
        self.reviews.get_or_create(&ByOutcome { outcome }).inc();
    }

    /// Changes the number of pending questions.
    pub fn add_pending_questions(&self, more: i64) {
        self.approvals.inc_by(more);
    }

    /// Counts refusals from events until the future is dropped.
    pub async fn count_events(self: Arc<Self>, events: Arc<EventLog>) {
        let mut watcher = events.subscribe(1);
        loop {
            match watcher.next().await {
                Ok(event) => self.count_event(&event.outcome),
                Err(missed) => drop(self.missed.inc_by(missed.count)),
            }
        }
    }

    fn count_event(&self, outcome: &EventKind) {
        let reason = match outcome {
            EventKind::Refused { reason, .. } => reason.as_str(),
            EventKind::RequestRefused { code, .. } => code_label(*code),
            _ => return,
        };
        self.refusals.get_or_create(&ByReason { reason }).inc();
    }

    /// Counts a connection that was refused before its first request. There is no event of it: a client that connects
    /// in a loop would push out the events of runs.
    pub fn count_refused_connection(&self, reason: Reason) {
        let reason = reason.as_str();
        self.refusals.get_or_create(&ByReason { reason }).inc();
    }

    /// All metrics as text, with the current values.
    pub fn to_text(&self, now: CurrentCounts) -> String {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.connections.set(gauge(now.connections));
        self.unauthenticated.set(gauge(now.unauthenticated));
        self.runs.set(gauge(now.runs));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn code_label(code: ApiRefusalCode) -> &'static str {
    match code {
        ApiRefusalCode::Token => "token",
        ApiRefusalCode::Request => "request",
        ApiRefusalCode::Size => "size",
        ApiRefusalCode::Chain => "chain",
        ApiRefusalCode::Denied => "denied",
        ApiRefusalCode::Busy => "busy",
        ApiRefusalCode::Unavailable => "unavailable",
        ApiRefusalCode::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_can_be_collected() {
        let metrics = Metrics::default();
        metrics.count_report(ReportResult::Stored);
        metrics.count_report(ReportResult::Stored);
        metrics.count_review(ReviewResult::Invalid);
        metrics.add_pending_questions(1);
        metrics.count_event(&EventKind::Refused { reason: Reason::NotInPlan, detail: None });
        metrics.count_event(&EventKind::RequestRefused { request: None, code: ApiRefusalCode::Chain, detail: None });
        metrics.count_refused_connection(Reason::UnauthenticatedOfPeer);
        let text = metrics.to_text(CurrentCounts { connections: 3, unauthenticated: 1, runs: 2 });
        for line in [
            "sympozium_gateway_connections 3",
            "sympozium_gateway_connections_unauthenticated 1",
            "sympozium_gateway_runs 2",
            "sympozium_gateway_refusals_total{reason=\"unauthenticated-of-peer\"} 1",
            "sympozium_gateway_reports_total{outcome=\"kept\"} 2",
            "sympozium_gateway_approvals_waiting 1",
            "sympozium_gateway_token_reviews_total{outcome=\"bad\"} 1",
            "sympozium_gateway_refusals_total{reason=\"not-in-plan\"} 1",
            "sympozium_gateway_refusals_total{reason=\"chain\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
