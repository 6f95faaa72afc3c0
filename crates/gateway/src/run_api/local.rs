//! The run API on one machine: a queue of questions for an approver, files for reports, and no scheduler.

mod approval_queue;
mod records;

use std::sync::Arc;

use sympozium_ipc::run_api::{
    ApprovalAnswer, Decision, MessageRequest, ScheduleRequest, SubrunsAnswer, SubrunsRequest, TextAnswer,
};

use super::traits::{HandlerError, Question, QuestionHandler, Scheduler};
use crate::plans::RunFacts;

pub use approval_queue::{
    ApprovalQueue, MAX_PENDING, PendingQuestion, Vote, VoteOutcome, VoteRefusal, VoteRequest, Voter,
};
pub(crate) use records::to_json_line;
pub use records::{MAX_RECEIPT_BYTES, RecordStore, RecordStoreError, StoredReport, files};

/// For backends without an approver: denies every question at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoApprover;

impl QuestionHandler for NoApprover {
    async fn ask(&self, question: Question) -> Result<ApprovalAnswer, HandlerError> {
        Ok(ApprovalAnswer {
            approval: question.request.approval,
            action: question.request.action,
            decision: Decision::Denied,
            by: None,
            reason: Some("no approver can be asked here, so the answer is no".to_owned()),
            for_the_run: false,
        })
    }
}

/// For backends without a scheduler: refuses every request.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoScheduler;

impl Scheduler for NoScheduler {
    async fn schedule(&self, _: &Arc<RunFacts>, _: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        Err(unavailable("tasks cannot be scheduled"))
    }

    async fn message(&self, _: &Arc<RunFacts>, _: MessageRequest) -> Result<TextAnswer, HandlerError> {
        Err(unavailable("no channel is connected"))
    }

    async fn subruns(&self, _: &Arc<RunFacts>, _: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        Err(unavailable("no runs can be started below this one"))
    }
}

fn unavailable(what: &str) -> HandlerError {
    HandlerError::Unavailable(format!("{what} where this run is"))
}
