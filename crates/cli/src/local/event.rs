//! What happens in a run, as it happens: for the terminal, for `-o jsonl`, and for whoever follows from elsewhere.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sympozium_api::names::Digest;
use sympozium_exec::IsolationReport;
use sympozium_ipc::receipt::Receipt;
use sympozium_ipc::run_api::{Decision, Phase, Usage};

use super::record::Outcome;
use crate::origin::ResolvedFrom;

/// An event with its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timed {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened. Programs read this: a field may be added, none changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "event")]
pub enum Event {
    /// The run is admitted and planned; nothing of it has started.
    Planned {
        /// Its name.
        run: String,
        /// Its UID.
        uid: String,
        /// The agent.
        agent: String,
        /// The model, as `provider/model`.
        model: String,
        /// The packs.
        skills: Vec<String>,
        /// Where its policies and packs came from.
        #[serde(default)]
        origins: Vec<ResolvedFrom>,
        /// The plan's digest.
        plan: Digest,
        /// Where everything of the run is kept; none where that is a cluster.
        #[serde(default)]
        directory: Option<PathBuf>,
        /// The workspace, on this machine.
        workspace: Option<PathBuf>,
    },
    /// What the start of the run waits for. In a cluster, where that can take a while.
    Starting {
        /// What, in words.
        text: String,
    },
    /// The sandbox of a part is there.
    Isolated {
        /// The part.
        part: String,
        /// What holds it.
        report: Box<IsolationReport>,
    },
    /// The run goes on to its next phase.
    Phase {
        /// Which.
        phase: Phase,
    },
    /// What the agent says it is doing.
    Progress {
        /// In its words: text of a model, not to be trusted.
        text: String,
    },
    /// A decision or an action, as the bridge recorded it.
    Receipt {
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// A line of the transcript, by the agent.
    Transcript {
        /// The line: a JSON value. Text of a model and of tools, not to be trusted.
        line: Value,
    },
    /// What was used so far.
    Usage {
        /// How much.
        usage: Usage,
    },
    /// A person is asked.
    Asked {
        /// What.
        question: Question,
    },
    /// A question is answered, or nobody waits for an answer any more (then without a decision).
    Answered {
        /// The question's name in the run.
        approval: String,
        /// What was decided.
        decision: Option<Decision>,
        /// By whom.
        by: Option<String>,
    },
    /// Something that a person should know, such as an isolation that is weaker than usual.
    Warning {
        /// What.
        text: String,
    },
    /// The run is over and nothing of it is left but its records.
    Ended {
        /// What came of it.
        outcome: Outcome,
        /// What was used in all.
        usage: Usage,
        /// What of the run is still there although it should not be. Empty but for a defect.
        leftovers: Vec<String>,
    },
}

/// What a person is asked. They are shown `shown`, and decide about the hash `action`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The question's name in the run.
    pub approval: String,
    /// The tool.
    pub tool: String,
    /// The pack whose sidecar would act.
    pub pack: Option<String>,
    /// The hash of the exact action.
    pub action: Digest,
    /// The action for a person to read: only what can be printed, each line of ours told from what the model wrote.
    pub shown: String,
    /// When the answer becomes no, in milliseconds since 1970.
    pub deadline_ms: u64,
    /// Whether a yes may be for the identical action as often as the run repeats it.
    pub run_scope: bool,
}
