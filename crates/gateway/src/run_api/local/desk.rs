//! A queue of questions in memory, for an approver at a terminal or behind another program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sympozium_api::names::Digest;
use sympozium_api::policy::{Approver, ApproverKind};
use sympozium_ipc::run_api::{ApprovalAnswer, ApprovalRequest, Decision};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::super::traits::{Decider, Question, Unable};
use crate::plans::RunFacts;

/// Maximum number of pending questions of all runs. Further ones are refused.
pub const MAX_AT_DESK: usize = 1000;

/// The pending questions. Clones share the queue.
#[derive(Debug, Clone)]
pub struct Desk {
    questions: Arc<Mutex<BTreeMap<Key, Waiting>>>,
    /// Counts changes of the queue.
    changes: watch::Sender<u64>,
}

/// The run, and the ID of the question in it.
type Key = (String, String);

#[derive(Debug)]
struct Waiting {
    pending: Pending,
    /// Who has approved so far, and whether all of them for the whole run.
    yes: BTreeSet<String>,
    for_the_run: bool,
    told: oneshot::Sender<ApprovalAnswer>,
}

#[derive(Debug, Clone)]
pub struct Pending {
    pub run: Arc<RunFacts>,
    pub request: ApprovalRequest,
    /// When the question expires.
    pub deadline: Instant,
}

/// A person who votes. The caller authenticates them; the queue checks them against the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    pub name: String,
    pub groups: Vec<String>,
    /// Whether they started the run.
    pub is_author: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// Approve, this once.
    Yes,
    /// Approve the identical action for the whole run.
    YesForTheRun,
    No,
}

/// A vote about one exact action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict<'v> {
    /// The run's UID.
    pub run: &'v str,
    /// The ID of the question in the run.
    pub approval: &'v str,
    /// The hash of the action that the person was shown.
    pub action: &'v Digest,
    pub says: Says,
    pub by: &'v Person,
    /// The reason, for the model.
    pub reason: Option<&'v str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The question is answered.
    Decided,
    /// This many more approvals are needed.
    More(u32),
}

/// Why a vote does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undecidable {
    #[error("there is no such question, or it was answered, or its time is up")]
    Unknown,
    #[error("the question is about another action than the one that was decided about")]
    Action,
    #[error("the policy of this run does not name this person as an approver")]
    Approver,
    #[error("the policy of this run does not let its author approve what it does")]
    Author,
    #[error("the policy of this run wants each action to be approved by itself")]
    ForTheRun,
    #[error("this person has said yes already; another one must")]
    Twice,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new()
    }
}

impl Desk {
    pub fn new() -> Self {
        Self { questions: Arc::default(), changes: watch::Sender::new(0) }
    }

    /// The pending questions, by run and ID.
    pub fn pending(&self) -> Vec<Pending> {
        let questions = self.lock();
        questions.values().map(|it| it.pending.clone()).collect()
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
    pub fn decide(&self, verdict: &Verdict<'_>) -> Result<Counted, Undecidable> {
        let key = (verdict.run.to_owned(), verdict.approval.to_owned());
        let mut questions = self.lock();
        let waiting = questions.get_mut(&key).ok_or(Undecidable::Unknown)?;
        if Instant::now() >= waiting.pending.deadline || waiting.told.is_closed() {
            return Err(Undecidable::Unknown);
        }
        if waiting.pending.request.action != *verdict.action {
            return Err(Undecidable::Action);
        }
        waiting.check(verdict)?;
        if verdict.says != Says::No {
            if !waiting.yes.insert(verdict.by.name.clone()) {
                return Err(Undecidable::Twice);
            }
            waiting.for_the_run &= verdict.says == Says::YesForTheRun;
            let wanted = waiting.pending.run.approval.required;
            let more = wanted.saturating_sub(u32::try_from(waiting.yes.len()).unwrap_or(u32::MAX));
            if more > 0 {
                return Ok(Counted::More(more));
            }
        }
        let Some(waiting) = questions.remove(&key) else {
            unreachable!("it was found under this lock");
        };
        drop(questions);
        self.changed();
        let answer = waiting.pending.answer(verdict, &waiting.yes, waiting.for_the_run);
        // The question has expired in this moment.
        waiting.told.send(answer).map_err(|_| Undecidable::Unknown)?;
        Ok(Counted::Decided)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Waiting>> {
        // A panic in another thread leaves the map consistent.
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Checks whether this person may vote like this.
    fn check(&self, verdict: &Verdict<'_>) -> Result<(), Undecidable> {
        let rule = &self.pending.run.approval;
        let is_named = |approver: &Approver| match approver.kind {
            ApproverKind::User => approver.name == verdict.by.name,
            ApproverKind::Group => verdict.by.groups.contains(&approver.name),
        };
        let named = rule.approvers.as_ref();
        if !named.is_none_or(|named| named.iter().any(is_named)) {
            return Err(Undecidable::Approver);
        }
        match verdict.says {
            // Every approver may deny, and so may the author of a run.
            Says::No => Ok(()),
            Says::Yes | Says::YesForTheRun if verdict.by.is_author && !rule.run_author => Err(Undecidable::Author),
            Says::YesForTheRun if !rule.run_scope => Err(Undecidable::ForTheRun),
            Says::Yes | Says::YesForTheRun => Ok(()),
        }
    }
}

impl Pending {
    fn answer(self, verdict: &Verdict<'_>, yes: &BTreeSet<String>, for_the_run: bool) -> ApprovalAnswer {
        let (decision, by) = match verdict.says {
            Says::No => (Decision::Denied, verdict.by.name.clone()),
            Says::Yes | Says::YesForTheRun => {
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

impl Decider for Desk {
    async fn decide(&self, question: Question) -> Result<ApprovalAnswer, Unable> {
        let key = (question.run.uid().to_owned(), question.request.approval.clone());
        let (told, answer) = oneshot::channel();
        {
            let mut questions = self.lock();
            if questions.len() >= MAX_AT_DESK {
                let message = format!("{MAX_AT_DESK} questions wait for a person already");
                return Err(Unable::Busy(message));
            }
            if questions.contains_key(&key) {
                return Err(Unable::Busy("this question waits already".to_owned()));
            }
            let waiting = Waiting {
                pending: Pending { run: question.run, request: question.request, deadline: question.deadline },
                yes: BTreeSet::new(),
                for_the_run: true,
                told,
            };
            questions.insert(key.clone(), waiting);
        }
        let _on_desk = OnDesk { desk: self, key };
        self.changed();
        answer.await.map_err(|_| Unable::Failed { message: "nobody can be asked any more".to_owned(), cause: None })
    }
}

/// Removes a question when its answer is no longer awaited.
struct OnDesk<'d> {
    desk: &'d Desk,
    key: Key,
}

impl Drop for OnDesk<'_> {
    fn drop(&mut self) {
        let removed = self.desk.lock().remove(&self.key);
        if removed.is_some() {
            self.desk.changed();
        }
    }
}

#[cfg(test)]
mod tests;
