//! CPU and memory of a whole run.

use std::collections::BTreeMap;

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
    let has_hooks = case
        .run
        .spec
        .lifecycle
        .iter()
        .any(|it| !it.pre_run.is_empty() || !it.post_run.is_empty());
    if has_hooks {
        total = larger(total, usual.hook);
    }
    for pack in &case.packs {
        if let Some(sidecar) = pack.sidecar() {
            let resources = sidecar.resources.clone().unwrap_or_default();
            let subject = pack.subject();
            let amounts = Amounts {
                cpu: amount(
                    &subject,
                    "spec.sidecar.resources.cpu",
                    resources.cpu.as_ref(),
                    usual.sidecar.cpu,
                    findings,
                ),
                memory: amount(
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
        total = plus(
            total,
            of_resources(
                &case.subject,
                "spec.sandbox.resources",
                resources,
                usual.sandbox,
                findings,
            ),
        );
    }
    if let Some(sandbox) = spec.agent_sandbox.as_ref().filter(|it| it.enabled) {
        let resources = sandbox.resources.as_ref();
        total = larger(
            total,
            of_resources(
                &case.subject,
                "spec.agentSandbox.resources",
                resources,
                Amounts::default(),
                findings,
            ),
        );
    }
    let isolation = &case.policy.isolation;
    for (what, field, used, most) in [
        ("CPU", "maxCPU", total.cpu, isolation.max_cpu),
        ("memory", "maxMemory", total.memory, isolation.max_memory),
    ] {
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
        let mut of = |list: &str, map: &BTreeMap<String, Quantity>| {
            let quantity = map.get(name)?;
            Some(amount(
                subject,
                &format!("{field}.{list}.{name}"),
                Some(quantity),
                usual,
                findings,
            ))
        };
        let limit = of("limits", &resources.limits);
        let request = of("requests", &resources.requests);
        // A request alone leaves the container with the usual limit.
        [limit.or(Some(usual)), request]
            .into_iter()
            .flatten()
            .max()
            .unwrap_or(usual)
    };
    Amounts {
        cpu: largest("cpu", usual.cpu),
        memory: largest("memory", usual.memory),
    }
}

/// A written amount, or the usual one.
fn amount(
    subject: &Subject,
    field: &str,
    quantity: Option<&Quantity>,
    usual: Amount,
    findings: &mut Findings,
) -> Amount {
    let Some(quantity) = quantity else {
        return usual;
    };
    Amount::parse(&quantity.text()).unwrap_or_else(|error| {
        let remedy = "write it as `200m` or `256Mi`";
        findings.deny(
            subject,
            told(field, "amount-invalid", error.to_string(), remedy),
        );
        usual
    })
}

/// That a written amount is one; for objects that are looked at alone.
pub fn check_amount(
    subject: &Subject,
    field: &str,
    quantity: Option<&Quantity>,
    findings: &mut Findings,
) {
    amount(subject, field, quantity, Amount::ZERO, findings);
}

fn plus(left: Amounts, right: Amounts) -> Amounts {
    Amounts {
        cpu: left.cpu.plus(right.cpu),
        memory: left.memory.plus(right.memory),
    }
}

fn larger(left: Amounts, right: Amounts) -> Amounts {
    Amounts {
        cpu: left.cpu.max(right.cpu),
        memory: left.memory.max(right.memory),
    }
}
