//! Whether a run has its own kernel: by the handler of its RuntimeClass, never by the name of the class, which any
//! user can choose.

use sympozium_api::AgentRun;
use sympozium_api::guarantee::Guarantee;
use sympozium_api::run_plan::KernelPlan;
use sympozium_api::text::quote;

use super::violation::{Findings, violation};
use super::{Input, RuleContext};

/// Handlers of gVisor, whose kernel an executor recognises from inside.
const GVISOR_HANDLERS: [&str; 2] = ["runsc", "gvisor"];

/// Checks that a run has its own kernel when its policy requires it.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let guarantees = &case.policy.isolation.guarantees;
    if !guarantees.contains(&Guarantee::Kernel) || own_kernel(case.input, case.run).is_some() {
        return;
    }
    let listed = quote_handlers(case.input);
    let (field, message, remedy) = match runtime_class(case.run) {
        None => (
            "spec.agentSandbox",
            "the policy requires a kernel of the run's own".to_owned(),
            format!(
                "set `agentSandbox.enabled`, and `agentSandbox.runtimeClass` to a RuntimeClass whose handler is one of {listed}"
            ),
        ),
        Some(class) => {
            let shown = quote(class);
            match case.input.runtime_classes.get(class) {
                None => (
                    "spec.agentSandbox.runtimeClass",
                    format!(
                        "the policy requires a kernel of the run's own, and RuntimeClass {shown} is not known here: its name proves nothing"
                    ),
                    format!("create the RuntimeClass, or put it among the files, with one of the handlers {listed}"),
                ),
                Some(handler) => (
                    "spec.agentSandbox.runtimeClass",
                    format!(
                        "the policy requires a kernel of the run's own, and the handler {} of RuntimeClass {shown} is not one that gives it",
                        quote(handler)
                    ),
                    format!(
                        "choose a RuntimeClass whose handler is one of {listed}; the controller's `--kernel-handlers` lists them"
                    ),
                ),
            }
        }
    };
    findings.deny(&case.subject, violation(field, "isolation-kernel", message, remedy));
}

/// The run's own kernel, where its RuntimeClass is known and the operator lists the handler.
pub fn own_kernel(input: &Input<'_>, run: &AgentRun) -> Option<KernelPlan> {
    let handler = input.runtime_classes.get(runtime_class(run)?)?;
    let is_listed = input.settings.kernel_handlers.contains(handler);
    is_listed.then(|| KernelPlan { handler: handler.clone(), gvisor: GVISOR_HANDLERS.contains(&handler.as_str()) })
}

/// The RuntimeClass of a run in agent-sandbox; other runs have none.
fn runtime_class(run: &AgentRun) -> Option<&str> {
    let sandbox = run.spec.agent_sandbox.as_ref().filter(|agent_sandbox| agent_sandbox.enabled)?;
    sandbox.runtime_class.as_ref().map(|class| class.as_str())
}

fn quote_handlers(input: &Input<'_>) -> String {
    let handlers = &input.settings.kernel_handlers;
    if handlers.is_empty() {
        "none: the operator lists no handler".to_owned()
    } else {
        crate::text::quote_list(handlers.iter().map(String::as_str))
    }
}
