//! How much a run may use, and how long everything may take.

use serde::{Deserialize, Serialize};

/// How much a run may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunLimits {
    /// Rounds of the agent's loop.
    pub iterations: u32,
    /// Requests to the model, tries included.
    pub model_requests: u32,
    /// Requests to the model in a minute.
    pub model_requests_per_minute: u32,
    /// Bytes of one request to the model.
    pub model_request_bytes: u64,
    /// Bytes of one answer of the model.
    pub model_answer_bytes: u64,
    /// Tokens that the model reads and writes; no such limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_tokens: Option<u64>,
    /// Calls of tools.
    pub tool_calls: u32,
    /// Calls of tools at a time.
    pub concurrent_tool_calls: u32,
    /// Bytes of the answer that the run gives.
    pub result_bytes: u64,
    /// Bytes of the transcript that is kept.
    pub transcript_bytes: u64,
}

/// How long everything may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// Seconds that the agent may work. Waiting for a person does not count.
    pub run_seconds: u64,
    /// Seconds that one request for approval waits. Then the answer is no.
    pub approval_seconds: u64,
    /// Seconds that all such waiting may add. Then every answer is no.
    pub waiting_seconds: u64,
    /// Seconds that a pod has for everything before its parts: images, volumes, the check of the network.
    pub start_seconds: u64,
    /// Seconds until the agent must be at the door.
    pub connect_seconds: u64,
    /// Seconds that a part has to end when it is told to.
    pub grace_seconds: u64,
    /// Seconds after which everything is ended, whoever keeps the clock.
    pub ceiling_seconds: u64,
}
