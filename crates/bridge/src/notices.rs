//! Handles the notices of skill volumes: a file in `/ipc` that the bridge did not write, or an executor that starts
//! below the isolation floor.

use std::sync::Arc;

use sympozium_ipc::receipt::Event;
use tokio::sync::mpsc;

use crate::session::{Session, StopCause};
use crate::skill::{Finding, Notice};

impl Session {
    /// Records notices for as long as the session lives.
    pub(crate) fn follow_notices(self: &Arc<Self>, mut notices: mpsc::UnboundedReceiver<Notice>) {
        let session = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(notice) = notices.recv().await {
                let Some(session) = session.upgrade() else {
                    return;
                };
                match notice {
                    Notice::Foreign(finding) => session.record_finding(finding),
                    Notice::BelowFloor(why) => session.end_below_floor(why),
                }
            }
        });
    }

    /// Writes a receipt, and ends the run if it can no longer be known what has happened.
    fn record_finding(&self, finding: Finding) {
        self.records.add(Event::Foreign {
            pack: finding.pack,
            what: finding.kind,
            name: finding.name,
            ends_run: finding.ends_run.is_some(),
        });
        if let Some(why) = finding.ends_run {
            // Overrides the agent's result.
            let _ = self.compromised.set(why.clone());
            self.end(StopCause::Compromised(why));
        }
    }
}
