//! The control surface of a running run: list its questions, vote on them, end it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::{
    ApprovalQueue, PendingQuestion, Vote, VoteOutcome, VoteRefusal, VoteRequest, Voter,
};
use sympozium_ipc::run_api::Decision;
use tokio::sync::watch;

use crate::state::read_bounded;
use sympozium_runs::EventLog;
use sympozium_runs::time::now_ms;
use sympozium_runs::{ApprovalMode, StopLevel};
use sympozium_runs::{Event, Question};

#[derive(Debug)]
pub struct RunHandle {
    pub events: EventLog,
    uid: String,
    approval_queue: ApprovalQueue,
    stop_level: watch::Sender<StopLevel>,
    approver: Voter,
    /// Questions that were emitted as asked, and not yet as answered.
    open_questions: Mutex<BTreeMap<String, Question>>,
}

impl RunHandle {
    pub fn new(uid: String, desk: ApprovalQueue, events: EventLog) -> Self {
        Self {
            events,
            uid,
            approval_queue: desk,
            stop_level: watch::Sender::new(StopLevel::None),
            approver: current_user(),
            open_questions: Mutex::default(),
        }
    }

    /// The pending questions.
    pub fn questions(&self) -> Vec<Question> {
        self.approval_queue.pending().iter().map(to_question).collect()
    }

    /// Votes on one exact action as this user, who is the author of the run. On an error the question stays pending.
    pub fn vote(
        &self,
        approval: &str,
        action: &Digest,
        vote: Vote,
        reason: Option<&str>,
    ) -> Result<VoteOutcome, VoteRefusal> {
        let counted = self.approval_queue.vote(&VoteRequest {
            run: &self.uid,
            approval,
            action,
            vote,
            by: &self.approver,
            reason,
        })?;
        if counted == VoteOutcome::Decided && self.open_questions.lock().remove(approval).is_some() {
            let decision = match vote {
                Vote::Deny => Decision::Denied,
                Vote::Approve | Vote::ApproveForRun => Decision::Approved,
            };
            self.events.emit(Event::Answered {
                approval: approval.to_owned(),
                decision: Some(decision),
                by: Some(self.approver.name.clone()),
            });
        }
        Ok(counted)
    }

    /// Asks the run to end. A request cannot be withdrawn or weakened.
    pub fn stop(&self, how: StopLevel) {
        self.stop_level.send_if_modified(|now| {
            let more = how > *now;
            if more {
                *now = how;
            }
            more
        });
    }

    /// Watches the requested level.
    pub fn watch_stop_level(&self) -> watch::Receiver<StopLevel> {
        self.stop_level.subscribe()
    }

    /// Emits events for new questions and for those that are no longer pending. Votes on new ones if `--approve` is
    /// `all` or `none`.
    fn update_questions(&self, approve: ApprovalMode) {
        let pending = self.questions();
        let mut new = Vec::new();
        {
            let mut open = self.open_questions.lock();
            let gone: Vec<_> =
                (open.keys()).filter(|name| !pending.iter().any(|it| it.approval == **name)).cloned().collect();
            for name in gone {
                let expired = open.remove(&name).is_some_and(|it| now_ms() >= it.deadline_ms);
                self.events.emit(Event::Answered {
                    approval: name,
                    decision: expired.then_some(Decision::Expired),
                    by: None,
                });
            }
            for question in pending {
                if open.insert(question.approval.clone(), question.clone()).is_none() {
                    self.events.emit(Event::Asked { question: question.clone() });
                    new.push(question);
                }
            }
        }
        let vote = match approve {
            ApprovalMode::Ask => return,
            ApprovalMode::All => Vote::Approve,
            ApprovalMode::None => Vote::Deny,
        };
        for question in new {
            let result = self.vote(&question.approval, &question.action, vote, None);
            let name = &question.approval;
            let text = match result {
                Ok(VoteOutcome::Decided) | Err(VoteRefusal::Unknown) => continue,
                Ok(VoteOutcome::Pending(1)) => format!("question {name} requires 1 more approval"),
                Ok(VoteOutcome::Pending(more)) => format!("question {name} requires {more} more approvals"),
                Err(error) => format!("question {name} is still pending: {error}"),
            };
            self.events.emit(Event::Warning { text });
        }
    }
}

/// Emits events for questions while it is polled.
pub async fn watch_questions(handle: Arc<RunHandle>, approve: ApprovalMode) {
    let mut changes = handle.approval_queue.changes();
    loop {
        handle.update_questions(approve);
        // The handle holds the queue, so this does not fail.
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn to_question(pending: &PendingQuestion) -> Question {
    let left = pending.deadline.saturating_duration_since(tokio::time::Instant::now());
    let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let request = &pending.request;
    Question {
        approval: request.approval.clone(),
        tool: request.tool.clone(),
        pack: request.pack.clone(),
        action: request.action.clone(),
        shown: request.shown.clone(),
        deadline_ms: now_ms().saturating_add(left),
        run_scope: pending.run.approval.run_scope,
    }
}

/// The approver here is the current user, who started the run.
fn current_user() -> Voter {
    let uid = rustix::process::getuid().as_raw();
    let name = user_name(uid).unwrap_or_else(|| format!("uid {uid}"));
    Voter { name, groups: Vec::new(), is_author: true }
}

/// The name of a user in `/etc/passwd`. The environment is not trusted for it.
fn user_name(uid: u32) -> Option<String> {
    const MOST_BYTES: u64 = 1 << 20;
    let text = read_bounded(Path::new("/etc/passwd"), MOST_BYTES).ok()?;
    let text = String::from_utf8(text).ok()?;
    let uid = uid.to_string();
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(uid.as_str()) && !name.is_empty()).then(|| name.to_owned())
    })
}
