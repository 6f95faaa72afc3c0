//! Questions to approvers: each is asked once and answered once, and the answer is no if it expires.

use std::sync::Arc;
use std::time::Duration;

use sympozium_api::digest::digest;
use sympozium_api::limits::SHORT_TEXT;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::Gate;
use sympozium_ipc::receipt::to_receipt_text;
use sympozium_ipc::run_api::{ApiRefusal, ApiRefusalCode, ApprovalAnswer, ApprovalRequest, Decision};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::request::refuse;
use super::traits::{Question, QuestionHandler};
use super::{MAX_OPEN_QUESTIONS, MAX_QUESTIONS, MAX_WAIT_SECONDS, Service, run_ended_refusal};
use crate::events::EventKind;
use crate::plans::{Run, RunFacts};

/// How long a question stays open while no request waits for it.
pub const ABANDON_TIMEOUT: Duration = Duration::from_secs(15);
/// The domain of the digest of a question.
const QUESTION_DOMAIN: &str = "sympozium.ai/question/v1";

/// `None` until the question is answered.
type QuestionResult = Option<Result<ApprovalAnswer, ApiRefusal>>;

/// A question that was asked.
#[derive(Debug)]
pub(crate) struct AskedQuestion {
    /// The digest of everything that was asked, except the waiting time.
    digest: Digest,
    result: watch::Receiver<QuestionResult>,
}

impl<I, D: QuestionHandler, R, S> Service<I, D, R, S>
where
    Self: Send + Sync + 'static,
{
    /// Asks a question, or waits for the answer if it was asked before.
    pub(super) async fn handle_question(
        self: &Arc<Self>,
        connection: u64,
        run: &Arc<Run>,
        request: ApprovalRequest,
    ) -> Result<ApprovalAnswer, ApiRefusal> {
        let facts = run.facts().ok_or_else(run_ended_refusal)?;
        if facts.gate(&request.tool, request.pack.as_deref()) != Some(Gate::Ask) {
            let message = "the plan of this run does not ask a person about that tool";
            return Err(refuse(ApiRefusalCode::Denied, message));
        }
        let name = request.approval.clone();
        let mut verdict = self.open_question(connection, run, facts, request)?;
        if let Ok(verdict) = verdict.wait_for(Option::is_some).await
            && let Some(verdict) = verdict.as_ref()
        {
            return verdict.clone();
        }
        if run.has_ended() {
            return Err(run_ended_refusal());
        }
        // The task that asked ended without an answer: the question may be asked again.
        let mut questions = run.state.questions.lock();
        if questions.get(&name).is_some_and(|question| question.is_lost()) {
            questions.remove(&name);
        }
        let message = "the question could not be put to an approver";
        Err(refuse(ApiRefusalCode::Failed, message))
    }

    fn open_question(
        self: &Arc<Self>,
        connection: u64,
        run: &Arc<Run>,
        facts: &Arc<RunFacts>,
        request: ApprovalRequest,
    ) -> Result<watch::Receiver<QuestionResult>, ApiRefusal> {
        let content = question_digest(&request)?;
        let mut questions = run.state.questions.lock();
        if let Some(asked) = questions.get(&request.approval) {
            if asked.digest != content {
                let message = "another question of this run has that name";
                return Err(refuse(ApiRefusalCode::Request, message));
            }
            return Ok(asked.result.clone());
        }
        if run.state.has_ended() {
            let message = "the run has reported how it ended";
            return Err(refuse(ApiRefusalCode::Denied, message));
        }
        if questions.len() >= MAX_QUESTIONS {
            // Not `Busy`, because there will never be room again.
            let message = format!("a run asks at most {MAX_QUESTIONS} questions");
            return Err(refuse(ApiRefusalCode::Denied, message));
        }
        let open = questions.values().filter(|question| question.is_open()).count();
        if open >= MAX_OPEN_QUESTIONS {
            let message = format!("{MAX_OPEN_QUESTIONS} questions of this run wait for an answer");
            return Err(refuse(ApiRefusalCode::Busy, message));
        }
        let (sender, verdict) = watch::channel(None);
        let asked = AskedQuestion { digest: content, result: verdict.clone() };
        questions.insert(request.approval.clone(), asked);
        drop(questions);

        let seconds = request.wait_seconds.min(facts.approval_seconds);
        let seconds = seconds.min(MAX_WAIT_SECONDS);
        let question =
            Question { run: Arc::clone(facts), deadline: Instant::now() + Duration::from_secs(seconds), request };
        self.emit(connection, run.uid(), EventKind::asked(&question.request, seconds));
        let (service, run) = (Arc::clone(self), Arc::clone(run));
        tokio::spawn(async move { service.wait_for_answer(connection, run, question, sender).await });
        Ok(verdict)
    }

    /// Waits for the answer, independently of the requests that wait for it. Ends with the answer, the deadline or the
    /// run.
    async fn wait_for_answer(
        &self,
        connection: u64,
        run: Arc<Run>,
        question: Question,
        sender: watch::Sender<QuestionResult>,
    ) {
        let request = question.request.clone();
        let (facts, deadline) = (Arc::clone(&question.run), question.deadline);
        let has_no_approver = facts.approval.approvers.as_ref().is_some_and(Vec::is_empty);
        let verdict = tokio::select! {
            // An answer after the deadline does not count.
            biased;
            () = run.wait_end() => return,
            () = sleep_until(deadline) => Ok(build_answer(&request, Decision::Expired, None)),
            // The action cannot happen any more.
            () = run.state.wait_ended() => Ok(build_answer(&request, Decision::Expired, None)),
            () = wait_abandoned(&sender) => Ok(build_answer(&request, Decision::Expired, None)),
            decided = async {
                if has_no_approver {
                    let reason = "the policy of this run names no approver";
                    return Ok(build_answer(&request, Decision::Denied, Some(reason)));
                }
                self.api.question_handler.ask(question).await
            } => decided.map(|decided| check_answer(&request, &facts, decided)),
        };
        match verdict {
            Ok(answer) => {
                self.emit(connection, run.uid(), EventKind::answered(&answer));
                sender.send_replace(Some(Ok(answer)));
            }
            Err(unable) => {
                // The question was not asked, or its state is unknown: it may be asked again.
                run.state.questions.lock().remove(&request.approval);
                sender.send_replace(Some(Err(unable.into())));
            }
        }
    }
}

