//! Who does what runs ask for: one trait each, with an implementation for one machine and one for clusters.
//!
//! All of them are asked after everything that the gateway can check itself was checked.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use sympozium_api::names::Digest;
use sympozium_ipc::run_api::{
    ApiRefusal, ApiRefusalCode, ApprovalAnswer, ApprovalRequest, MessageRequest, Phase, Report, ScheduleRequest,
    SubrunsAnswer, SubrunsRequest, Told,
};
use tokio::time::Instant;

use crate::plans::RunFacts;

/// Says whose a token is.
pub trait Identify: Send + Sync + 'static {
    /// The UID of the run that this token belongs to, and nothing when it is no token or no longer one. How long it takes
    /// must not depend on how much of a token was right.
    fn identify(&self, token: &str) -> impl Future<Output = Result<String, Unidentified>> + Send;
}

/// Why nobody could say whose a token is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unidentified {
    /// It is nobody's. What was wrong is for the log.
    #[error("{0}")]
    Nobody(String),
    /// Whoever would know cannot be asked now.
    #[error("{0}")]
    Later(String),
}

/// Finds a person who decides.
pub trait Decider: Send + Sync + 'static {
    /// Puts a question to people, and waits for the answer.
    ///
    /// It is called once for each question: whoever asks again, because the connection was lost, gets the answer of the
    /// first call, which goes on meanwhile. After a restart of the gateway it may be called again for a question of the same
    /// name. The future is dropped when the question's time is up and when the run is over; nobody is to be asked any more
    /// then.
    ///
    /// That the plan's rule about approvers is kept (who, how many, and whether the run's author is among them) is this
    /// implementation's. The gateway checks that the answer is about this question, that it came in time, and that a yes for
    /// the whole run is one that the plan permits.
    fn decide(&self, question: Question) -> impl Future<Output = Result<ApprovalAnswer, Unable>> + Send;
}

/// What a person is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// The run that asks, with the rule about approvers.
    pub run: Arc<RunFacts>,
    /// What it asks.
    pub request: ApprovalRequest,
    /// When the answer becomes no.
    pub deadline: Instant,
}

/// Keeps what runs report.
pub trait Reporter: Send + Sync + 'static {
    /// What is kept of a run already. Asked before the first report of each run that this process serves: after a restart
    /// the chain goes on where it was. Asked again when a report does not follow from what is known, and after
    /// [`Unable::Overtaken`]: another gateway may have taken reports meanwhile.
    fn kept(&self, run: &Arc<RunFacts>) -> impl Future<Output = Result<Option<Kept>, Unable>> + Send;

    /// Takes a report that follows from all before. `kept` is what is kept once it was taken.
    ///
    /// One at a time for each run, and never cut: the gateway waits for it even when nobody else does any more, and takes no
    /// other report of the run meanwhile, so it must come to an end. When it fails nothing of the report is kept, and the
    /// same report comes again.
    fn take(&self, run: &Arc<RunFacts>, report: Report, kept: &Kept)
    -> impl Future<Output = Result<(), Unable>> + Send;
}

/// How far the reports of a run have come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// How many reports were taken: the number of the next.
    pub reports: u64,
    /// The digest of the last.
    pub last: Option<Digest>,
    /// How many receipts there are.
    pub receipts: u64,
    /// The hash that covers them all.
    pub head: Digest,
    /// What the run was doing.
    pub phase: Option<Phase>,
}

impl Kept {
    /// Of a run that has reported nothing.
    pub fn nothing(plan: Digest) -> Self {
        Self { reports: 0, last: None, receipts: 0, head: plan, phase: None }
    }

    /// Whether there will be no more.
    pub fn has_ended(&self) -> bool {
        self.phase == Some(Phase::Ended)
    }
}

/// Does what is to be done later or elsewhere.
pub trait Scheduler: Send + Sync + 'static {
    /// A task for later.
    fn schedule(
        &self,
        run: &Arc<RunFacts>,
        request: ScheduleRequest,
    ) -> impl Future<Output = Result<Told, Unable>> + Send;

    /// A message to people.
    fn message(
        &self,
        run: &Arc<RunFacts>,
        request: MessageRequest,
    ) -> impl Future<Output = Result<Told, Unable>> + Send;

    /// Starts runs below this one and waits for all of them. When the future is dropped nobody waits any more, and they
    /// are to be ended.
    ///
    /// The gateway holds this run to its plan: levels, children, and how many of its own at a time. How many there are in
    /// the whole tree is this implementation's to know.
    fn subruns(
        &self,
        run: &Arc<RunFacts>,
        request: SubrunsRequest,
    ) -> impl Future<Output = Result<SubrunsAnswer, Unable>> + Send;
}

/// Why something was not done: a sentence for the model, and the cause for the log.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// Nobody here does that.
    #[error("{0}")]
    Unavailable(String),
    /// It may not be.
    #[error("{0}")]
    Denied(String),
    /// There is no room for it now.
    #[error("{0}")]
    Busy(String),
    /// Somebody else has taken reports of the run meanwhile: what was thought to be kept is not what is kept.
    #[error("reports of this run are taken by several gateways at once")]
    Overtaken,
    /// It went wrong, and trying again may help.
    #[error("{message}")]
    Failed {
        /// For whoever asked.
        message: String,
        /// For the log only.
        #[source]
        cause: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl From<Unable> for ApiRefusal {
    fn from(unable: Unable) -> Self {
        if let Some(cause) = unable.source() {
            tracing::warn!(error = %unable, cause, "a request of a run failed");
        }
        let overtaken = unable.to_string();
        let (code, message) = match unable {
            Unable::Overtaken => (ApiRefusalCode::Failed, overtaken),
            Unable::Unavailable(message) => (ApiRefusalCode::Unavailable, message),
            Unable::Denied(message) => (ApiRefusalCode::Denied, message),
            Unable::Busy(message) => (ApiRefusalCode::Busy, message),
            Unable::Failed { message, .. } => (ApiRefusalCode::Failed, message),
        };
        Self { code, message }
    }
}
