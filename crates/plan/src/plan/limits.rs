//! How much a run may use, and how long everything may take.

use std::time::Duration;

use sympozium_api::run_plan::{Deadlines, RunLimits, ToolLimits};

use crate::admit::Admitted;
use crate::policy::tools::Action;

/// What an installation gives every run.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// How much a run may use.
    pub run: RunLimits,
    /// Seconds that waiting for people may add to a run of which a tool asks.
    pub waiting_seconds: u64,
    /// Seconds until the agent must be at the door.
    pub connect_seconds: u64,
    /// Seconds that a part has to end when it is told to.
    pub grace_seconds: u64,
    /// Seconds for everything besides: images, volumes, the check of the network.
    pub start_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            run: RunLimits {
                iterations: 50,
                model_requests: 200,
                model_requests_per_minute: 60,
                model_request_bytes: 16 << 20,
                model_answer_bytes: 4 << 20,
                model_tokens: None,
                tool_calls: 500,
                concurrent_tool_calls: 8,
                result_bytes: 256 << 10,
                transcript_bytes: 16 << 20,
            },
            waiting_seconds: 4 * 60 * 60,
            connect_seconds: 60,
            grace_seconds: 10,
            start_seconds: 5 * 60,
        }
    }
}

/// Most seconds of a command, as the protocol of sidecars has it.
const COMMAND_SECONDS: u32 = 120;
/// Most seconds of a native tool.
const NATIVE_SECONDS: u32 = 30;
/// Bytes of each stream of a command, as the protocol of sidecars has it.
const COMMAND_OUTPUT: u32 = 51_200;
/// Bytes of the answer of a native tool. A page from the web is larger before it is made readable.
const NATIVE_OUTPUT: u32 = 2 << 20;
/// Bytes of the arguments of a call.
const ARGUMENT_BYTES: u32 = 1 << 20;

/// The limits of tools that run commands.
pub const COMMAND: ToolLimits = ToolLimits {
    timeout_seconds: COMMAND_SECONDS,
    argument_bytes: ARGUMENT_BYTES,
    output_bytes: COMMAND_OUTPUT,
    concurrent: 4,
    per_minute: 120,
};

/// The limits of the others.
pub const NATIVE: ToolLimits = ToolLimits {
    timeout_seconds: NATIVE_SECONDS,
    argument_bytes: ARGUMENT_BYTES,
    output_bytes: NATIVE_OUTPUT,
    concurrent: 8,
    per_minute: 300,
};

/// The limits of tools that others see the effects of: messages, schedules, runs.
pub const OUTWARD: ToolLimits = ToolLimits {
    timeout_seconds: NATIVE_SECONDS,
    argument_bytes: 64 << 10,
    output_bytes: 64 << 10,
    concurrent: 1,
    per_minute: 10,
};

/// The deadlines of a run.
pub fn deadlines(admitted: &Admitted<'_>, limits: &Limits) -> Deadlines {
    let spec = &admitted.run.spec;
    let written = spec.timeout.as_ref().and_then(|it| it.get().ok());
    // Admission has filled it in and looked at it.
    let run = written.map_or(0, whole_seconds);
    let asks = admitted.tools.iter().any(|it| it.action == Action::Ask);
    let waiting = if asks { limits.waiting_seconds } else { 0 };
    let hooks = spec.lifecycle.iter().flat_map(|it| &it.pre_run);
    let hooks: u64 = hooks.map(|hook| hook_seconds(hook.timeout.as_ref())).sum();
    let ceiling = [
        run,
        waiting,
        hooks,
        limits.start_seconds,
        limits.connect_seconds,
        limits.grace_seconds,
    ];
    Deadlines {
        run_seconds: run,
        approval_seconds: u64::from(admitted.policy.approval.expiry()),
        waiting_seconds: waiting,
        connect_seconds: limits.connect_seconds,
        grace_seconds: limits.grace_seconds,
        ceiling_seconds: ceiling.iter().sum(),
    }
}

/// Seconds of a hook for which nobody says.
const HOOK_SECONDS: u64 = 5 * 60;

/// Seconds that a hook may take.
pub fn hook_seconds(timeout: Option<&sympozium_api::duration::DurationText>) -> u64 {
    let written = timeout.and_then(|it| it.get().ok());
    written.map_or(HOOK_SECONDS, whole_seconds)
}

/// Rounded up: half a second is still some time.
fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
