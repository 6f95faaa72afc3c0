//! CPU and memory of a whole run.

use sympozium_api::SkillPackSpec;
use sympozium_api::quantity::{Quantity, Resources};
use sympozium_api::skill_pack::Sidecar;
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::sandbox::has_sandbox_container;
use super::violation::{Findings, violation};
use super::{ResolvedPack, ResourceLimits, RuleContext, Subject};
use crate::quantity::ExactQuantity;

/// The minimum that must be left for the agent, where the run sets the resources of its whole sandbox.
pub const MIN_AGENT_LIMITS: ResourceLimits = ResourceLimits::from_millicores_mib(250, 512);

/// The resources of all containers of the run together, checked against the policy's maximum.
///
/// Sidecars live as long as the run. Hooks before the run end before the agent and the bridge start, so the larger of
/// the two counts.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) -> ResourceLimits {
    let usual = &case.input.settings.default_limits;
    let mut beside = ResourceLimits::default();
    for pack in &case.packs {
        if let Some(sidecar) = pack.sidecar() {
            let amounts = sidecar_limits(pack, sidecar, usual.sidecar, findings);
            beside = add_limits(beside, amounts);
        }
    }
    let spec = &case.run.spec;
    if let Some(sandbox) = spec.sandbox.as_ref().filter(|sandbox| sandbox.enabled) {
        let resources = sandbox.resources.as_ref();
        let field = "spec.sandbox.resources";
        let amounts = limits_or_default(&case.subject, field, resources, usual.sandbox, findings);
        check_sandbox_limits(case, amounts, findings);
        beside = add_limits(beside, amounts);
    }
    let agent = agent_limits(case, add_limits(beside, usual.bridge), findings);
    let mut total = add_limits(agent, usual.bridge);
    let has_hooks =
        case.run.spec.lifecycle.iter().any(|lifecycle| !lifecycle.pre_run.is_empty() || !lifecycle.post_run.is_empty());
    if has_hooks {
        total = max_limits(total, usual.hook);
    }
    total = add_limits(total, beside);
    let isolation = &case.policy.isolation;
    for (what, field, used, most) in
        [("CPU", "maxCPU", total.cpu, isolation.max_cpu), ("memory", "maxMemory", total.memory, isolation.max_memory)]
    {
        if let Some(most) = most.filter(|most| used > *most) {
            findings.deny(
                &case.subject,
                violation(
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
fn sidecar_limits(
    pack: &ResolvedPack<'_>,
    sidecar: &Sidecar,
    usual: ResourceLimits,
    findings: &mut Findings,
) -> ResourceLimits {
    let subject = pack.subject();
    let resources = sidecar.resources.clone().unwrap_or_default();
    let usual = default_sidecar_limits(pack.spec, usual);
    let (cpu, memory) = (resources.cpu.as_ref(), resources.memory.as_ref());
    let field = "spec.sidecar.resources";
    let amounts = ResourceLimits {
        cpu: limit_or_default(&subject, &format!("{field}.cpu"), cpu, usual.cpu, findings),
        memory: limit_or_default(&subject, &format!("{field}.memory"), memory, usual.memory, findings),
    };
    let needed = required_resources(pack.spec);
    for (name, field, given, least) in
        [("cpu", "minCPU", amounts.cpu, needed.cpu), ("memory", "minMemory", amounts.memory, needed.memory)]
    {
        if given < least {
            findings.deny(
                &subject,
                violation(
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
fn check_sandbox_limits(case: &RuleContext<'_, '_>, amounts: ResourceLimits, findings: &mut Findings) {
    if !has_sandbox_container(case) {
        return;
    }
    for pack in case.packs.iter().filter(|pack| pack.sidecar().is_none()) {
        let needed = required_resources(pack.spec);
        for (name, field, given, least) in
            [("cpu", "minCPU", amounts.cpu, needed.cpu), ("memory", "minMemory", amounts.memory, needed.memory)]
        {
            if given < least {
                findings.deny(
                    &case.subject,
                    violation(
                        format!("spec.sandbox.resources.limits.{name}"),
                        "pack-needs-more",
                        format!(
                            "the sandbox may use {given}, and pack {}, whose commands run in it, needs {least}",
                            quote(pack.name.as_str())
                        ),
                        format!("raise it, or lower `runtimeRequirements.{field}`"),
                    ),
                );
            }
        }
    }
}

/// The resources that a pack says that it needs. An invalid quantity counts as zero; [`check_needs`] reports it.
fn required_resources(spec: &SkillPackSpec) -> ResourceLimits {
    let needs = spec.runtime_requirements.as_ref();
    ResourceLimits {
        cpu: quantity_or_zero(needs.and_then(|needs| needs.min_cpu.as_ref())),
        memory: quantity_or_zero(needs.and_then(|needs| needs.min_memory.as_ref())),
    }
}

/// The limits of a pack's sidecar that sets none.
pub fn default_sidecar_limits(spec: &SkillPackSpec, usual: ResourceLimits) -> ResourceLimits {
    max_limits(usual, required_resources(spec))
}

/// Checks that the quantities of a pack's requirements are valid.
pub fn check_requirements(subject: &Subject, spec: &SkillPackSpec, findings: &mut Findings) {
    let Some(needs) = &spec.runtime_requirements else {
        return;
    };
    for (name, quantity) in [("minCPU", &needs.min_cpu), ("minMemory", &needs.min_memory)] {
        if let Some(quantity) = quantity {
            let field = format!("spec.runtimeRequirements.{name}");
            quantity_or_default(subject, &field, quantity, ExactQuantity::ZERO, findings);
        }
    }
}

/// The limits of the agent: the default, or what the other containers leave of the limits of the whole sandbox.
fn agent_limits(case: &RuleContext<'_, '_>, others: ResourceLimits, findings: &mut Findings) -> ResourceLimits {
    let usual = case.input.settings.default_limits.agent;
    let sandbox = case.run.spec.agent_sandbox.as_ref();
    let resources = sandbox.filter(|sandbox| sandbox.enabled).and_then(|sandbox| sandbox.resources.as_ref());
    let Some(resources) = resources else {
        return usual;
    };
    let field = "spec.agentSandbox.resources";
    // Reports invalid quantities.
    limits_or_default(&case.subject, field, Some(resources), ResourceLimits::default(), findings);
    let mut left = |name: &str, others: ExactQuantity, least: ExactQuantity, usual: ExactQuantity| {
        let limit = quantity_or_zero(resources.limits.get(name));
        if limit == ExactQuantity::ZERO {
            return usual.max(quantity_or_zero(resources.requests.get(name)));
        }
        let needed = others.saturating_add(least);
        if limit < needed {
            findings.deny(
                &case.subject,
                violation(
                    format!("{field}.limits.{name}"),
                    "agent-sandbox-too-small",
                    format!("the run's containers need {needed} together, and its sandbox has {limit}"),
                    "raise it, or use fewer skills or smaller `resources`",
                ),
            );
        }
        limit.saturating_sub(others)
    };
    ResourceLimits {
        cpu: left("cpu", others.cpu, MIN_AGENT_LIMITS.cpu, usual.cpu),
        memory: left("memory", others.memory, MIN_AGENT_LIMITS.memory, usual.memory),
    }
}

/// The value of a quantity; zero where it is absent or invalid.
pub fn quantity_or_zero(quantity: Option<&Quantity>) -> ExactQuantity {
    let amount = quantity.and_then(|quantity| ExactQuantity::parse(&quantity.text()).ok());
    amount.unwrap_or(ExactQuantity::ZERO)
}

/// The larger of request and limit of each resource, or the default.
fn limits_or_default(
    subject: &Subject,
    field: &str,
    resources: Option<&Resources>,
    usual: ResourceLimits,
    findings: &mut Findings,
) -> ResourceLimits {
    let Some(resources) = resources else {
        return usual;
    };
    for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for name in amounts.keys().filter(|key| !matches!(key.as_str(), "cpu" | "memory")) {
            let name = printable(truncate(name, MAX_NAME));
            findings.warn(
                subject,
                violation(
                    format!("{field}.{list}.{name}"),
                    "resource-unused",
                    format!("containers of a run are given CPU and memory, not `{name}`"),
                    "remove it",
                ),
            );
        }
    }
    let mut largest = |name: &str, usual: ExactQuantity| {
        let field = |list: &str| format!("{field}.{list}.{name}");
        let request = resources.requests.get(name);
        let request = request.map(|request| quantity_or_default(subject, &field("requests"), request, usual, findings));
        // A request alone leaves the container with the default limit.
        let written = resources.limits.get(name);
        let limit = limit_or_default(subject, &field("limits"), written, usual, findings);
        request.map_or(limit, |request| request.max(limit))
    };
    ResourceLimits { cpu: largest("cpu", usual.cpu), memory: largest("memory", usual.memory) }
}

/// A limit, or the default. Kubernetes takes a limit of zero for no limit.
fn limit_or_default(
    subject: &Subject,
    field: &str,
    quantity: Option<&Quantity>,
    usual: ExactQuantity,
    findings: &mut Findings,
) -> ExactQuantity {
    let Some(quantity) = quantity else {
        return usual;
    };
    if ExactQuantity::parse(&quantity.text()) == Ok(ExactQuantity::ZERO) {
        findings.deny(
            subject,
            violation(
                field,
                "amount-zero",
                "a limit of zero would be none: the container could use the whole node",
                "write how much it may use, or leave it out for the usual amount",
            ),
        );
    }
    quantity_or_default(subject, field, quantity, usual, findings)
}

/// The value of a quantity, or the default where it is invalid.
fn quantity_or_default(
    subject: &Subject,
    field: &str,
    quantity: &Quantity,
    usual: ExactQuantity,
    findings: &mut Findings,
) -> ExactQuantity {
    ExactQuantity::parse(&quantity.text()).unwrap_or_else(|error| {
        let remedy = "write it as `200m` or `256Mi`";
        findings.deny(subject, violation(field, "amount-invalid", error.to_string(), remedy));
        usual
    })
}

/// Checks one limit, for objects that are checked alone.
pub fn check_limit(subject: &Subject, field: &str, quantity: Option<&Quantity>, findings: &mut Findings) {
    limit_or_default(subject, field, quantity, ExactQuantity::ZERO, findings);
}

fn add_limits(left: ResourceLimits, right: ResourceLimits) -> ResourceLimits {
    ResourceLimits { cpu: left.cpu.saturating_add(right.cpu), memory: left.memory.saturating_add(right.memory) }
}

fn max_limits(left: ResourceLimits, right: ResourceLimits) -> ResourceLimits {
    ResourceLimits { cpu: left.cpu.max(right.cpu), memory: left.memory.max(right.memory) }
}
