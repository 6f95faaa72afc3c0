//! CPU and memory of a whole run.

use sympozium_api::SkillPackSpec;
use sympozium_api::quantity::{Quantity, Resources};
use sympozium_api::skill_pack::Sidecar;

use super::finding::{Findings, told};
use super::sandbox::has_container;
use super::{Amounts, Case, ResolvedPack, Subject};
use crate::quantity::Amount;

/// The minimum that must be left for the agent, where the run sets the resources of its whole sandbox.
pub const LEAST_AGENT: Amounts = Amounts::of(250, 512);

/// The resources of all containers of the run together, checked against the policy's maximum.
///
/// Sidecars live as long as the run. Hooks before the run end before the agent and the bridge start, so the larger of
/// the two counts.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) -> Amounts {
    let usual = &case.input.settings.amounts;
    let mut beside = Amounts::default();
    for pack in &case.packs {
        if let Some(sidecar) = pack.sidecar() {
            let amounts = of_sidecar(pack, sidecar, usual.sidecar, findings);
            beside = plus(beside, amounts);
        }
    }
    let spec = &case.run.spec;
    if let Some(sandbox) = spec.sandbox.as_ref().filter(|it| it.enabled) {
        let resources = sandbox.resources.as_ref();
        let field = "spec.sandbox.resources";
        let amounts = of_resources(&case.subject, field, resources, usual.sandbox, findings);
        check_sandbox(case, amounts, findings);
        beside = plus(beside, amounts);
    }
    let agent = of_agent(case, plus(beside, usual.bridge), findings);
    let mut total = plus(agent, usual.bridge);
    let has_hooks = case.run.spec.lifecycle.iter().any(|it| !it.pre_run.is_empty() || !it.post_run.is_empty());
    if has_hooks {
        total = larger(total, usual.hook);
    }
    total = plus(total, beside);
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

/// The limits of a pack's sidecar: those in the pack, or else the defaults, and at least what the pack says that it
/// needs.
fn of_sidecar(pack: &ResolvedPack<'_>, sidecar: &Sidecar, usual: Amounts, findings: &mut Findings) -> Amounts {
    let subject = pack.subject();
    let resources = sidecar.resources.clone().unwrap_or_default();
    let usual = usual_of_pack(pack.spec, usual);
    let (cpu, memory) = (resources.cpu.as_ref(), resources.memory.as_ref());
    let field = "spec.sidecar.resources";
    let amounts = Amounts {
        cpu: limit(&subject, &format!("{field}.cpu"), cpu, usual.cpu, findings),
        memory: limit(&subject, &format!("{field}.memory"), memory, usual.memory, findings),
    };
    let needed = needed(pack.spec);
    for (name, field, given, least) in
        [("cpu", "minCPU", amounts.cpu, needed.cpu), ("memory", "minMemory", amounts.memory, needed.memory)]
    {
        if given < least {
            findings.deny(
                &subject,
                told(
                    format!("spec.sidecar.resources.{name}"),
                    "pack-needs-more",
                    format!("the sidecar may use {given}, and the pack needs {least}"),
                    format!("raise it, or lower `runtimeRequirements.{field}`"),
                ),
            );
        }
    }
    amounts
}

/// Checks that the sandbox has the resources of the packs whose commands run in it: those without a sidecar.
fn check_sandbox(case: &Case<'_, '_>, amounts: Amounts, findings: &mut Findings) {
    if !has_container(case) {
        return;
    }
    for pack in case.packs.iter().filter(|it| it.sidecar().is_none()) {
        let needed = needed(pack.spec);
        for (name, field, given, least) in
            [("cpu", "minCPU", amounts.cpu, needed.cpu), ("memory", "minMemory", amounts.memory, needed.memory)]
        {
            if given < least {
                findings.deny(
                    &case.subject,
                    told(
                        format!("spec.sandbox.resources.limits.{name}"),
                        "pack-needs-more",
                        format!(
                            "the sandbox may use {given}, and pack `{}`, whose commands run in it, needs {least}",
                            crate::text::shown(pack.name.as_str())
                        ),
                        format!("raise it, or lower `runtimeRequirements.{field}`"),
                    ),
                );
            }
        }
    }
}

/// The resources that a pack says that it needs. An invalid quantity counts as zero; [`check_needs`] reports it.
fn needed(spec: &SkillPackSpec) -> Amounts {
    let needs = spec.runtime_requirements.as_ref();
    Amounts {
        cpu: read(needs.and_then(|it| it.min_cpu.as_ref())),
        memory: read(needs.and_then(|it| it.min_memory.as_ref())),
    }
}

