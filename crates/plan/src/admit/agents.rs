//! The agent of a run: the run names one, and it exists. Also the task.

use sympozium_api::AgentSpec;
use sympozium_api::agent_run::{RunMode, Task};
use sympozium_api::text::quote;

use super::violation::{Findings, violation};
use super::{Input, RuleContext, Subject};

/// The agent's spec, where the run names exactly one agent that exists once.
pub fn resolve<'a>(input: &Input<'a>, subject: &Subject, findings: &mut Findings) -> Option<&'a AgentSpec> {
    let spec = &input.run.spec;
    let Some(name) = spec.agent() else {
        findings.deny(
            subject,
            match (&spec.agent_ref, &spec.instance_ref) {
                (Some(agent), Some(instance)) => violation(
                    "spec.instanceRef",
                    "agent-refs-differ",
                    format!(
                        "`agentRef` names {} and `instanceRef` names {}",
                        quote(agent.as_str()),
                        quote(instance.as_str())
                    ),
                    "set one of them, or both to the same name",
                ),
                _ => violation(
                    "spec.agentRef",
                    "agent-unnamed",
                    "the run names no agent",
                    "set `agentRef` to the name of an agent in this namespace",
                ),
            },
        );
        return None;
    };
    match (input.agents.agent, input.agents.instance) {
        (None, None) => {
            findings.deny_missing(
                subject,
                violation(
                    "spec.agentRef",
                    "agent-missing",
                    format!("there is no agent {} in namespace `{}`", quote(name.as_str()), input.namespace),
                    "create it, or correct the name",
                ),
                Subject::new("Agent", Some(input.namespace), name.as_str()),
            );
            None
        }
        (Some(_), Some(_)) => {
            findings.deny(
                subject,
                violation(
                    "spec.agentRef",
                    "agent-ambiguous",
                    format!("{} is both an Agent and a SympoziumInstance", quote(name.as_str())),
                    "delete one of the two; they are two names for one thing",
                ),
            );
            None
        }
        _ => input.agents.spec(),
    }
}

/// The only mode of a structured task.
const SIDECAR_DRIVEN: &str = "sidecar-driven";

/// Checks that the run has a task, in a valid form.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let task = case.run.spec.task.as_ref();
    match task {
        None => deny_missing_task(case, findings),
        Some(Task::Text(text)) if text.trim().is_empty() => deny_missing_task(case, findings),
        Some(Task::Text(_)) => {}
        Some(Task::Structured(task)) if task.mode == SIDECAR_DRIVEN => {}
        Some(Task::Structured(task)) => findings.deny(
            &case.subject,
            violation(
                "spec.task.mode",
                "task-invalid",
                format!("there is no mode {}", quote(&task.mode)),
                format!("use `mode: {SIDECAR_DRIVEN}`, or write the task as a text"),
            ),
        ),
        Some(Task::Other(_)) => findings.deny(
            &case.subject,
            violation(
                "spec.task",
                "task-invalid",
                "a task is a text, or an object with `mode`, `tool` and `parameters` that are texts",
                "say in words what the agent is to do",
            ),
        ),
    }
}

/// A run in server mode waits for tasks; every other run needs one.
fn deny_missing_task(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    if case.run.spec.mode == RunMode::Task {
        findings.deny(
            &case.subject,
            violation("spec.task", "task-missing", "the run has no task", "say in `task` what the agent is to do"),
        );
    }
}
