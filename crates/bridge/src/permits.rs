//! Permits: the bridge decides, the agent acts itself, and says what came of it.
//!
//! For these tools the mounts are the boundary; permit, question and receipt bind an honest agent only, and receipts say
//! `by: agent`. A permit that is never reported lapses, so that nobody is kept from their turn for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sympozium_api::run_plan::Acts;
use sympozium_ipc::door::{PermitAnswer, PermitReport, Refusal, RefusalCode};
use sympozium_ipc::receipt::{Actor, Outcome, Transferred, shortened};
use tokio::task::AbortHandle;

use crate::calls::{Way, refusal};
use crate::session::{Acting, Session, Slot, Turn, lock};

/// The tool whose permits say which skill the agent reads.
pub(crate) const LOAD_SKILL: &str = "load_skill";

/// A permit that has been given and not been reported on.
pub(crate) struct Permit {
    lapses: AbortHandle,
    _turn: Turn,
    _slot: Slot,
}

impl Session {
    /// Permits the agent to act on a tool of its own, once.
    ///
    /// # Errors
    ///
    /// With what the model is told.
    pub async fn permit(
        self: &Arc<Self>,
        name: &str,
        body: &[u8],
        unwanted: impl Future<Output = ()> + Send,
    ) -> Result<PermitAnswer, Refusal> {
        tokio::pin!(unwanted);
        let begun = self.begin(Way::Permit, name, body, &mut unwanted).await?;
        debug_assert_eq!(begun.tool.acts, Acts::Agent);
        let work = self.work(&begun)?;
        let allowed = self.allow(&begun, &work, &mut unwanted).await?;
        if name == LOAD_SKILL
            && let Some(skill) = begun.arguments.get("name").and_then(|it| it.as_str())
        {
            self.activate_skill(skill);
        }
        let permit = begun.call;
        let seconds = u64::from(begun.tool.limits.timeout_seconds);
        let session = Arc::downgrade(self);
        let lapses = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            if let Some(session) = session.upgrade() {
                session.lapse(permit);
            }
        });
        let acting = Acting { by: Actor::Agent, action: allowed.action, since: Instant::now() };
        self.begins(permit, acting);
        lock(&self.permits)
            .insert(permit, Permit { lapses: lapses.abort_handle(), _turn: allowed.turn, _slot: begun.slot });
        Ok(PermitAnswer { permit })
    }

    /// What the agent says came of a permit.
    ///
    /// # Errors
    ///
    /// When there is no such permit: never given, reported already, or lapsed.
    pub fn report_permit(&self, number: u64, report: PermitReport) -> Result<(), Refusal> {
        let permit = lock(&self.permits).remove(&number);
        let Some(permit) = permit else {
            let message = "there is no such permit, or not any more";
            return Err(refusal(RefusalCode::Request, message));
        };
        permit.lapses.abort();
        let outcome = match report.outcome {
            Outcome::Failed { why } => Outcome::Failed { why: shortened(&why) },
            outcome => outcome,
        };
        let output = Transferred { bytes: report.bytes, truncated: false };
        self.ends(number, outcome, output, None);
        Ok(())
    }

    /// Permits that are still open when the run ends, or longer than their tool may take.
    pub(crate) fn lapse_all(&self) {
        let open: Vec<u64> = lock(&self.permits).keys().copied().collect();
        open.into_iter().for_each(|permit| self.lapse(permit));
    }

    fn lapse(&self, number: u64) {
        let permit = lock(&self.permits).remove(&number);
        if let Some(permit) = permit {
            permit.lapses.abort();
            let outcome = Outcome::Failed { why: "the agent never said what came of it".to_owned() };
            self.ends(number, outcome, Transferred::default(), None);
        }
    }
}
