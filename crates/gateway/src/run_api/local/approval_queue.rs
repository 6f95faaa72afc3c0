//! A queue of questions in memory, for an approver at a terminal or behind another program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use sympozium_api::names::Digest;
use sympozium_api::policy::{Approver, ApproverKind};
use sympozium_ipc::run_api::{ApprovalAnswer, ApprovalRequest, Decision};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::super::traits::{HandlerError, Question, QuestionHandler};
use crate::plans::RunFacts;

/// Maximum number of pending questions of all runs. Further ones are refused.
pub const MAX_PENDING: usize = 1000;

/// The pending questions. Clones share the queue.
#[derive(Debug, Clone)]
pub struct ApprovalQueue {
    questions: Arc<Mutex<BTreeMap<Key, QueuedQuestion>>>,
    /// Counts changes of the queue.
    changes: watch::Sender<u64>,
}

/// The run, and the ID of the question in it.
type Key = (String, String);

#[derive(Debug)]
struct QueuedQuestion {
    pending: PendingQuestion,
    /// Who has approved so far, and whether all of them for the whole run.
    approvals: BTreeSet<String>,
    for_the_run: bool,
    answer: oneshot::Sender<ApprovalAnswer>,
}

#[derive(Debug, Clone)]
pub struct PendingQuestion {
    pub run: Arc<RunFacts>,
    pub request: ApprovalRequest,
    /// When the question expires.
    pub deadline: Instant,
}

/// A person who votes. The caller authenticates them; the queue checks them against the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voter {
    pub name: String,
    pub groups: Vec<String>,
    /// Whether they started the run.
    pub is_author: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    /// Approve, this once.
    Approve,
    /// Approve the identical action for the whole run.
    ApproveForRun,
    Deny,
}

/// A vote about one exact action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteRequest<'v> {
    /// The run's UID.
    pub run: &'v str,
    /// The ID of the question in the run.
    pub approval: &'v str,
    /// The hash of the action that the person was shown.
    pub action: &'v Digest,
    pub vote: Vote,
    pub by: &'v Voter,
    /// The reason, for the model.
    pub reason: Option<&'v str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteOutcome {
    /// The question is answered.
    Decided,
    /// This many more approvals are needed.
    Pending(u32),
}

/// Why a vote does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VoteRefusal {
    #[error("there is no such question, or it was answered, or its time is up")]
    Unknown,
    #[error("the question is about another action than the one that was decided about")]
    OtherAction,
    #[error("the policy of this run does not name this person as an approver")]
    NotApprover,
    #[error("the policy of this run does not let its author approve what it does")]
    Author,
    #[error("the policy of this run wants each action to be approved by itself")]
    RunScope,
    #[error("this person has approved already; another one must")]
    Duplicate,
}

impl Default for ApprovalQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl ApprovalQueue {
    pub fn new() -> Self {
        Self { questions: Arc::default(), changes: watch::Sender::new(0) }
    }

    /// The pending questions, by run and ID.
    pub fn pending(&self) -> Vec<PendingQuestion> {
        let questions = self.questions.lock();
        questions.values().map(|question| question.pending.clone()).collect()
    }

    /// Changes whenever [`Self::pending`] does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Counts a vote. One denial is enough; approvals as the plan requires. A question is answered once.
    ///
    /// A vote in the moment in which the question expires may be too late all the same: what the run was told is in the
    /// gateway's events.
    ///
    /// # Errors
    ///
    /// Returns an error if the vote does not count. The question stays pending.
    pub fn vote(&self, verdict: &VoteRequest<'_>) -> Result<VoteOutcome, VoteRefusal> {
        let key = (verdict.run.to_owned(), verdict.approval.to_owned());
        let mut questions = self.questions.lock();
        let waiting = questions.get_mut(&key).ok_or(VoteRefusal::Unknown)?;
        if Instant::now() >= waiting.pending.deadline || waiting.answer.is_closed() {
            return Err(VoteRefusal::Unknown);
        }
        if waiting.pending.request.action != *verdict.action {
            return Err(VoteRefusal::OtherAction);
        }
        waiting.check(verdict)?;
        if verdict.vote != Vote::Deny {
            if !waiting.approvals.insert(verdict.by.name.clone()) {
                return Err(VoteRefusal::Duplicate);
            }
            waiting.for_the_run &= verdict.vote == Vote::ApproveForRun;
            let wanted = waiting.pending.run.approval.required;
            let more = wanted.saturating_sub(u32::try_from(waiting.approvals.len()).unwrap_or(u32::MAX));
            if more > 0 {
                return Ok(VoteOutcome::Pending(more));
            }
        }
        let Some(waiting) = questions.remove(&key) else {
            unreachable!("it was found under this lock");
        };
        drop(questions);
        self.notify();
        let answer = waiting.pending.into_answer(verdict, &waiting.approvals, waiting.for_the_run);
        // The question has expired in this moment.
        waiting.answer.send(answer).map_err(|_| VoteRefusal::Unknown)?;
        Ok(VoteOutcome::Decided)
    }

    fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

impl QueuedQuestion {
    /// Checks whether this person may vote like this.
    fn check(&self, verdict: &VoteRequest<'_>) -> Result<(), VoteRefusal> {
        let rule = &self.pending.run.approval;
        let is_named = |approver: &Approver| match approver.kind {
            ApproverKind::User => approver.name == verdict.by.name,
            ApproverKind::Group => verdict.by.groups.contains(&approver.name),
        };
        let named = rule.approvers.as_ref();
        if !named.is_none_or(|named| named.iter().any(is_named)) {
            return Err(VoteRefusal::NotApprover);
        }
        match verdict.vote {
            // Every approver may deny, and so may the author of a run.
            Vote::Deny => Ok(()),
            Vote::Approve | Vote::ApproveForRun if verdict.by.is_author && !rule.run_author => Err(VoteRefusal::Author),
            Vote::ApproveForRun if !rule.run_scope => Err(VoteRefusal::RunScope),
            Vote::Approve | Vote::ApproveForRun => Ok(()),
        }
    }
}

impl PendingQuestion {
    fn into_answer(self, verdict: &VoteRequest<'_>, yes: &BTreeSet<String>, for_the_run: bool) -> ApprovalAnswer {
        let (decision, by) = match verdict.vote {
            Vote::Deny => (Decision::Denied, verdict.by.name.clone()),
            Vote::Approve | Vote::ApproveForRun => {
                let names: Vec<&str> = yes.iter().map(String::as_str).collect();
                (Decision::Approved, names.join(", "))
            }
        };
        ApprovalAnswer {
            approval: self.request.approval,
            action: self.request.action,
            decision,
            by: Some(by),
            reason: verdict.reason.map(str::to_owned),
            for_the_run: for_the_run && decision == Decision::Approved,
        }
    }
}

impl QuestionHandler for ApprovalQueue {
    async fn ask(&self, question: Question) -> Result<ApprovalAnswer, HandlerError> {
        let key = (question.run.uid().to_owned(), question.request.approval.clone());
        let (sender, answer) = oneshot::channel();
        {
            let mut questions = self.questions.lock();
            if questions.len() >= MAX_PENDING {
                let message = format!("{MAX_PENDING} questions wait for a person already");
                return Err(HandlerError::Busy(message));
            }
            if questions.contains_key(&key) {
                return Err(HandlerError::Busy("this question waits already".to_owned()));
            }
            let waiting = QueuedQuestion {
                pending: PendingQuestion { run: question.run, request: question.request, deadline: question.deadline },
                approvals: BTreeSet::new(),
                for_the_run: true,
                answer: sender,
            };
            questions.insert(key.clone(), waiting);
        }
        let _on_desk = QueueGuard { queue: self, key };
        self.notify();
        answer
            .await
            .map_err(|_| HandlerError::Failed { message: "no approver can be asked any more".to_owned(), cause: None })
    }
}

/// Removes a question when its answer is no longer awaited.
struct QueueGuard<'d> {
    queue: &'d ApprovalQueue,
    key: Key,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        let removed = self.queue.questions.lock().remove(&self.key);
        if removed.is_some() {
            self.queue.notify();
        }
    }
}

#[cfg(test)]
mod tests;
