//! Asks an approver about one exact action.
//!
//! The caller holds the exclusive turn from before the question until the action has ended. The run's clock is stopped
//! while the answer is pending. An approval is valid for this question only, unless the approver gives it for the
//! identical action in the whole run and the plan permits that. No answer means no.

use std::time::Duration;

use sympozium_api::names::Digest;
use sympozium_ipc::action::{Action, MAX_SUMMARY};
use sympozium_ipc::door::{Refusal, RefusalCode};
use sympozium_ipc::receipt::{CallDecision, Event, to_receipt_text};
use sympozium_ipc::run_api::{ApiRefusalCode, ApprovalAnswer, ApprovalRequest, BridgePhase, Decision, path};
use tokio::time::{Instant, sleep, sleep_until};

use crate::calls::refusal;
use crate::run_api_client::RunApiError;
use crate::session::Session;

/// The pause before a question is sent again after the connection was lost.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of actions approved for the whole run. An approver gives each of them by hand.
const MAX_RUN_APPROVALS: usize = 1_000;

pub(crate) struct Question<'a> {
    pub call: u64,
    /// The action. Its nonce is the ID of the question.
    pub action: Action<'a>,
    /// The same action without a nonce: equal for every repetition.
    pub identical: Action<'a>,
}

enum AskOutcome {
    Answered(ApprovalAnswer),
    /// The question could not be asked.
    Unavailable(String),
    /// No approver answered in time.
    Expired,
    /// The agent no longer waits.
    Cancelled,
}

impl Session {
    /// Asks the question and waits for the answer. Returns the hash of the approved action.
    pub(crate) async fn ask(
        &self,
        question: &Question<'_>,
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Digest, Refusal> {
        let unhashed = |_| refusal(RefusalCode::Request, "the action has no hash");
        let action = question.action.digest().map_err(unhashed)?;
        let identical = question.identical.digest().map_err(unhashed)?;
        let approved = self.run_approvals.lock().get(&identical).cloned();
        if let Some(by) = approved {
            // Approved before, for the whole run. Each use has its own receipt.
            self.record_answer(question.call, &action, CallDecision::Allowed, by);
            return Ok(action);
        }
        let Some(shown) = question.action.summary() else {
            let message = format!(
                "a person must approve this, and would have to read more than {MAX_SUMMARY} characters; make it shorter"
            );
            let refusal = refusal(RefusalCode::Arguments, &message);
            self.record_answer(question.call, &action, CallDecision::Refused, None);
            return Err(refusal);
        };
        let most = Duration::from_secs(self.plan.deadlines.approval_seconds);
        let wait = most.min(self.clock.approval_time_left());
        let request = ApprovalRequest {
            approval: question.action.nonce.to_owned(),
            tool: question.action.tool.to_owned(),
            pack: question.action.pack.map(str::to_owned),
            action: action.clone(),
            shown,
            wait_seconds: wait.as_secs(),
        };
        self.records.add(Event::Asked {
            call: question.call,
            action: action.clone(),
            approval: request.approval.clone(),
        });
        self.records.set_phase(BridgePhase::Waiting);
        let held = self.clock.pause();
        let answer = tokio::select! {
            biased;
            answer = self.send_question(&request, Instant::now() + wait) => answer,
            () = unwanted => AskOutcome::Cancelled,
        };
        drop(held);
        self.records.set_phase(BridgePhase::Working);
        self.apply_answer(question, answer, action, identical)
    }

    /// Records that the agent stopped waiting before the question was asked.
    pub(crate) fn refuse_unasked(&self, question: &Question<'_>) -> Refusal {
        if let Ok(action) = question.action.digest() {
            self.record_answer(question.call, &action, CallDecision::Refused, None);
        }
        refusal(RefusalCode::Unavailable, "the agent no longer waits for this")
    }

    /// Sends the question until it is answered or the deadline has passed.
    async fn send_question(&self, request: &ApprovalRequest, deadline: Instant) -> AskOutcome {
        let putting = async {
            loop {
                let answer = self.run_api.post(path::APPROVALS, request).await;
                match answer {
                    Ok(answer) => return AskOutcome::Answered(answer),
                    Err(RunApiError::Refused(refusal)) => match refusal.code {
                        ApiRefusalCode::Busy | ApiRefusalCode::Failed => {}
                        _ => return AskOutcome::Unavailable(refusal.message),
                    },
                    // The same ID is the same question, so it can be sent again.
                    Err(problem) => tracing::warn!(%problem, "the question is put again"),
                }
                sleep(RETRY_PAUSE).await;
            }
        };
        tokio::select! {
            biased;
            // First: an approval after the deadline does not count.
            () = sleep_until(deadline) => AskOutcome::Expired,
            answer = putting => answer,
        }
    }

    fn apply_answer(
        &self,
        question: &Question<'_>,
        answer: AskOutcome,
        action: Digest,
        identical: Digest,
    ) -> Result<Digest, Refusal> {
        let record = |decided, by| self.record_answer(question.call, &action, decided, by);
        match answer {
            AskOutcome::Answered(answer) if answer.action != action || answer.approval != question.action.nonce => {
                tracing::error!("an answer is about something else than was asked");
                record(CallDecision::Refused, None);
                let message = "the answer was about something else, which means no";
                Err(refusal(RefusalCode::Disapproved, message))
            }
            AskOutcome::Answered(answer) => {
                let by = answer.by.as_deref().map(to_receipt_text);
                match answer.decision {
                    Decision::Approved => {
                        if answer.for_the_run && self.plan.approval.run_scope {
                            let mut standing = self.run_approvals.lock();
                            if standing.len() < MAX_RUN_APPROVALS {
                                standing.insert(identical, by.clone());
                            }
                        }
                        record(CallDecision::Allowed, by);
                        Ok(action)
                    }
                    Decision::Denied => {
                        record(CallDecision::Denied, by);
                        let reason = answer.reason.as_deref().map(to_receipt_text);
                        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
                        let message = format!("an approver was asked and denied it{reason}");
                        Err(refusal(RefusalCode::Disapproved, &message))
                    }
                    Decision::Expired => {
                        record(CallDecision::Expired, None);
                        Err(expired_refusal())
                    }
                }
            }
            AskOutcome::Expired => {
                record(CallDecision::Expired, None);
                Err(expired_refusal())
            }
            AskOutcome::Unavailable(why) => {
                record(CallDecision::Refused, None);
                let message = format!("no approver can be asked, which means no: {}", to_receipt_text(&why));
                Err(refusal(RefusalCode::Disapproved, &message))
            }
            AskOutcome::Cancelled => {
                record(CallDecision::Refused, None);
                Err(refusal(RefusalCode::Unavailable, "the agent no longer waits for this"))
            }
        }
    }

    fn record_answer(&self, call: u64, action: &Digest, decided: CallDecision, by: Option<String>) {
        self.records.add(Event::Answered { call, action: action.clone(), decided, by });
    }
}

fn expired_refusal() -> Refusal {
    let message = "an approver had to allow this, and none answered in time, which means no";
    refusal(RefusalCode::Expired, message)
}
