//! Questions to approvers: one `ToolApproval` each. Approvers vote in its status.
//!
//! An answer refers to the object that was created for the question, by its UID: an object that was deleted and created
//! again is another one. Objects are never deleted or changed here. They have an expiry, their run owns them, and an
//! object that no question waits for has no effect.

mod pending;
mod rule;

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use sympozium_api::labels::field_manager::GATEWAY;
use sympozium_api::names::SkillPackName;
use sympozium_api::{ToolApproval, ToolApprovalSpec};
use sympozium_ipc::run_api::{ApprovalAnswer, ApprovalRequest, Decision};
use sympozium_program::error_chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use self::pending::{Key, PendingQuestions};
use self::rule::VoteResult;
use super::objects::{approval_name, object_meta, run_reference};
use super::runs::{RunCache, now};
use super::{PAGE_SIZE, REQUEST_TIMEOUT};
use crate::metrics::Metrics;
use crate::run_api::{HandlerError, Question, QuestionHandler};

/// Stores questions as objects. Clones share their state.
#[derive(Clone)]
pub struct Approvals {
    client: Client,
    runs: Arc<RunCache>,
    metrics: Arc<Metrics>,
    pending: Arc<Mutex<PendingQuestions>>,
    ready: watch::Sender<bool>,
}

/// The last observed state of a question's object.
#[derive(Debug, Clone, Default)]
enum ObservedApproval {
    #[default]
    NotSeen,
    Present(Arc<ToolApproval>),
    /// Deleted, with the UID that it had.
    Deleted(Option<String>),
}

impl Approvals {
    pub fn new(client: Client, runs: Arc<RunCache>, metrics: Arc<Metrics>) -> Self {
        Self { client, runs, metrics, pending: Arc::default(), ready: watch::Sender::new(false) }
    }

    /// Whether all ToolApprovals have been listed once.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Runs the watch until it is dropped.
    pub async fn watch(self) {
        let api: Api<ToolApproval> = Api::all(self.client.clone());
        let events = watcher(api, watcher::Config::default().page_size(PAGE_SIZE)).default_backoff();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    self.observe(object);
                }
                Ok(watcher::Event::Delete(object)) => {
                    let sender = self.pending.lock().sender(&object_key(&object));
                    if let Some(sender) = sender {
                        sender.send_replace(ObservedApproval::Deleted(object.uid()));
                    }
                }
                Ok(watcher::Event::Init) => {}
                Ok(watcher::Event::InitDone) => {
                    self.ready.send_replace(true);
                }
                Err(error) => {
                    tracing::warn!(
                        error = error_chain(&error),
                        "the watch of ToolApprovals was cut; it is taken up again"
                    )
                }
            }
        }
    }

    /// Passes an object to the question that waits for it. Objects of other questions are dropped.
    fn observe(&self, object: ToolApproval) {
        let sender = self.pending.lock().sender(&object_key(&object));
        let Some(sender) = sender else { return };
        sender.send_if_modified(|seen| {
            // The response to our own request may be read after a later version from the watch.
            let is_older = |before: &ToolApproval| {
                before.uid() == object.uid() && resource_version(before) > resource_version(&object)
            };
            if matches!(seen, ObservedApproval::Present(before) if is_older(before)) {
                return false;
            }
            *seen = ObservedApproval::Present(Arc::new(object));
            true
        });
    }

    /// Creates the object of a question, or finds it: the same question of the same run, asked before a restart or
    /// through another gateway.
    async fn create_or_get(&self, question: &Question, name: &str) -> Result<ToolApproval, HandlerError> {
        let run = &question.run.run;
        let left = question.deadline.saturating_duration_since(Instant::now());
        let spec = approval_spec(question, left);
        let mut object = ToolApproval::new(name, spec);
        object.metadata = object_meta(run, name.to_owned());
        let api: Api<ToolApproval> = Api::namespaced(self.client.clone(), run.namespace.as_str());
        let parameters = PostParams { field_manager: Some(GATEWAY.to_owned()), ..PostParams::default() };
        match timeout(REQUEST_TIMEOUT, api.create(&parameters, &object)).await {
            Ok(Ok(created)) => return Ok(created),
            Ok(Err(kube::Error::Api(status))) if status.is_already_exists() => {}
            Ok(Err(error)) => return Err(create_error(error_chain(&error))),
            Err(_) => return Err(create_error("the API server did not answer in time".to_owned())),
        }
        let found = match timeout(REQUEST_TIMEOUT, api.get(name)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(create_error(error_chain(&error))),
            Err(_) => return Err(create_error("the API server did not answer in time".to_owned())),
        };
        if !asks_same(&found.spec, &object.spec) {
            tracing::error!(
                run = question.run.uid(),
                approval = name,
                "a ToolApproval of that name is there, and asks something else"
            );
            let message = "another question has the name of this one";
            return Err(HandlerError::Denied(message.to_owned()));
        }
        Ok(found)
    }

    /// Waits until the votes on this object decide.
    async fn wait_for_decision(
        &self,
        question: &Question,
        object: &ToolApproval,
        seen: &mut watch::Receiver<ObservedApproval>,
    ) -> ApprovalAnswer {
        let request = &question.request;
        let rule = &question.run.approval;
        let uid = object.uid();
        loop {
            // A timer may fire late, so the current state may have come after the deadline.
            if time_until(&object.spec.expires_at).is_zero() {
                return expired_answer(request);
            }
            let current = seen.borrow_and_update().clone();
            let replaced = "the request for approval was deleted, or replaced by another";
            match current {
                ObservedApproval::NotSeen => {}
                ObservedApproval::Deleted(gone) if gone == uid => return denied_answer(request, None, replaced),
                // Of an earlier object of the same name.
                ObservedApproval::Deleted(_) => {}
                ObservedApproval::Present(now) if now.uid() != uid || !asks_same(&now.spec, &object.spec) => {
                    return denied_answer(request, None, replaced);
                }
                ObservedApproval::Present(now) => {
                    let author = self.runs.author(question.run.uid());
                    let status = now.status.clone().unwrap_or_default();
                    match rule::evaluate(rule, author.as_deref(), &status) {
                        VoteResult::Open => {}
                        VoteResult::Approved { by, for_the_run, reason } => {
                            return ApprovalAnswer {
                                decision: Decision::Approved,
                                by: Some(by.join(", ")),
                                reason,
                                for_the_run,
                                ..expired_answer(request)
                            };
                        }
                        VoteResult::No { by, reason } => {
                            return ApprovalAnswer {
                                decision: Decision::Denied,
                                by,
                                reason,
                                ..expired_answer(request)
                            };
                        }
                    }
                }
            }
            if seen.changed().await.is_err() {
                return denied_answer(request, None, "no approver can be asked any more");
            }
        }
    }
}

