//! Limits and timeouts of runs.

use std::time::Duration;

use sympozium_api::builtin_tool::COMMAND_SECONDS;
use sympozium_api::run_plan::{Deadlines, Gate, RunLimits, ToolLimits};

use crate::admit::Admitted;

/// Iterations of the agent's loop: a task that needs more makes no progress.
pub const ITERATIONS: u32 = 50;
/// Requests to the model: a few attempts for each iteration.
pub const MODEL_REQUESTS: u32 = 200;
/// Requests to the model per minute.
pub const MODEL_REQUESTS_PER_MINUTE: u32 = 60;
/// Bytes of one request to the model: it contains the whole conversation.
pub const MODEL_REQUEST_BYTES: u64 = 16 << 20;
/// Bytes of one answer of the model.
pub const MODEL_ANSWER_BYTES: u64 = 4 << 20;
/// Tool calls of a run.
pub const TOOL_CALLS: u32 = 500;
/// Concurrent tool calls.
pub const CONCURRENT_TOOL_CALLS: u32 = 8;
/// Bytes of the result of a run. It is stored in the run's status.
pub const RESULT_BYTES: u64 = 256 << 10;
/// Bytes of the transcript that is stored.
pub const TRANSCRIPT_BYTES: u64 = 16 << 20;
/// Seconds that waiting for approvals may add to a run: half a working day.
pub const WAITING_SECONDS: u64 = 4 * 60 * 60;
/// Seconds until the agent must have connected to the door.
pub const CONNECT_SECONDS: u64 = 60;
/// Seconds that a part has to exit after it is asked to.
pub const GRACE_SECONDS: u64 = 10;
/// Seconds for everything before the parts start: images, volumes, the check of the network.
pub const START_SECONDS: u64 = 5 * 60;

/// The limits and timeouts of every run of an installation.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Limits of a run.
    pub run: RunLimits,
    /// Seconds that waiting for approvals may add to a run that has a tool with gate `ask`.
    pub waiting_seconds: u64,
    /// Seconds until the agent must have connected to the door.
    pub connect_seconds: u64,
    /// Seconds that a part has to exit after it is asked to.
    pub grace_seconds: u64,
    /// Seconds for everything before the parts start: images, volumes, the check of the network.
    pub start_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            run: RunLimits {
                iterations: ITERATIONS,
                model_requests: MODEL_REQUESTS,
                model_requests_per_minute: MODEL_REQUESTS_PER_MINUTE,
                model_request_bytes: MODEL_REQUEST_BYTES,
                model_answer_bytes: MODEL_ANSWER_BYTES,
                model_tokens: None,
                tool_calls: TOOL_CALLS,
                concurrent_tool_calls: CONCURRENT_TOOL_CALLS,
                result_bytes: RESULT_BYTES,
                transcript_bytes: TRANSCRIPT_BYTES,
            },
            waiting_seconds: WAITING_SECONDS,
            connect_seconds: CONNECT_SECONDS,
            grace_seconds: GRACE_SECONDS,
            start_seconds: START_SECONDS,
        }
    }
}

/// Maximum seconds of a native tool.
pub const NATIVE_SECONDS: u32 = 30;
/// Bytes of each output stream of a command, as in the protocol of sidecars.
pub const COMMAND_OUTPUT: u32 = 51_200;
/// Bytes of the answer of a native tool. A page from the web is larger before it is converted to text.
pub const NATIVE_OUTPUT: u32 = 2 << 20;
/// Bytes of the arguments of a call.
pub const ARGUMENT_BYTES: u32 = 1 << 20;
/// Concurrent commands of one pack. The executor has as many workers.
pub const CONCURRENT_COMMANDS: u32 = 4;
/// Commands of one pack per minute.
pub const COMMANDS_PER_MINUTE: u32 = 120;
/// Concurrent calls of one native tool.
pub const CONCURRENT_NATIVE_CALLS: u32 = 8;
/// Calls of one native tool per minute.
pub const NATIVE_PER_MINUTE: u32 = 300;
/// Bytes of the arguments, and of the answer, of a tool with effects outside of the run.
pub const OUTBOUND_BYTES: u32 = 64 << 10;
/// Concurrent calls of such a tool.
pub const CONCURRENT_OUTBOUND_CALLS: u32 = 1;
/// Calls of such a tool per minute.
pub const OUTBOUND_PER_MINUTE: u32 = 10;

/// The limits of tools that run commands.
pub const COMMAND_LIMITS: ToolLimits = ToolLimits {
    timeout_seconds: COMMAND_SECONDS,
    argument_bytes: ARGUMENT_BYTES,
    output_bytes: COMMAND_OUTPUT,
    concurrent: CONCURRENT_COMMANDS,
    per_minute: COMMANDS_PER_MINUTE,
};

/// The limits of native tools.
pub const NATIVE_LIMITS: ToolLimits = ToolLimits {
    timeout_seconds: NATIVE_SECONDS,
    argument_bytes: ARGUMENT_BYTES,
    output_bytes: NATIVE_OUTPUT,
    concurrent: CONCURRENT_NATIVE_CALLS,
    per_minute: NATIVE_PER_MINUTE,
};

/// The limits of tools with effects outside of the run: messages, schedules, runs.
pub const OUTBOUND_LIMITS: ToolLimits = ToolLimits {
    timeout_seconds: NATIVE_SECONDS,
    argument_bytes: OUTBOUND_BYTES,
    output_bytes: OUTBOUND_BYTES,
    concurrent: CONCURRENT_OUTBOUND_CALLS,
    per_minute: OUTBOUND_PER_MINUTE,
};

/// The deadlines of a run.
pub fn deadlines(admitted: &Admitted<'_>, limits: &Limits) -> Deadlines {
    let spec = &admitted.run.spec;
    let written = spec.timeout.as_ref().and_then(|timeout| timeout.to_duration().ok());
    // Admission has filled it in and checked it.
    let run = written.map_or(0, round_up_seconds);
    let asks = admitted.tools.iter().any(|tool| tool.action == Gate::Ask);
    let waiting = if asks { limits.waiting_seconds } else { 0 };
    let hooks = spec.lifecycle.iter().flat_map(|lifecycle| &lifecycle.pre_run);
    let hooks: u64 = hooks.map(|hook| hook_seconds(hook.timeout.as_ref())).sum();
    let ceiling = [run, waiting, hooks, limits.start_seconds, limits.connect_seconds, limits.grace_seconds];
    Deadlines {
        run_seconds: run,
        approval_seconds: u64::from(admitted.policy.approval.expiry_or_default()),
        waiting_seconds: waiting,
        start_seconds: limits.start_seconds,
        connect_seconds: limits.connect_seconds,
        grace_seconds: limits.grace_seconds,
        ceiling_seconds: ceiling.iter().sum(),
    }
}

/// Seconds of a hook that sets no timeout.
pub const DEFAULT_HOOK_SECONDS: u64 = 5 * 60;

/// Timeout of a hook in seconds.
pub fn hook_seconds(timeout: Option<&sympozium_api::duration::DurationText>) -> u64 {
    let written = timeout.and_then(|timeout| timeout.to_duration().ok());
    written.map_or(DEFAULT_HOOK_SECONDS, round_up_seconds)
}

/// Rounds up, so that half a second does not become zero.
fn round_up_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
