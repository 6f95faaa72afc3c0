//! The run API on one machine: a queue of questions for an approver, files for reports, and no scheduler.

mod desk;
mod records;

use std::sync::Arc;

use sympozium_ipc::run_api::{
    ApprovalAnswer, Decision, MessageRequest, ScheduleRequest, SubrunsAnswer, SubrunsRequest, Told,
};

use super::traits::{Decider, Question, Scheduler, Unable};
use crate::plans::RunFacts;

pub use desk::{Counted, Desk, MAX_AT_DESK, Pending, Person, Says, Undecidable, Verdict};
pub(crate) use records::one_line;
pub use records::{MAX_RECEIPT_BYTES, Records, RecordsError, RunReport, files};

/// For backends without an approver: denies every question at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct NobodyToAsk;

impl Decider for NobodyToAsk {
    async fn decide(&self, question: Question) -> Result<ApprovalAnswer, Unable> {
        Ok(ApprovalAnswer {
            approval: question.request.approval,
            action: question.request.action,
            decision: Decision::Denied,
            by: None,
            reason: Some("nobody can be asked here, so the answer is no".to_owned()),
            for_the_run: false,
        })
    }
}

/// For backends without a scheduler: refuses every request.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoScheduler;

impl Scheduler for NoScheduler {
    async fn schedule(&self, _: &Arc<RunFacts>, _: ScheduleRequest) -> Result<Told, Unable> {
        Err(unavailable("tasks cannot be scheduled"))
    }

    async fn message(&self, _: &Arc<RunFacts>, _: MessageRequest) -> Result<Told, Unable> {
        Err(unavailable("no channel is connected"))
    }

    async fn subruns(&self, _: &Arc<RunFacts>, _: SubrunsRequest) -> Result<SubrunsAnswer, Unable> {
        Err(unavailable("no runs can be started below this one"))
    }
}

fn unavailable(what: &str) -> Unable {
    Unable::Unavailable(format!("{what} where this run is"))
}
