//! The handlers of the run API: one trait each, with an implementation for one machine and one for clusters.
//!
//! They are called after everything that the gateway can check itself was checked.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use sympozium_api::names::Digest;
use sympozium_ipc::run_api::{
    ApiRefusal, ApiRefusalCode, ApprovalAnswer, ApprovalRequest, BridgePhase, MessageRequest, Report, ScheduleRequest,
    SubrunsAnswer, SubrunsRequest, TextAnswer,
};
use tokio::time::Instant;

use crate::plans::RunFacts;

/// Authenticates the tokens of runs.
pub trait TokenAuthenticator: Send + Sync + 'static {
    /// The UID of the run that this token belongs to. The duration must not depend on how much of a token is right.
    fn authenticate(&self, token: &str) -> impl Future<Output = Result<String, AuthenticateError>> + Send;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    /// The token is not valid. The reason is for the log.
    #[error("{0}")]
    Invalid(String),
    /// The token cannot be checked at the moment.
    #[error("{0}")]
    Unavailable(String),
}

/// Asks approvers.
pub trait QuestionHandler: Send + Sync + 'static {
    /// Asks a question and waits for the answer.
    ///
    /// Called once for each question: a bridge that asks again, because its connection was lost, gets the answer of the
    /// first call, which goes on meanwhile. After a restart of the gateway it may be called again for a question with
    /// the same ID. The future is dropped when the question expires and when the run ends. Then approvers must not be
    /// asked any more.
    ///
    /// The implementation must enforce the approval rule of the plan: who may approve, how many approvals are required,
    /// and whether the run's author may approve. The gateway checks that the answer is for this question, that it is in
    /// time, and that the plan permits an approval for the whole run.
    fn ask(&self, question: Question) -> impl Future<Output = Result<ApprovalAnswer, HandlerError>> + Send;
}

#[derive(Debug, Clone)]
pub struct Question {
    /// The run, with its approval rule.
    pub run: Arc<RunFacts>,
    pub request: ApprovalRequest,
    /// When the question expires.
    pub deadline: Instant,
}

/// Stores reports.
pub trait ReportStore: Send + Sync + 'static {
    /// The cursor of a run. Called before the first report of each run that this process serves: after a restart the
    /// chain continues where it was. Called again if a report does not follow from the known cursor, and after a
    /// conflict: another gateway may have accepted reports meanwhile.
    fn cursor(&self, run: &Arc<RunFacts>) -> impl Future<Output = Result<Option<ReportCursor>, HandlerError>> + Send;

    /// Stores a report that follows from all before. `cursor` is the cursor after it.
    ///
    /// Called once at a time for each run, and never cancelled: the gateway waits for it even if the request is gone,
    /// and accepts no other report of the run meanwhile, so it must return. If it fails, nothing of the report is
    /// stored, and the same report is sent again.
    fn store(
        &self,
        run: &Arc<RunFacts>,
        report: Report,
        cursor: &ReportCursor,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// How far the reports of a run got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportCursor {
    /// Number of accepted reports, which is the number of the next one.
    pub reports: u64,
    /// The digest of the last report.
    pub last: Option<Digest>,
    /// Number of receipts.
    pub receipts: u64,
    /// The hash that covers all receipts.
    pub head: Digest,
    pub phase: Option<BridgePhase>,
}

impl ReportCursor {
    /// The cursor before the first report.
    pub fn start(plan: Digest) -> Self {
        Self { reports: 0, last: None, receipts: 0, head: plan, phase: None }
    }

    /// Whether the run has reported its end.
    pub fn has_ended(&self) -> bool {
        self.phase == Some(BridgePhase::Ended)
    }
}

/// Schedules tasks, sends messages, and starts subruns.
pub trait Scheduler: Send + Sync + 'static {
    fn schedule(
        &self,
        run: &Arc<RunFacts>,
        request: ScheduleRequest,
    ) -> impl Future<Output = Result<TextAnswer, HandlerError>> + Send;

    fn message(
        &self,
        run: &Arc<RunFacts>,
        request: MessageRequest,
    ) -> impl Future<Output = Result<TextAnswer, HandlerError>> + Send;

    /// Starts subruns and waits for all of them. When the future is dropped, they must be ended.
    ///
    /// The gateway enforces the limits of this run's plan: levels, children, and concurrent children. The
    /// implementation must enforce the limits of the whole tree.
    fn subruns(
        &self,
        run: &Arc<RunFacts>,
        request: SubrunsRequest,
    ) -> impl Future<Output = Result<SubrunsAnswer, HandlerError>> + Send;
}

/// Why a handler failed: a message for the model, and a cause for the log.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// This backend cannot do it.
    #[error("{0}")]
    Unavailable(String),
    /// It is not allowed.
    #[error("{0}")]
    Denied(String),
    /// There is no room for it now.
    #[error("{0}")]
    Busy(String),
    /// Another gateway has accepted reports of the run meanwhile: the cursor is out of date.
    #[error("reports of this run are taken by several gateways at once")]
    Conflict,
    /// It failed, and a retry may help.
    #[error("{message}")]
    Failed {
        /// For the bridge.
        message: String,
        /// For the log only.
        #[source]
        cause: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl From<HandlerError> for ApiRefusal {
    fn from(unable: HandlerError) -> Self {
        if let Some(cause) = unable.source() {
            tracing::warn!(error = %unable, cause, "a request of a run failed");
        }
        let overtaken = unable.to_string();
        let (code, message) = match unable {
            HandlerError::Conflict => (ApiRefusalCode::Failed, overtaken),
            HandlerError::Unavailable(message) => (ApiRefusalCode::Unavailable, message),
            HandlerError::Denied(message) => (ApiRefusalCode::Denied, message),
            HandlerError::Busy(message) => (ApiRefusalCode::Busy, message),
            HandlerError::Failed { message, .. } => (ApiRefusalCode::Failed, message),
        };
        Self { code, message }
    }
}
