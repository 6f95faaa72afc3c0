//! Stores the reports of the bridge, and emits events for what is new in them.

use std::sync::Arc;

use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::local::RecordStore;
use sympozium_gateway::run_api::{HandlerError, ReportCursor, ReportStore};
use sympozium_ipc::run_api::{BridgePhase, Report, Usage};
use tokio::sync::watch;

use sympozium_runs::Event;
use sympozium_runs::EventLog;

#[derive(Debug, Clone)]
pub struct EmittingReporter {
    records: RecordStore,
    events: EventLog,
    /// The last reported phase and usage.
    pub latest: watch::Sender<(BridgePhase, Usage)>,
}

impl EmittingReporter {
    pub fn new(records: RecordStore, events: EventLog) -> Self {
        Self { records, events, latest: watch::Sender::new((BridgePhase::Starting, Usage::default())) }
    }

    fn emit_events(&self, report: Report) {
        let (phase, usage) = *self.latest.borrow();
        for line in report.transcript {
            // The agent writes these lines: one that is not JSON is emitted as a string.
            let line = serde_json::from_str(&line).unwrap_or(serde_json::Value::String(line));
            self.events.emit(Event::Transcript { line });
        }
        for line in &report.receipts {
            // Receipts were verified before.
            if let Ok(receipt) = serde_json::from_str(line) {
                self.events.emit(Event::Receipt { receipt: Box::new(receipt) });
            }
        }
        if let Some(text) = report.progress {
            self.events.emit(Event::Progress { text });
        }
        if report.usage != usage {
            self.events.emit(Event::Usage { usage: report.usage });
        }
        if report.phase != phase {
            self.events.emit(Event::Phase { phase: report.phase });
        }
        if (report.phase, report.usage) != (phase, usage) {
            self.latest.send_replace((report.phase, report.usage));
        }
    }
}

impl ReportStore for EmittingReporter {
    async fn cursor(&self, run: &Arc<RunFacts>) -> Result<Option<ReportCursor>, HandlerError> {
        self.records.cursor(run).await
    }

    async fn store(&self, run: &Arc<RunFacts>, report: Report, cursor: &ReportCursor) -> Result<(), HandlerError> {
        self.records.store(run, report.clone(), cursor).await?;
        self.emit_events(report);
        Ok(())
    }
}
