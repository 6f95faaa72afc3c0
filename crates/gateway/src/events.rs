//! What the gateway decided, what became of it, and what runs report: one event each, kept in a ring, for whoever watches.

mod reason;
mod ring;
mod run;

use serde::Serialize;
use sympozium_api::names::Digest;
use sympozium_ipc::receipt::Receipt;
use sympozium_ipc::run_api::{ApiRefusalCode, Decision, Phase};

pub use reason::Reason;
pub use ring::{Events, Missed, Watcher};
pub use run::EndingKind;

/// One decision, the end of what was allowed, or something that a run reported or asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Counts from 1, without a gap.
    pub sequence: u64,
    /// When, in milliseconds of Unix time.
    pub at_milliseconds: u64,
    /// Which connection of a client: what belongs together has the same number.
    pub connection: u64,
    /// Who asked. Absent where nobody could show who they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Who>,
    /// What for. Absent where that could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<What>,
    /// What was decided.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Who asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Who {
    /// The run's UID.
    pub run: String,
    /// The credential's name in its plan.
    pub credential: String,
    /// The part that holds it, where the plan is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct What {
    /// `CONNECT` for a tunnel, else the method of a request. No path: it may hold secrets.
    pub method: String,
    /// The host as asked for: a name, or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Outcome {
    /// Connected.
    Allowed {
        /// What in the plan allows it.
        rule: String,
        /// The address that was checked and is connected to.
        address: String,
    },
    /// Not connected.
    Refused {
        /// Why.
        reason: Reason,
        /// More, where there is more to say: for operators, never for whoever asked.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// What was allowed is over.
    Ended {
        /// Why.
        reason: Reason,
        /// Bytes from the client.
        bytes_sent: u64,
        /// Bytes to the client.
        bytes_received: u64,
        /// From the decision on.
        milliseconds: u64,
    },
    /// A run does something else than before.
    Phase {
        /// What.
        phase: Phase,
    },
    /// A run has another receipt.
    Receipt {
        /// It, without a gap: those of one run are numbered.
        receipt: Box<Receipt>,
    },
    /// A run asks a person.
    Asked {
        /// The question's name in the run.
        approval: String,
        /// The tool.
        tool: String,
        /// The pack whose sidecar would act.
        #[serde(skip_serializing_if = "Option::is_none")]
        pack: Option<String>,
        /// The hash of the exact action.
        action: Digest,
        /// What the person is shown.
        shown: String,
        /// Seconds after which the answer is no.
        wait_seconds: u64,
    },
    /// There is an answer.
    Answered {
        /// To this question.
        approval: String,
        /// About this action.
        action: Digest,
        /// What was decided.
        decision: Decision,
        /// By whom.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Whether the yes is for the identical action as often as the run repeats it.
        for_the_run: bool,
    },
    /// A run reported how it ended.
    RunEnded {
        /// How.
        ending: EndingKind,
    },
    /// A request of a run was refused.
    RequestRefused {
        /// What for, where that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<&'static str>,
        /// Why.
        code: ApiRefusalCode,
        /// More, where it repeats nothing of what was sent.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
}

impl Event {
    /// Writes it to the log: nothing of it is secret.
    pub(crate) fn log(&self) {
        let who = self.who.as_ref();
        let run = who.map(|who| who.run.as_str());
        let credential = who.map(|who| who.credential.as_str());
        let what = self.what.as_ref();
        let method = what.map(|what| what.method.as_str());
        let target = what.map(|what| format!("{}:{}", what.host, what.port));
        let (sequence, connection) = (self.sequence, self.connection);
        match &self.outcome {
            Outcome::Allowed { rule, address } => {
                tracing::info!(sequence, connection, run, credential, method, target, rule, address, "allowed")
            }
            Outcome::Refused { reason, detail } => tracing::warn!(
                sequence,
                connection,
                run,
                credential,
                method,
                target,
                reason = reason.as_str(),
                detail,
                "refused"
            ),
            Outcome::Ended { reason, bytes_sent, bytes_received, milliseconds } => tracing::info!(
                sequence,
                connection,
                run,
                credential,
                method,
                target,
                reason = reason.as_str(),
                bytes_sent,
                bytes_received,
                milliseconds,
                "ended"
            ),
            Outcome::Phase { phase } => {
                tracing::info!(sequence, connection, run, ?phase, "a run goes on");
            }
            // There are many, and they are kept elsewhere.
            Outcome::Receipt { receipt } => {
                tracing::debug!(sequence, connection, run, number = receipt.number, "a receipt")
            }
            Outcome::Asked { approval, tool, action, .. } => tracing::info!(
                sequence, connection, run, approval, tool, %action, "a person is asked"
            ),
            Outcome::Answered { approval, action, decision, by, .. } => tracing::info!(
                sequence, connection, run, approval, %action, ?decision, by, "there is an answer"
            ),
            Outcome::RunEnded { ending } => {
                tracing::info!(sequence, connection, run, ?ending, "a run ended");
            }
            Outcome::RequestRefused { request, code, detail } => {
                tracing::warn!(sequence, connection, run, request, ?code, detail, "a request of a run was refused")
            }
        }
    }
}
