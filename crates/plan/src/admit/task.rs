//! What the agent is told: bounded as it is stored, so that an admitted run can be planned.

use serde::Serialize;
use sympozium_api::digest;
use sympozium_api::run_plan::MAX_BYTES;

use super::Case;
use super::finding::{Findings, told};

/// Bytes of task and system prompt in the plan, where a character may take six. The rest of [`MAX_BYTES`] is for everything
/// else that a plan holds.
pub const MAX_TASK_BYTES: usize = MAX_BYTES / 8 * 5;

/// That the plan has room for what the agent is told.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    let spec = &case.run.spec;
    // What cannot be written has no length; planning says so.
    let bytes = written(&spec.task) + written(&spec.system_prompt);
    if bytes > MAX_TASK_BYTES {
        findings.deny(
            &case.subject,
            told(
                "spec.task",
                "task-too-large",
                format!("`task` and `systemPrompt` have {bytes} bytes as they are stored; {MAX_TASK_BYTES} fit"),
                "say less, or put it into a file that the agent reads",
            ),
        );
    }
}

fn written(value: &impl Serialize) -> usize {
    digest::canonical(value).map_or(usize::MAX / 2, |it| it.len())
}
