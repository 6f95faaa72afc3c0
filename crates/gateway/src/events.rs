//! What the gateway decided, and what became of it: one event each, kept in a ring, for whoever watches.

mod reason;
mod ring;

use serde::Serialize;

pub use reason::Reason;
pub use ring::{Events, Missed, Watcher};

/// One decision, or the end of what was allowed.
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
#[serde(
    tag = "outcome",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
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
            Outcome::Allowed { rule, address } => tracing::info!(
                sequence, connection, run, credential, method, target, rule, address, "allowed"
            ),
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
            Outcome::Ended {
                reason,
                bytes_sent,
                bytes_received,
                milliseconds,
            } => tracing::info!(
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
        }
    }
}
