//! The events of a run: for the terminal, for `-o jsonl`, and for followers in other processes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sympozium_api::names::Digest;
use sympozium_api::origin::ObjectOrigin;
use sympozium_exec::IsolationReport;
use sympozium_ipc::receipt::Receipt;
use sympozium_ipc::run_api::{BridgePhase, Decision, Usage};

use crate::RunEnd;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimedEvent {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    #[serde(flatten)]
    pub event: Event,
}

/// One entry of a run's stream. Programs read this: fields may be added; none changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "event")]
pub enum Event {
    /// The run is admitted and planned; nothing has started.
    Planned {
        run: String,
        uid: String,
        agent: String,
        /// The model, as `provider/model`.
        model: String,
        skills: Vec<String>,
        /// The origins of its policies and packs.
        #[serde(default)]
        origins: Vec<ObjectOrigin>,
        plan: Digest,
        /// The directory of the run; `None` for a run in a cluster.
        #[serde(default)]
        directory: Option<PathBuf>,
        /// The directory on this machine.
        workspace: Option<PathBuf>,
    },
    /// What the start waits for. Only in a cluster, where that can take a while.
    Starting { text: String },
    /// The sandbox of a part is built.
    Isolated { part: String, report: Box<IsolationReport> },
    /// The run has entered another phase.
    Phase { phase: BridgePhase },
    /// What the agent reports to be doing.
    Progress {
        /// Text of a model: untrusted.
        text: String,
    },
    /// A decision or an action, as the bridge recorded it.
    Receipt { receipt: Box<Receipt> },
    /// A line of the transcript, written by the agent.
    Transcript {
        /// A JSON value with text of a model and of tools: untrusted.
        line: Value,
    },
    /// What was used so far.
    Usage { usage: Usage },
    /// A question needs approval.
    Asked { question: Question },
    /// A question is decided or expired, or (without a decision) withdrawn.
    Answered {
        /// The question's name in the run.
        approval: String,
        decision: Option<Decision>,
        /// The approver.
        by: Option<String>,
    },
    /// Something that the user should know, such as isolation that is weaker than usual.
    Warning { text: String },
    /// The run has ended, and everything of it but its records is torn down.
    Ended {
        outcome: RunEnd,
        /// The total usage.
        usage: Usage,
        /// What verification still found of the run. Empty, except for a defect.
        leftovers: Vec<String>,
    },
}

/// A question. The approver is shown `shown`, and votes on the hash `action`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The question's name in the run.
    pub approval: String,
    pub tool: String,
    /// The pack whose sidecar would act.
    pub pack: Option<String>,
    /// The hash of the exact action.
    pub action: Digest,
    /// The action for the approver: printable only, with our lines distinguishable from what the model wrote.
    pub shown: String,
    /// When the question expires, which means no, in milliseconds since 1970.
    pub deadline_ms: u64,
    /// Whether an approval may cover every repetition of the identical action in this run.
    pub run_scope: bool,
}
