//! Stores the reports of the bridge, and emits events for what is new in them.

use std::sync::Arc;

use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::local::Records;
use sympozium_gateway::run_api::{Kept, Reporter, Unable};
use sympozium_ipc::run_api::{Phase, Report, Usage};
use tokio::sync::watch;

use super::event::Event;
use super::events::EventLog;

#[derive(Debug, Clone)]
pub struct Watched {
    records: Records,
    events: EventLog,
    /// The last reported phase and usage.
    pub now: watch::Sender<(Phase, Usage)>,
}

impl Watched {
    pub fn new(records: Records, events: EventLog) -> Self {
        Self { records, events, now: watch::Sender::new((Phase::Starting, Usage::default())) }
    }

    fn tell(&self, report: Report) {
        let (phase, usage) = *self.now.borrow();
        for line in report.transcript {
            // The agent writes these lines: one that is not JSON is emitted as a string.
            let line = serde_json::from_str(&line).unwrap_or(serde_json::Value::String(line));
            self.events.tell(Event::Transcript { line });
        }
        for line in &report.receipts {
            // Receipts were verified before.
            if let Ok(receipt) = serde_json::from_str(line) {
                self.events.tell(Event::Receipt { receipt: Box::new(receipt) });
            }
        }
        if let Some(text) = report.progress {
            self.events.tell(Event::Progress { text });
        }
        if report.usage != usage {
            self.events.tell(Event::Usage { usage: report.usage });
        }
        if report.phase != phase {
            self.events.tell(Event::Phase { phase: report.phase });
        }
        if (report.phase, report.usage) != (phase, usage) {
            self.now.send_replace((report.phase, report.usage));
        }
    }
}

impl Reporter for Watched {
    async fn kept(&self, run: &Arc<RunFacts>) -> Result<Option<Kept>, Unable> {
        self.records.kept(run).await
    }

    async fn take(&self, run: &Arc<RunFacts>, report: Report, kept: &Kept) -> Result<(), Unable> {
        self.records.take(run, report.clone(), kept).await?;
        self.tell(report);
        Ok(())
    }
}
