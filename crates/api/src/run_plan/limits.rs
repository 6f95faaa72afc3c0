//! Limits and deadlines of a run.

use serde::{Deserialize, Serialize};

/// Limits of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunLimits {
    /// Iterations of the agent's loop.
    pub iterations: u32,
    /// Requests to the model, retries included.
    pub model_requests: u32,
    /// Requests to the model per minute.
    pub model_requests_per_minute: u32,
    /// Bytes of one request to the model.
    pub model_request_bytes: u64,
    /// Bytes of one answer of the model.
    pub model_answer_bytes: u64,
    /// Tokens that the model reads and writes; unlimited when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_tokens: Option<u64>,
    /// Tool calls.
    pub tool_calls: u32,
    /// Concurrent tool calls.
    pub concurrent_tool_calls: u32,
    /// Bytes of the result of the run.
    pub result_bytes: u64,
    /// Bytes of the transcript that is stored.
    pub transcript_bytes: u64,
}

/// Deadlines of a run, as durations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// Seconds that the agent may work. Waiting for approvals does not count.
    pub run_seconds: u64,
    /// Seconds until a question expires. Then it is denied.
    pub approval_seconds: u64,
    /// Seconds that all waiting for approvals may add. Then every question is denied.
    pub waiting_seconds: u64,
    /// Seconds that a pod has for everything before its parts start: images, volumes, the check of the network.
    pub start_seconds: u64,
    /// Seconds until the agent must have connected to the door.
    pub connect_seconds: u64,
    /// Seconds that a part has to exit after it is asked to.
    pub grace_seconds: u64,
    /// Seconds after which everything is ended, independently of all other deadlines.
    pub ceiling_seconds: u64,
}
