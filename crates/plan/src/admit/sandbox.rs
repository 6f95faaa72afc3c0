//! The two kinds of sandboxes of a run, and its seccomp filter.

use sympozium_api::Guarantee;
use sympozium_api::agent_run::RunMode;
use sympozium_api::sandbox::{Sandbox, SandboxSecurityContext, SeccompProfileType};
use sympozium_api::skill_pack::Executor;
use sympozium_api::text::quote;

use super::violation::{Findings, violation};
use super::{ResolvedPack, RuleContext, kernel};
use crate::image::Image;
use crate::policy::allowed::Allowed;
use crate::policy::isolation::SeccompFilter;

/// Checks requirements, exclusivity, RuntimeClass, security context and seccomp.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    check_requirements(case, findings);
    check_exclusivity(case, findings);
    check_runtime_class(case, findings);
    check_security_context(case, findings);
    check_seccomp(case, findings);
}

fn check_requirements(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let isolation = &case.policy.isolation;
    let (sandbox, agent_sandbox) = enabled_kinds(case);
    if isolation.sandbox_required && !sandbox && !agent_sandbox {
        findings.deny(
            &case.subject,
            violation(
                "spec.sandbox",
                "sandbox-required",
                "the policy requires a sandbox",
                "set `sandbox.enabled` or `agentSandbox.enabled`",
            ),
        );
    }
    if isolation.agent_sandbox_required && !agent_sandbox {
        findings.deny(
            &case.subject,
            violation(
                "spec.agentSandbox",
                "agent-sandbox-required",
                "the policy requires agent-sandbox",
                "set `agentSandbox.enabled`",
            ),
        );
    }
    kernel::check(case, findings);
    check_attestation(case, findings);
    for pack in &case.packs {
        let wants = pack.spec.runtime_requirements.as_ref().and_then(|requirements| requirements.sandbox);
        if wants == Some(true) && !sandbox && !agent_sandbox {
            findings.deny(
                &case.subject,
                violation(
                    format!("spec.skills[{}].skillPackRef", pack.index),
                    "pack-needs-sandbox",
                    format!("pack {} asks for a sandbox, and the run has none", quote(pack.name.as_str())),
                    "set `sandbox.enabled` or `agentSandbox.enabled`",
                ),
            );
        }
        check_container(case, pack, findings);
    }
}

/// Checks that the commands of a pack run in the image that it needs, and that there is a container for a pack with
/// requirements.
fn check_container(case: &RuleContext<'_, '_>, pack: &ResolvedPack<'_>, findings: &mut Findings) {
    let Some(needs) = &pack.spec.runtime_requirements else {
        return;
    };
    let sandbox = case.run.spec.sandbox.as_ref();
    let sandbox = sandbox.filter(|_| has_sandbox_container(case));
    // Where the commands run, the image there (ours where none is named), and the field that sets it.
    let (place, image, subject, field) = match (pack.sidecar(), sandbox) {
        (Some(sidecar), _) => {
            ("its sidecar", Some(sidecar.image.as_str()), pack.subject(), "spec.runtimeRequirements.image")
        }
        (None, Some(sandbox)) => (
            "the sandbox",
            sandbox.image.as_ref().map(|image| image.as_str()),
            case.subject.clone(),
            "spec.sandbox.image",
        ),
        (None, None) => {
            let has_needs = needs.image.is_some() || needs.min_cpu.is_some() || needs.min_memory.is_some();
            if has_needs {
                findings.warn(
                    &case.subject,
                    violation(
                        format!("spec.skills[{}].skillPackRef", pack.index),
                        "pack-without-container",
                        format!(
                            "pack {} says what its commands need, and has no container: it has no sidecar, and the run no sandbox",
                            quote(pack.name.as_str())
                        ),
                        "set `sandbox.enabled`, or remove `image`, `minCPU` and `minMemory` from `runtimeRequirements`",
                    ),
                );
            }
            return;
        }
    };
    let Some(needed) = needs.image.as_ref().map(|image| image.as_str()) else {
        return;
    };
    if image.is_some_and(|image| is_same_image(image, needed)) {
        return;
    }
    let shown = quote(needed);
    let image = image.map_or_else(|| "our image".to_owned(), quote);
    findings.deny(
        &subject,
        violation(
            field,
            "pack-needs-image",
            format!(
                "the commands of pack {} run in {place}, which is {image}, and need {shown}",
                quote(pack.name.as_str())
            ),
            match pack.sidecar() {
                Some(_) => format!("set `sidecar.image` to {shown}, or remove it here"),
                None => format!("set `sandbox.image` to {shown}, or use another pack"),
            },
        ),
    );
}

