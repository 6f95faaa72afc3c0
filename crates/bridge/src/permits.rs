//! Permits: the bridge decides, the agent acts itself, and reports the outcome.
//!
//! For these tools the mounts are the boundary. Permit, question and receipt bind an honest agent only, and the
//! receipts say `by: agent`. A permit that is never reported expires, so that it does not hold the turn for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sympozium_api::builtin_tool::LOAD_SKILL;
use sympozium_api::run_plan::ToolHandler;
use sympozium_ipc::door::{PermitAnswer, PermitReport, Refusal, RefusalCode};
use sympozium_ipc::receipt::{Actor, Outcome, OutputSize, to_receipt_text};
use tokio::task::AbortHandle;

use crate::calls::{Route, refusal};
use crate::session::{InFlight, Session, Slot, Turn};

/// A permit that was issued and not reported yet.
pub(crate) struct Permit {
    expiry: AbortHandle,
    _turn: Turn,
    _slot: Slot,
}

impl Session {
    /// Permits the agent to use one of its own tools, once.
    ///
    /// # Errors
    ///
    /// Returns the refusal for the model.
    pub async fn issue_permit(
        self: &Arc<Self>,
        name: &str,
        body: &[u8],
        unwanted: impl Future<Output = ()> + Send,
    ) -> Result<PermitAnswer, Refusal> {
        tokio::pin!(unwanted);
        let begun = self.accept(Route::Permit, name, body, &mut unwanted).await?;
        debug_assert_eq!(begun.tool.acts, ToolHandler::Agent);
        let work = self.invocation(&begun)?;
        let allowed = self.allow(&begun, &work, &mut unwanted).await?;
        // It selects the active skill.
        if name == LOAD_SKILL
            && let Some(skill) = begun.arguments.get("name").and_then(|value| value.as_str())
        {
            self.activate_skill(skill);
        }
        let permit = begun.call;
        let seconds = u64::from(begun.tool.limits.timeout_seconds);
        let session = Arc::downgrade(self);
        let lapses = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            if let Some(session) = session.upgrade() {
                session.expire_permit(permit);
            }
        });
        let acting = InFlight { by: Actor::Agent, action: allowed.action, since: Instant::now() };
        self.start_action(permit, acting);
        self.permits
            .lock()
            .insert(permit, Permit { expiry: lapses.abort_handle(), _turn: allowed.turn, _slot: begun.slot });
        Ok(PermitAnswer { permit })
    }

    /// Records the outcome of a permit as the agent reports it.
    ///
    /// # Errors
    ///
    /// Returns a refusal if there is no such permit: never issued, reported already, or expired.
    pub fn report_permit(&self, number: u64, report: PermitReport) -> Result<(), Refusal> {
        let permit = self.permits.lock().remove(&number);
        let Some(permit) = permit else {
            let message = "there is no such permit, or not any more";
            return Err(refusal(RefusalCode::Request, message));
        };
        permit.expiry.abort();
        let outcome = match report.outcome {
            Outcome::Failed { why } => Outcome::Failed { why: to_receipt_text(&why) },
            outcome => outcome,
        };
        let output = OutputSize { bytes: report.bytes, truncated: false };
        self.finish_action(number, outcome, output, None);
        Ok(())
    }

    /// Expires all permits that are open when the run ends.
    pub(crate) fn expire_permits(&self) {
        let open: Vec<u64> = self.permits.lock().keys().copied().collect();
        open.into_iter().for_each(|permit| self.expire_permit(permit));
    }

    fn expire_permit(&self, number: u64) {
        let permit = self.permits.lock().remove(&number);
        if let Some(permit) = permit {
            permit.expiry.abort();
            let outcome = Outcome::Failed { why: "the agent did not report the outcome".to_owned() };
            self.finish_action(number, outcome, OutputSize::default(), None);
        }
    }
}
