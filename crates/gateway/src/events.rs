//! Events of the gateway: its decisions, the ends of connections, and what runs report. They are kept in a ring for
//! watchers.

mod reason;
mod ring;
mod run;

use serde::Serialize;
use sympozium_api::agent_run::AgentEndKind;
use sympozium_api::names::Digest;
use sympozium_ipc::receipt::Receipt;
use sympozium_ipc::run_api::{ApiRefusalCode, BridgePhase, Decision};

pub use reason::Reason;
pub use ring::{EventLog, MissedEvents, Watcher};

/// One decision, the end of an allowed connection, or a report or question of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Counts from 1, without gaps.
    pub sequence: u64,
    /// Unix time in milliseconds.
    pub at_milliseconds: u64,
    /// The number of the client connection. Events that belong together have the same number.
    pub connection: u64,
    /// Who sent the request. Absent if the client was not authenticated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub who: Option<Requester>,
    /// The target of the request. Absent if it could not be parsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<RequestTarget>,
    #[serde(flatten)]
    pub outcome: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requester {
    /// The run's UID.
    pub run: String,
    /// The name of the credential in the plan.
    pub credential: String,
    /// The part that has the credential, if the plan is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestTarget {
    /// `CONNECT` for a tunnel, else the method of a request. Without a path, which may contain secrets.
    pub method: String,
    /// The host as requested: a name or an address.
    pub host: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum EventKind {
    /// Connected.
    Allowed {
        /// The rule of the plan that allows it.
        rule: String,
        /// The checked address that was connected to.
        address: String,
    },
    /// Not connected.
    Refused {
        reason: Reason,
        /// Details for operators, never for the client.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// The end of an allowed connection or request.
    Ended {
        reason: Reason,
        /// Bytes from the client.
        bytes_sent: u64,
        /// Bytes to the client.
        bytes_received: u64,
        /// Since the decision.
        milliseconds: u64,
    },
    /// A run has entered another phase.
    Phase { phase: BridgePhase },
    /// A run has reported a receipt.
    Receipt {
        /// Receipts of one run are numbered without gaps.
        receipt: Box<Receipt>,
    },
    /// A run asks an approver.
    Asked {
        /// The ID of the question in the run.
        approval: String,
        tool: String,
        /// The pack whose sidecar would act.
        #[serde(skip_serializing_if = "Option::is_none")]
        pack: Option<String>,
        /// The hash of the exact action.
        action: Digest,
        /// The text for the approver.
        shown: String,
        /// Seconds after which the answer is no.
        wait_seconds: u64,
    },
    /// A question was answered.
    Answered {
        /// The ID of the question.
        approval: String,
        /// The hash of the exact action.
        action: Digest,
        decision: Decision,
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Whether the approval is for the identical action in the whole run.
        for_the_run: bool,
    },
    /// A run has reported how its agent ended. The store of reports has the answer.
    RunEnded {
        #[serde(serialize_with = "run::serialize_end")]
        ending: AgentEndKind,
    },
    /// A request of a run was refused.
    RequestRefused {
        /// The kind of request, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<&'static str>,
        code: ApiRefusalCode,
        /// Details, unless they repeat something that was sent.
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
}

impl Event {
    /// Writes the event to the log. It contains no secrets.
    pub(crate) fn log(&self) {
        let who = self.who.as_ref();
        let run = who.map(|who| who.run.as_str());
        let credential = who.map(|who| who.credential.as_str());
        let what = self.what.as_ref();
        let method = what.map(|what| what.method.as_str());
        let target = what.map(|what| format!("{}:{}", what.host, what.port));
        let (sequence, connection) = (self.sequence, self.connection);
        match &self.outcome {
            EventKind::Allowed { rule, address } => {
                tracing::info!(sequence, connection, run, credential, method, target, rule, address, "allowed")
            }
            EventKind::Refused { reason, detail } => tracing::warn!(
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
            EventKind::Ended { reason, bytes_sent, bytes_received, milliseconds } => tracing::info!(
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
            EventKind::Phase { phase } => {
                tracing::info!(sequence, connection, run, ?phase, "a run goes on");
            }
            // There are many, and they are stored elsewhere.
            EventKind::Receipt { receipt } => {
                tracing::debug!(sequence, connection, run, number = receipt.number, "a receipt")
            }
            EventKind::Asked { approval, tool, action, .. } => tracing::info!(
                sequence, connection, run, approval, tool, %action, "a person is asked"
            ),
            EventKind::Answered { approval, action, decision, by, .. } => tracing::info!(
                sequence, connection, run, approval, %action, ?decision, by, "there is an answer"
            ),
            EventKind::RunEnded { ending } => {
                tracing::info!(sequence, connection, run, ?ending, "a run ended");
            }
            EventKind::RequestRefused { request, code, detail } => {
                tracing::warn!(sequence, connection, run, request, ?code, detail, "a request of a run was refused")
            }
        }
    }
}
