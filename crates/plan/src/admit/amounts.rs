//! CPU and memory of a whole run.

use sympozium_api::quantity::{Quantity, Resources};

use super::finding::{Findings, told};
use super::{Amounts, Case, Subject};
use crate::quantity::Amount;

/// What the run's containers may use together, held against the policy's ceilings.
///
/// Sidecars live as long as the run; hooks before it come while the agent and the bridge have not started, so of these
/// the larger counts.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) -> Amounts {
    let usual = &case.input.settings.amounts;
    let mut total = plus(usual.agent, usual.bridge);
    let has_hooks = case.run.spec.lifecycle.iter().any(|it| !it.pre_run.is_empty() || !it.post_run.is_empty());
    if has_hooks {
        total = larger(total, usual.hook);
    }
    for pack in &case.packs {
        if let Some(sidecar) = pack.sidecar() {
            let resources = sidecar.resources.clone().unwrap_or_default();
            let subject = pack.subject();
            let amounts = Amounts {
                cpu: limit(&subject, "spec.sidecar.resources.cpu", resources.cpu.as_ref(), usual.sidecar.cpu, findings),
                memory: limit(
                    &subject,
                    "spec.sidecar.resources.memory",
                    resources.memory.as_ref(),
                    usual.sidecar.memory,
                    findings,
                ),
            };
            total = plus(total, amounts);
        }
    }
    let spec = &case.run.spec;
    if let Some(sandbox) = spec.sandbox.as_ref().filter(|it| it.enabled) {
        let resources = sandbox.resources.as_ref();
        total = plus(total, of_resources(&case.subject, "spec.sandbox.resources", resources, usual.sandbox, findings));
    }
    if let Some(sandbox) = spec.agent_sandbox.as_ref().filter(|it| it.enabled) {
        let resources = sandbox.resources.as_ref();
        total = larger(
            total,
            of_resources(&case.subject, "spec.agentSandbox.resources", resources, Amounts::default(), findings),
        );
    }
    let isolation = &case.policy.isolation;
    for (what, field, used, most) in
        [("CPU", "maxCPU", total.cpu, isolation.max_cpu), ("memory", "maxMemory", total.memory, isolation.max_memory)]
    {
        if let Some(most) = most.filter(|most| used > *most) {
            findings.deny(
                &case.subject,
                told(
                    "spec",
                    if what == "CPU" { "max-cpu" } else { "max-memory" },
                    format!("the run's containers may use {used} {what} together; the policy allows {most}"),
                    format!("use fewer skills or smaller `resources`, or raise `sandboxPolicy.{field}`"),
                ),
            );
        }
    }
    total
}

/// The larger of request and limit of each, or the usual amount.
fn of_resources(
    subject: &Subject,
    field: &str,
    resources: Option<&Resources>,
    usual: Amounts,
    findings: &mut Findings,
) -> Amounts {
    let Some(resources) = resources else {
        return usual;
    };
    let mut largest = |name: &str, usual: Amount| {
        let field = |list: &str| format!("{field}.{list}.{name}");
        let request = resources.requests.get(name);
        let request = request.map(|it| amount(subject, &field("requests"), it, usual, findings));
        // A request alone leaves the container with the usual limit.
        let written = resources.limits.get(name);
        let limit = limit(subject, &field("limits"), written, usual, findings);
        request.map_or(limit, |request| request.max(limit))
    };
    Amounts { cpu: largest("cpu", usual.cpu), memory: largest("memory", usual.memory) }
}

/// A written limit, or the usual one. Zero is no limit to Kubernetes, but the absence of one.
fn limit(
    subject: &Subject,
    field: &str,
    quantity: Option<&Quantity>,
    usual: Amount,
    findings: &mut Findings,
) -> Amount {
    let Some(quantity) = quantity else {
        return usual;
    };
    if Amount::parse(&quantity.text()) == Ok(Amount::ZERO) {
        findings.deny(
            subject,
            told(
                field,
                "amount-zero",
                "a limit of zero would be none: the container could use the whole node",
                "write how much it may use, or leave it out for the usual amount",
            ),
        );
    }
    amount(subject, field, quantity, usual, findings)
}

/// A written amount, or the usual one where it is none.
fn amount(subject: &Subject, field: &str, quantity: &Quantity, usual: Amount, findings: &mut Findings) -> Amount {
    Amount::parse(&quantity.text()).unwrap_or_else(|error| {
        let remedy = "write it as `200m` or `256Mi`";
        findings.deny(subject, told(field, "amount-invalid", error.to_string(), remedy));
        usual
    })
}

/// That a written limit is one; for objects that are looked at alone.
pub fn check_limit(subject: &Subject, field: &str, quantity: Option<&Quantity>, findings: &mut Findings) {
    limit(subject, field, quantity, Amount::ZERO, findings);
}

fn plus(left: Amounts, right: Amounts) -> Amounts {
    Amounts { cpu: left.cpu.plus(right.cpu), memory: left.memory.plus(right.memory) }
}

fn larger(left: Amounts, right: Amounts) -> Amounts {
    Amounts { cpu: left.cpu.max(right.cpu), memory: left.memory.max(right.memory) }
}