/// The limits of a pack's sidecar that sets none.
pub fn usual_of_pack(spec: &SkillPackSpec, usual: Amounts) -> Amounts {
    larger(usual, needed(spec))
}

/// Checks that the quantities of a pack's requirements are valid.
pub fn check_needs(subject: &Subject, spec: &SkillPackSpec, findings: &mut Findings) {
    let Some(needs) = &spec.runtime_requirements else {
        return;
    };
    for (name, quantity) in [("minCPU", &needs.min_cpu), ("minMemory", &needs.min_memory)] {
        if let Some(quantity) = quantity {
            let field = format!("spec.runtimeRequirements.{name}");
            amount(subject, &field, quantity, Amount::ZERO, findings);
        }
    }
}

/// The limits of the agent: the default, or what the other containers leave of the limits of the whole sandbox.
fn of_agent(case: &Case<'_, '_>, others: Amounts, findings: &mut Findings) -> Amounts {
    let usual = case.input.settings.amounts.agent;
    let sandbox = case.run.spec.agent_sandbox.as_ref();
    let resources = sandbox.filter(|it| it.enabled).and_then(|it| it.resources.as_ref());
    let Some(resources) = resources else {
        return usual;
    };
    let field = "spec.agentSandbox.resources";
    // Reports invalid quantities.
    of_resources(&case.subject, field, Some(resources), Amounts::default(), findings);
    let mut left = |name: &str, others: Amount, least: Amount, usual: Amount| {
        let limit = read(resources.limits.get(name));
        if limit == Amount::ZERO {
            return usual.max(read(resources.requests.get(name)));
        }
        let needed = others.plus(least);
        if limit < needed {
            findings.deny(
                &case.subject,
                told(
                    format!("{field}.limits.{name}"),
                    "agent-sandbox-too-small",
                    format!("the run's containers need {needed} together, and its sandbox has {limit}"),
                    "raise it, or use fewer skills or smaller `resources`",
                ),
            );
        }
        limit.minus(others)
    };
    Amounts {
        cpu: left("cpu", others.cpu, LEAST_AGENT.cpu, usual.cpu),
        memory: left("memory", others.memory, LEAST_AGENT.memory, usual.memory),
    }
}

/// The value of a quantity; zero where it is absent or invalid.
pub fn read(quantity: Option<&Quantity>) -> Amount {
    let amount = quantity.and_then(|it| Amount::parse(&it.text()).ok());
    amount.unwrap_or(Amount::ZERO)
}

/// The larger of request and limit of each resource, or the default.
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
    for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for name in amounts.keys().filter(|it| !matches!(it.as_str(), "cpu" | "memory")) {
            let name = crate::text::shown(name);
            findings.warn(
                subject,
                told(
                    format!("{field}.{list}.{name}"),
                    "resource-unused",
                    format!("containers of a run are given CPU and memory, not `{name}`"),
                    "remove it",
                ),
            );
        }
    }
    let mut largest = |name: &str, usual: Amount| {
        let field = |list: &str| format!("{field}.{list}.{name}");
        let request = resources.requests.get(name);
        let request = request.map(|it| amount(subject, &field("requests"), it, usual, findings));
        // A request alone leaves the container with the default limit.
        let written = resources.limits.get(name);
        let limit = limit(subject, &field("limits"), written, usual, findings);
        request.map_or(limit, |request| request.max(limit))
    };
    Amounts { cpu: largest("cpu", usual.cpu), memory: largest("memory", usual.memory) }
}

/// A limit, or the default. Kubernetes takes a limit of zero for no limit.
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

/// The value of a quantity, or the default where it is invalid.
fn amount(subject: &Subject, field: &str, quantity: &Quantity, usual: Amount, findings: &mut Findings) -> Amount {
    Amount::parse(&quantity.text()).unwrap_or_else(|error| {
        let remedy = "write it as `200m` or `256Mi`";
        findings.deny(subject, told(field, "amount-invalid", error.to_string(), remedy));
        usual
    })
}

/// Checks one limit, for objects that are checked alone.
pub fn check_limit(subject: &Subject, field: &str, quantity: Option<&Quantity>, findings: &mut Findings) {
    limit(subject, field, quantity, Amount::ZERO, findings);
}

fn plus(left: Amounts, right: Amounts) -> Amounts {
    Amounts { cpu: left.cpu.plus(right.cpu), memory: left.memory.plus(right.memory) }
}

fn larger(left: Amounts, right: Amounts) -> Amounts {
    Amounts { cpu: left.cpu.max(right.cpu), memory: left.memory.max(right.memory) }
}