/// Resolves when no request has waited for the answer for a while: the run has given the question up, and approvers
/// must not be asked in vain. A bridge that lost its connection is back long before.
async fn wait_abandoned(sender: &watch::Sender<QuestionResult>) {
    let mut alone_since = None;
    loop {
        sleep(ABANDON_TIMEOUT / 3).await;
        // The question itself holds one receiver.
        if sender.receiver_count() > 1 {
            alone_since = None;
            continue;
        }
        let since = *alone_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= ABANDON_TIMEOUT {
            return;
        }
    }
}

impl AskedQuestion {
    fn is_open(&self) -> bool {
        self.result.borrow().is_none()
    }

    /// Whether it has no answer and will never have one.
    fn is_lost(&self) -> bool {
        self.is_open() && self.result.has_changed().is_err()
    }
}

/// The same ID must be the same question, apart from the waiting time.
fn question_digest(request: &ApprovalRequest) -> Result<Digest, ApiRefusal> {
    let request = ApprovalRequest { wait_seconds: 0, ..request.clone() };
    digest(QUESTION_DOMAIN, &request).map_err(|_| refuse(ApiRefusalCode::Request, "this is no question"))
}

fn build_answer(request: &ApprovalRequest, decision: Decision, reason: Option<&str>) -> ApprovalAnswer {
    ApprovalAnswer {
        approval: request.approval.clone(),
        action: request.action.clone(),
        decision,
        by: None,
        reason: reason.map(str::to_owned),
        for_the_run: false,
    }
}

/// Checks an answer against its question and the plan: a mismatch is a no.
fn check_answer(request: &ApprovalRequest, facts: &RunFacts, given: ApprovalAnswer) -> ApprovalAnswer {
    if given.approval != request.approval || given.action != request.action {
        tracing::error!(approval = request.approval, "an answer was about another action than the question");
        let reason = "the answer that came was about another action";
        return build_answer(request, Decision::Denied, Some(reason));
    }
    let yes = given.decision == Decision::Approved;
    ApprovalAnswer {
        by: given.by.as_deref().map(to_receipt_text),
        reason: given.reason.map(|reason| reason.chars().take(SHORT_TEXT).collect()),
        for_the_run: given.for_the_run && yes && facts.approval.run_scope,
        ..given
    }
}

#[cfg(test)]
mod tests;
