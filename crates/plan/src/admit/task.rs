//! Task and system prompt: bounded in their stored form, so that an admitted run can be planned.

use serde::Serialize;
use sympozium_api::digest;
use sympozium_api::run_plan::MAX_BYTES;

use super::RuleContext;
use super::violation::{Findings, violation};

/// Maximum size of task and system prompt in the plan, where one character may take six bytes. The rest of
/// [`MAX_BYTES`] is for everything else in a plan.
pub const MAX_TASK_BYTES: usize = MAX_BYTES / 8 * 5;

/// Checks that task and system prompt fit into the plan.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let spec = &case.run.spec;
    // A value that cannot be serialised counts as too large.
    let bytes = stored_len(&spec.task) + stored_len(&spec.system_prompt);
    if bytes > MAX_TASK_BYTES {
        findings.deny(
            &case.subject,
            violation(
                "spec.task",
                "task-too-large",
                format!("`task` and `systemPrompt` have {bytes} bytes as they are stored; {MAX_TASK_BYTES} fit"),
                "say less, or put it into a file that the agent reads",
            ),
        );
    }
}

fn stored_len(value: &impl Serialize) -> usize {
    digest::to_canonical_json(value).map_or(usize::MAX / 2, |json| json.len())
}