/// Whether two references mean the same image: `alpine` is `docker.io/library/alpine`.
fn is_same_image(one: &str, other: &str) -> bool {
    one == other || matches!((Image::parse(one), Image::parse(other)), (Ok(one), Ok(other)) if one == other)
}

/// Checks that our executor runs every command, where the policy requires guarantees that only it can attest.
fn check_attestation(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let demanded = case.policy.isolation.guarantees.iter();
    let demanded: Vec<_> = demanded.filter(|guarantee| **guarantee != Guarantee::Kernel).collect();
    if demanded.is_empty() {
        return;
    }
    for pack in &case.packs {
        if pack.sidecar().is_some_and(|sidecar| sidecar.executor == Executor::Image) {
            findings.deny(
                &pack.subject(),
                violation(
                    "spec.sidecar.executor",
                    "isolation-executor",
                    format!(
                        "the policy requires {} around every command, and nothing attests them for an image that starts itself",
                        crate::text::quote_list(demanded.iter().map(|guarantee| guarantee.as_str()))
                    ),
                    "set `executor: injected`, or use another pack",
                ),
            );
        }
    }
}

fn check_exclusivity(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let (sandbox, agent_sandbox) = enabled_kinds(case);
    if sandbox && agent_sandbox {
        // Only a policy that the agent names counts here, not the floor, which applies to every run.
        if case.agent.policy_ref.is_some() {
            findings.deny(
                &case.subject,
                violation(
                    "spec.sandbox.enabled",
                    "sandbox-exclusive",
                    "`sandbox` and `agentSandbox` are both enabled, and the agent is bound to a policy",
                    "enable one of them",
                ),
            );
        } else {
            findings.warn(
                &case.subject,
                violation(
                    "spec.sandbox.enabled",
                    "sandbox-exclusive",
                    "`sandbox` and `agentSandbox` are both enabled; `agentSandbox` takes priority",
                    "enable one of them",
                ),
            );
        }
    }
    if agent_sandbox && case.run.spec.mode == RunMode::Server {
        findings.deny(
            &case.subject,
            violation(
                "spec.mode",
                "agent-sandbox-server",
                "agent-sandbox is for runs that end, not for `mode: server`",
                "set `mode: task`, or disable `agentSandbox`",
            ),
        );
    }
}

fn check_runtime_class(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let Some(agent_sandbox) = &case.run.spec.agent_sandbox else {
        return;
    };
    if !agent_sandbox.enabled {
        if agent_sandbox.runtime_class.is_some() || agent_sandbox.warm_pool_ref.is_some() {
            findings.warn(
                &case.subject,
                violation(
                    "spec.agentSandbox.enabled",
                    "agent-sandbox-off",
                    "`agentSandbox` says how, but is not enabled",
                    "set `agentSandbox.enabled`, or remove the rest",
                ),
            );
        }
        return;
    }
    let allowed = &case.policy.isolation.runtime_classes;
    match &agent_sandbox.runtime_class {
        Some(class) if !allowed.covers(&class.as_str().to_owned()) => findings.deny(
            &case.subject,
            violation(
                "spec.agentSandbox.runtimeClass",
                "runtime-class",
                format!(
                    "the policy allows the RuntimeClasses {}, not {}",
                    allowed.quote_members(),
                    quote(class.as_str())
                ),
                "choose one of them",
            ),
        ),
        Some(_) => {}
        None if matches!(allowed, Allowed::Only(_)) => findings.deny(
            &case.subject,
            violation(
                "spec.agentSandbox.runtimeClass",
                "runtime-class-missing",
                format!("the policy allows the RuntimeClasses {}, and the run names none", allowed.quote_members()),
                "name one of them, or set `agentSandboxPolicy.defaultRuntimeClass`",
            ),
        ),
        None => findings.warn(
            &case.subject,
            violation(
                "spec.agentSandbox.runtimeClass",
                "runtime-class-none",
                "without a RuntimeClass the sandbox shares the node's kernel",
                "set `agentSandbox.runtimeClass` to `gvisor` or `kata`",
            ),
        ),
    }
}

