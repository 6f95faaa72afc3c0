//! Questions in memory, for a person who is there: in front of a terminal, or of a program that asks them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sympozium_api::names::Digest;
use sympozium_api::policy::{Approver, ApproverKind};
use sympozium_ipc::run_api::{ApprovalAnswer, ApprovalRequest, Decision};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::super::traits::{Decider, Question, Unable};
use crate::plans::RunFacts;

/// Questions of all runs that wait at a desk. Further ones are told that there is no room.
pub const MAX_AT_DESK: usize = 1000;

/// The questions that wait. Clones are the same desk.
#[derive(Debug, Clone)]
pub struct Desk {
    questions: Arc<Mutex<BTreeMap<Key, Waiting>>>,
    /// Counts what was put, answered and taken away.
    changes: watch::Sender<u64>,
}

/// The run, and the question's name in it.
type Key = (String, String);

#[derive(Debug)]
struct Waiting {
    pending: Pending,
    /// Who said yes so far, and whether all of them for the whole run.
    yes: BTreeSet<String>,
    for_the_run: bool,
    told: oneshot::Sender<ApprovalAnswer>,
}

/// A question that waits.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The run that asks.
    pub run: Arc<RunFacts>,
    /// What it asks.
    pub request: ApprovalRequest,
    /// When the answer becomes no.
    pub deadline: Instant,
}

/// Who decides. Whoever calls says who it is; the desk holds that against the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// The name.
    pub name: String,
    /// The groups that they are in.
    pub groups: Vec<String>,
    /// Whether they started the run.
    pub is_author: bool,
}

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// Yes, this once.
    Yes,
    /// Yes, to the identical action as often as the run repeats it.
    YesForTheRun,
    /// No.
    No,
}

/// A person's word about one exact action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict<'v> {
    /// The run's UID.
    pub run: &'v str,
    /// The question's name in it.
    pub approval: &'v str,
    /// The hash of what the person was shown.
    pub action: &'v Digest,
    /// What they say.
    pub says: Says,
    /// Who it is.
    pub by: &'v Person,
    /// Why, for the model to read.
    pub reason: Option<&'v str>,
}

/// What became of a person's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The question is answered.
    Decided,
    /// So many more must say yes.
    More(u32),
}

/// Why a person's word does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undecidable {
    /// Not there, or not any more.
    #[error("there is no such question, or it was answered, or its time is up")]
    Unknown,
    /// Another action than the one that is asked about.
    #[error("the question is about another action than the one that was decided about")]
    Action,
    /// Not among those who may.
    #[error("the policy of this run does not name this person as an approver")]
    Approver,
    /// Started it themselves.
    #[error("the policy of this run does not let its author approve what it does")]
    Author,
    /// Not for more than once.
    #[error("the policy of this run wants each action to be approved by itself")]
    ForTheRun,
    /// Said so before.
    #[error("this person has said yes already; another one must")]
    Twice,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new()
    }
}

impl Desk {
    /// With no question.
    pub fn new() -> Self {
        Self { questions: Arc::default(), changes: watch::Sender::new(0) }
    }

    /// What waits, by run and name.
    pub fn pending(&self) -> Vec<Pending> {
        let questions = self.lock();
        questions.values().map(|it| it.pending.clone()).collect()
    }

    /// Changes whenever [`Self::pending`] does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes a person's word. One no is enough; as many yes as the plan wants. A question is answered once.
    ///
    /// An answer that is given in the moment in which the question's time is up may be too late all the same: what the run
    /// was told is in the gateway's events.
    ///
    /// # Errors
    ///
    /// When it does not count. The question waits on then.
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
        // Nobody waits any more when the time was up this moment.
        waiting.told.send(answer).map_err(|_| Undecidable::Unknown)?;
        Ok(Counted::Decided)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Waiting>> {
        // A panic elsewhere leaves the map whole.
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Whether this person may say this.
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
            // Whoever may approve may refuse, and whoever started a run may refuse what it does.
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

/// Takes a question away that nobody waits for any more.
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