impl QuestionHandler for Approvals {
    async fn ask(&self, question: Question) -> Result<ApprovalAnswer, HandlerError> {
        let author = self.runs.author(question.run.uid());
        if !rule::is_decidable(&question.run.approval, author.as_deref()) {
            tracing::warn!(
                run = question.run.uid(),
                "no approver is asked: the run's author may not approve, and was not recorded"
            );
            let reason = "the policy of this run does not let its author approve, and who started it was not recorded";
            return Ok(denied_answer(&question.request, None, reason));
        }
        let run = &question.run.run;
        let name = approval_name(run, &question.request.approval);
        let key = (run.namespace.as_str().to_owned(), name.clone());
        // Before the object exists, so that no vote is missed.
        let mut seen = (self.pending.lock().add(&key, question.run.uid())).map_err(HandlerError::Busy)?;
        self.metrics.add_pending_questions(1);
        let _waits = PendingGuard { approvals: self, key };
        let object = self.create_or_get(&question, &name).await?;
        self.observe(object.clone());
        let left = time_until(&object.spec.expires_at);
        tokio::select! {
            // A vote after the deadline does not count.
            biased;
            () = sleep(left) => Ok(expired_answer(&question.request)),
            answer = self.wait_for_decision(&question, &object, &mut seen) => Ok(answer),
        }
    }
}

/// Removes a question when its answer is no longer awaited.
struct PendingGuard<'a> {
    approvals: &'a Approvals,
    key: Key,
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        self.approvals.pending.lock().remove(&self.key);
        self.approvals.metrics.add_pending_questions(-1);
    }
}

fn approval_spec(question: &Question, left: Duration) -> ToolApprovalSpec {
    let request = &question.request;
    let requested_at = now();
    // Times are stored in whole seconds, and the second must be later than the first.
    let left = left.as_secs_f64().ceil().max(1.0);
    let left = SignedDuration::try_from_secs_f64(left).unwrap_or(SignedDuration::from_secs(1));
    let expires_at = requested_at.0.checked_add(left).unwrap_or(Timestamp::MAX);
    ToolApprovalSpec {
        run: run_reference(&question.run.run),
        tool: request.tool.clone(),
        pack: request.pack.as_deref().map(SkillPackName::from),
        action_hash: request.action.clone(),
        summary: request.shown.clone(),
        requested_at,
        expires_at: Time(expires_at),
    }
}

/// Whether two objects ask the same, apart from their times.
fn asks_same(one: &ToolApprovalSpec, other: &ToolApprovalSpec) -> bool {
    let at_once = ToolApprovalSpec {
        requested_at: other.requested_at.clone(),
        expires_at: other.expires_at.clone(),
        ..one.clone()
    };
    at_once == *other
}

fn time_until(time: &Time) -> Duration {
    let left = time.0.as_millisecond() - Timestamp::now().as_millisecond();
    Duration::from_millis(u64::try_from(left).unwrap_or(0))
}

/// The answer if there was none in time.
fn expired_answer(request: &ApprovalRequest) -> ApprovalAnswer {
    ApprovalAnswer {
        approval: request.approval.clone(),
        action: request.action.clone(),
        decision: Decision::Expired,
        by: None,
        reason: None,
        for_the_run: false,
    }
}

fn denied_answer(request: &ApprovalRequest, by: Option<String>, reason: &str) -> ApprovalAnswer {
    ApprovalAnswer { decision: Decision::Denied, by, reason: Some(reason.to_owned()), ..expired_answer(request) }
}

fn create_error(cause: String) -> HandlerError {
    HandlerError::Failed {
        message: "the question could not be put to an approver".to_owned(),
        cause: Some(cause.into()),
    }
}

fn object_key(object: &ToolApproval) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Resource versions of one kind are increasing numbers (KEP-5504).
fn resource_version(object: &ToolApproval) -> u64 {
    let version = object.metadata.resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}
