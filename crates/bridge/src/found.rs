//! What becomes of a run when something is found in a skill's `/ipc` that the bridge did not write, or an executor starts below
//! the isolation floor.

use std::sync::Arc;

use sympozium_ipc::receipt::Event;
use tokio::sync::mpsc;

use crate::session::{Over, Session};
use crate::skill::{Finding, Notice};

impl Session {
    /// Records what is found, for as long as the session lives.
    pub(crate) fn follow(self: &Arc<Self>, mut notices: mpsc::UnboundedReceiver<Notice>) {
        let session = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(notice) = notices.recv().await {
                let Some(session) = session.upgrade() else {
                    return;
                };
                match notice {
                    Notice::Foreign(finding) => session.found(finding),
                    Notice::BelowFloor(why) => session.end_below_floor(why),
                }
            }
        });
    }

    /// A receipt, and the end of the run where what has happened can no longer be known.
    fn found(&self, finding: Finding) {
        self.records.add(Event::Foreign {
            pack: finding.pack,
            what: finding.what,
            name: finding.name,
            ends_run: finding.ends_run.is_some(),
        });
        if let Some(why) = finding.ends_run {
            // Whatever the agent says of its result.
            let _ = self.compromised.set(why.clone());
            self.end(Over::Compromised(why));
        }
    }
}
