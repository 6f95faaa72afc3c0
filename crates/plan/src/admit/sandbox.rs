//! The two kinds of sandboxes of a run, and its seccomp filter.

use sympozium_api::Guarantee;
use sympozium_api::agent_run::RunMode;
use sympozium_api::sandbox::{Sandbox, SandboxSecurityContext, SeccompProfileType};
use sympozium_api::skill_pack::Executor;

use super::finding::{Findings, told};
use super::{Case, ResolvedPack, kernel};
use crate::image::Image;
use crate::policy::allowed::Allowed;
use crate::policy::isolation::Seccomp;

/// Checks requirements, exclusivity, RuntimeClass, security context and seccomp.
pub fn check(case: &Case<'_, '_>, findings: &mut Findings) {
    requirements(case, findings);
    exclusivity(case, findings);
    runtime_class(case, findings);
    security_context(case, findings);
    seccomp(case, findings);
}

fn requirements(case: &Case<'_, '_>, findings: &mut Findings) {
    let isolation = &case.policy.isolation;
    let (sandbox, agent_sandbox) = enabled(case);
    if isolation.sandbox_required && !sandbox && !agent_sandbox {
        findings.deny(
            &case.subject,
            told(
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
            told(
                "spec.agentSandbox",
                "agent-sandbox-required",
                "the policy requires agent-sandbox",
                "set `agentSandbox.enabled`",
            ),
        );
    }
    kernel::check(case, findings);
    attested(case, findings);
    for pack in &case.packs {
        let wants = pack.spec.runtime_requirements.as_ref().and_then(|it| it.sandbox);
        if wants == Some(true) && !sandbox && !agent_sandbox {
            findings.deny(
                &case.subject,
                told(
                    format!("spec.skills[{}].skillPackRef", pack.index),
                    "pack-needs-sandbox",
                    format!(
                        "pack `{}` asks for a sandbox, and the run has none",
                        crate::text::shown(pack.name.as_str())
                    ),
                    "set `sandbox.enabled` or `agentSandbox.enabled`",
                ),
            );
        }
        check_container(case, pack, findings);
    }
}

/// Checks that the commands of a pack run in the image that it needs, and that there is a container for a pack with
/// requirements.
fn check_container(case: &Case<'_, '_>, pack: &ResolvedPack<'_>, findings: &mut Findings) {
    let Some(needs) = &pack.spec.runtime_requirements else {
        return;
    };
    let sandbox = case.run.spec.sandbox.as_ref();
    let sandbox = sandbox.filter(|_| has_container(case));
    // Where the commands run, the image there (ours where none is named), and the field that sets it.
    let (place, image, subject, field) = match (pack.sidecar(), sandbox) {
        (Some(sidecar), _) => {
            ("its sidecar", Some(sidecar.image.as_str()), pack.subject(), "spec.runtimeRequirements.image")
        }
        (None, Some(sandbox)) => {
            ("the sandbox", sandbox.image.as_ref().map(|it| it.as_str()), case.subject.clone(), "spec.sandbox.image")
        }
        (None, None) => {
            let has_needs = needs.image.is_some() || needs.min_cpu.is_some() || needs.min_memory.is_some();
            if has_needs {
                findings.warn(
                    &case.subject,
                    told(
                        format!("spec.skills[{}].skillPackRef", pack.index),
                        "pack-without-container",
                        format!(
                            "pack `{}` says what its commands need, and has no container: it has no sidecar, and the run no sandbox",
                            crate::text::shown(pack.name.as_str())
                        ),
                        "set `sandbox.enabled`, or remove `image`, `minCPU` and `minMemory` from `runtimeRequirements`",
                    ),
                );
            }
            return;
        }
    };
    let Some(needed) = needs.image.as_ref().map(|it| it.as_str()) else {
        return;
    };
    if image.is_some_and(|image| is_same_image(image, needed)) {
        return;
    }
    let shown = crate::text::shown(needed);
    let image = image.map_or_else(|| "our image".to_owned(), |image| format!("`{}`", crate::text::shown(image)));
    findings.deny(
        &subject,
        told(
            field,
            "pack-needs-image",
            format!(
                "the commands of pack `{}` run in {place}, which is {image}, and need `{shown}`",
                crate::text::shown(pack.name.as_str())
            ),
            match pack.sidecar() {
                Some(_) => format!("set `sidecar.image` to `{shown}`, or remove it here"),
                None => format!("set `sandbox.image` to `{shown}`, or use another pack"),
            },
        ),
    );
}

/// Whether two references mean the same image: `alpine` is `docker.io/library/alpine`.
fn is_same_image(one: &str, other: &str) -> bool {
    one == other || matches!((Image::parse(one), Image::parse(other)), (Ok(one), Ok(other)) if one == other)
}

/// Checks that our executor runs every command, where the policy requires guarantees that only it can attest.
fn attested(case: &Case<'_, '_>, findings: &mut Findings) {
    let demanded = case.policy.isolation.guarantees.iter();
    let demanded: Vec<_> = demanded.filter(|it| **it != Guarantee::Kernel).collect();
    if demanded.is_empty() {
        return;
    }
    for pack in &case.packs {
        if pack.sidecar().is_some_and(|it| it.executor == Executor::Image) {
            findings.deny(
                &pack.subject(),
                told(
                    "spec.sidecar.executor",
                    "isolation-executor",
                    format!(
                        "the policy requires {} around every command, and nothing attests them for an image that starts itself",
                        crate::text::listed(demanded.iter().map(|it| it.as_str()))
                    ),
                    "set `executor: injected`, or use another pack",
                ),
            );
        }
    }
}

fn exclusivity(case: &Case<'_, '_>, findings: &mut Findings) {
    let (sandbox, agent_sandbox) = enabled(case);
    if sandbox && agent_sandbox {
        // Only a policy that the agent names counts here, not the floor, which applies to every run.
        if case.agent.policy_ref.is_some() {
            findings.deny(
                &case.subject,
                told(
                    "spec.sandbox.enabled",
                    "sandbox-exclusive",
                    "`sandbox` and `agentSandbox` are both enabled, and the agent is bound to a policy",
                    "enable one of them",
                ),
            );
        } else {
            findings.warn(
                &case.subject,
                told(
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
            told(
                "spec.mode",
                "agent-sandbox-server",
                "agent-sandbox is for runs that end, not for `mode: server`",
                "set `mode: task`, or disable `agentSandbox`",
            ),
        );
    }
}

fn runtime_class(case: &Case<'_, '_>, findings: &mut Findings) {
    let Some(agent_sandbox) = &case.run.spec.agent_sandbox else {
        return;
    };
    if !agent_sandbox.enabled {
        if agent_sandbox.runtime_class.is_some() || agent_sandbox.warm_pool_ref.is_some() {
            findings.warn(
                &case.subject,
                told(
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
            told(
                "spec.agentSandbox.runtimeClass",
                "runtime-class",
                format!(
                    "the policy allows the RuntimeClasses {}, not `{}`",
                    allowed.listed_text(),
                    crate::text::shown(class.as_str())
                ),
                "choose one of them",
            ),
        ),
        Some(_) => {}
        None if matches!(allowed, Allowed::Only(_)) => findings.deny(
            &case.subject,
            told(
                "spec.agentSandbox.runtimeClass",
                "runtime-class-missing",
                format!("the policy allows the RuntimeClasses {}, and the run names none", allowed.listed_text()),
                "name one of them, or set `agentSandboxPolicy.defaultRuntimeClass`",
            ),
        ),
        None => findings.warn(
            &case.subject,
            told(
                "spec.agentSandbox.runtimeClass",
                "runtime-class-none",
                "without a RuntimeClass the sandbox shares the node's kernel",
                "set `agentSandbox.runtimeClass` to `gvisor` or `kata`",
            ),
        ),
    }
}

/// Settings that would loosen what every container has, or that have no effect.
fn security_context(case: &Case<'_, '_>, findings: &mut Findings) {
    let sandbox = case.run.spec.sandbox.as_ref();
    if sandbox.is_some_and(|it| !it.enabled && it.security_context.is_some()) {
        findings.warn(
            &case.subject,
            told(
                "spec.sandbox.enabled",
                "sandbox-off",
                "`sandbox.securityContext` says how, but the sandbox is not enabled",
                "set `sandbox.enabled`, or remove the rest",
            ),
        );
    }
    let Some(context) = context(case) else {
        return;
    };
    for (field, value) in
        [("readOnlyRootFilesystem", context.read_only_root_filesystem), ("runAsNonRoot", context.run_as_non_root)]
    {
        if value == Some(false) {
            findings.deny(
                &case.subject,
                told(
                    format!("spec.sandbox.securityContext.{field}"),
                    "security-context-loosened",
                    format!("`{field}: false` would loosen what every container of a run has"),
                    "remove it",
                ),
            );
        }
    }
}

fn seccomp(case: &Case<'_, '_>, findings: &mut Findings) {
    let field = "spec.sandbox.securityContext.seccompProfile";
    let allowed = &case.policy.isolation.seccomp;
    let asked = context(case).and_then(|context| context.seccomp_profile.as_ref());
    let unconfined = asked.is_some_and(|it| it.type_ == SeccompProfileType::Unconfined);
    match asked.map(Seccomp::of) {
        Some(None) if !unconfined => findings.deny(
            &case.subject,
            told(
                field,
                "seccomp-invalid",
                "`localhostProfile` is the name of a file, goes with `type: Localhost`, and only with it",
                "use `type: RuntimeDefault` alone, or name the file",
            ),
        ),
        Some(None) => findings.deny(
            &case.subject,
            told(
                field,
                "seccomp-unconfined",
                "nothing runs without a filter of system calls",
                "use `type: RuntimeDefault`",
            ),
        ),
        Some(Some(profile)) if !allowed.covers(&profile) => findings.deny(
            &case.subject,
            told(
                field,
                "seccomp-profile",
                format!("the policy's filter is {}, not `{profile}`", allowed.listed_text()),
                "remove the profile, so that the policy's is used",
            ),
        ),
        // A profile on the node may only log: the operator knows which of them filter.
        Some(Some(profile @ Seccomp::Localhost(_))) if !case.policy.seccomp_choices.covers(&profile) => {
            findings.deny(
                &case.subject,
                told(
                    field,
                    "seccomp-localhost",
                    format!("`{profile}` is a file of the node that the agent's policy does not name"),
                    "remove the profile, or name it in `sandboxPolicy.seccompProfile` of the agent's policy",
                ),
            );
        }
        _ => {}
    }
    if *allowed == Allowed::nothing() {
        findings.deny(
            &case.subject,
            told(
                field,
                "seccomp-none-left",
                "floor and policy name different filters of system calls, or one that is none",
                "make `sandboxPolicy.seccompProfile` the same in both, and not `Unconfined`",
            ),
        );
    }
}

/// The security context of an enabled sandbox.
fn context<'c>(case: &Case<'c, '_>) -> Option<&'c SandboxSecurityContext> {
    let sandbox = case.run.spec.sandbox.as_ref().filter(|it| it.enabled)?;
    sandbox.security_context.as_ref()
}

/// Whether the run has a container `sandbox`: where both kinds are enabled, agent-sandbox takes its place.
pub fn has_container(case: &Case<'_, '_>) -> bool {
    enabled(case) == (true, false)
}

/// Whether `sandbox` is enabled, and whether `agentSandbox` is.
pub fn enabled(case: &Case<'_, '_>) -> (bool, bool) {
    let spec = &case.run.spec;
    let on = |sandbox: &Sandbox| sandbox.enabled;
    let sandbox = spec.sandbox.as_ref().is_some_and(on);
    (sandbox, spec.agent_sandbox.as_ref().is_some_and(|it| it.enabled))
}