/// Settings that would loosen what every container has, or that have no effect.
fn check_security_context(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let sandbox = case.run.spec.sandbox.as_ref();
    if sandbox.is_some_and(|sandbox| !sandbox.enabled && sandbox.security_context.is_some()) {
        findings.warn(
            &case.subject,
            violation(
                "spec.sandbox.enabled",
                "sandbox-off",
                "`sandbox.securityContext` says how, but the sandbox is not enabled",
                "set `sandbox.enabled`, or remove the rest",
            ),
        );
    }
    let Some(context) = enabled_context(case) else {
        return;
    };
    for (field, value) in
        [("readOnlyRootFilesystem", context.read_only_root_filesystem), ("runAsNonRoot", context.run_as_non_root)]
    {
        if value == Some(false) {
            findings.deny(
                &case.subject,
                violation(
                    format!("spec.sandbox.securityContext.{field}"),
                    "security-context-loosened",
                    format!("`{field}: false` would loosen what every container of a run has"),
                    "remove it",
                ),
            );
        }
    }
}

fn check_seccomp(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let field = "spec.sandbox.securityContext.seccompProfile";
    let allowed = &case.policy.isolation.seccomp;
    let asked = enabled_context(case).and_then(|context| context.seccomp_profile.as_ref());
    let unconfined = asked.is_some_and(|profile| profile.type_ == SeccompProfileType::Unconfined);
    match asked.map(SeccompFilter::from_profile) {
        Some(None) if !unconfined => findings.deny(
            &case.subject,
            violation(
                field,
                "seccomp-invalid",
                "`localhostProfile` is the name of a file, goes with `type: Localhost`, and only with it",
                "use `type: RuntimeDefault` alone, or name the file",
            ),
        ),
        Some(None) => findings.deny(
            &case.subject,
            violation(
                field,
                "seccomp-unconfined",
                "nothing runs without a filter of system calls",
                "use `type: RuntimeDefault`",
            ),
        ),
        Some(Some(profile)) if !allowed.covers(&profile) => findings.deny(
            &case.subject,
            violation(
                field,
                "seccomp-profile",
                format!("the policy's filter is {}, not `{profile}`", allowed.quote_members()),
                "remove the profile, so that the policy's is used",
            ),
        ),
        // A profile on the node may only log: the operator knows which of them filter.
        Some(Some(profile @ SeccompFilter::Localhost(_))) if !case.policy.seccomp_choices.covers(&profile) => {
            findings.deny(
                &case.subject,
                violation(
                    field,
                    "seccomp-localhost",
                    format!("`{profile}` is a file of the node that the agent's policy does not name"),
                    "remove the profile, or name it in `sandboxPolicy.seccompProfile` of the agent's policy",
                ),
            );
        }
        _ => {}
    }
    if *allowed == Allowed::none() {
        findings.deny(
            &case.subject,
            violation(
                field,
                "seccomp-none-left",
                "floor and policy name different filters of system calls, or one that is none",
                "make `sandboxPolicy.seccompProfile` the same in both, and not `Unconfined`",
            ),
        );
    }
}

/// The security context of an enabled sandbox.
fn enabled_context<'c>(case: &RuleContext<'c, '_>) -> Option<&'c SandboxSecurityContext> {
    let sandbox = case.run.spec.sandbox.as_ref().filter(|sandbox| sandbox.enabled)?;
    sandbox.security_context.as_ref()
}

/// Whether the run has a container `sandbox`: where both kinds are enabled, agent-sandbox takes its place.
pub fn has_sandbox_container(case: &RuleContext<'_, '_>) -> bool {
    enabled_kinds(case) == (true, false)
}

/// Whether `sandbox` is enabled, and whether `agentSandbox` is.
pub fn enabled_kinds(case: &RuleContext<'_, '_>) -> (bool, bool) {
    let spec = &case.run.spec;
    let on = |sandbox: &Sandbox| sandbox.enabled;
    let sandbox = spec.sandbox.as_ref().is_some_and(on);
    (sandbox, spec.agent_sandbox.as_ref().is_some_and(|agent_sandbox| agent_sandbox.enabled))
}
