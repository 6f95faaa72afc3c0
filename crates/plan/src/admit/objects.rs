//! Checks of single objects, when they are written.

use sympozium_api::skill_pack::Executor;
use sympozium_api::text::quote;
use sympozium_api::{AgentSpec, ModelSpec, SkillPack, SkillPackSpec, SympoziumPolicySpec, SympoziumScheduleSpec};

use super::grants::{Author, check_author, check_ceilings, check_size};
use super::tools::SANDBOX_PACK;
use super::violation::{Findings, violation};
use super::{
    Denial, Permissions, Subject, env, hooks, images, network, packs, reserved_names, resources, skills, tools,
    unused_fields, volumes,
};
use crate::policy::EffectivePolicy;
use crate::rbac::Scope;

/// Violations and warnings of a pack. `author` holds the permissions of its author, who may grant only those.
pub fn admit_pack(pack: &SkillPack, namespace: Option<&str>, author: Option<&Permissions>) -> Denial {
    let mut findings = Findings::default();
    let name = pack.metadata.name.as_deref().unwrap_or_default();
    let subject = Subject::new("SkillPack", namespace, name);
    if name == SANDBOX_PACK {
        let message = format!("`{name}` is the name of every run's own sandbox");
        findings
            .deny(&subject, violation("metadata.name", "pack-name-reserved", message, "give the pack another name"));
    }
    check_pack(&subject, &pack.spec, &mut findings);
    if let Some(sidecar) = &pack.spec.sidecar {
        images::check_image(&subject, "spec.sidecar.image", sidecar.image.as_str(), None, &mut findings);
        env::check_container_env(&subject, "spec.sidecar.env", &sidecar.env, &mut findings);
        volumes::check_sidecar(&subject, sidecar, &mut findings);
        let author = Author { description: "the pack's author", permissions: author };
        let all = [("spec.sidecar.rbac", sidecar.rbac.as_slice()), ("spec.sidecar.clusterRBAC", &sidecar.cluster_rbac)];
        if !check_size(&subject, &all, &mut findings) {
            return into_denial(findings);
        }
        for (field, rules, scope) in [
            ("spec.sidecar.rbac", &sidecar.rbac, Scope::Namespace),
            ("spec.sidecar.clusterRBAC", &sidecar.cluster_rbac, Scope::Cluster),
        ] {
            check_ceilings(&subject, field, rules, scope, None, &mut findings);
            check_author(&subject, field, rules, scope, author, &mut findings);
        }
    }
    into_denial(findings)
}

/// The rules of a pack that apply without a run; runs check them again.
pub(super) fn check_pack(subject: &Subject, spec: &SkillPackSpec, findings: &mut Findings) {
    skills::check(subject, spec, findings);
    reserved_names::check_pack(subject, spec, findings);
    unused_fields::check_pack(subject, spec, findings);
    resources::check_requirements(subject, spec, findings);
    let Some(sidecar) = &spec.sidecar else {
        return;
    };
    if sidecar.secret_mount_path.is_some() && sidecar.secret_ref.is_none() {
        let message = "`secretMountPath` says where, but no Secret is named";
        findings.deny(
            subject,
            violation("spec.sidecar.secretMountPath", "secret-unnamed", message, "name it in `secretRef`"),
        );
    }
    if sidecar.executor == Executor::Injected && !sidecar.command.is_empty() {
        let message = "with `executor: injected` our executor is what starts";
        findings.deny(subject, violation("spec.sidecar.command", "executor-command", message, "leave `command` out"));
    }
    tools::check_declarations(subject, sidecar, findings);
    network::check_hosts(subject, sidecar, findings);
    let resources = sidecar.resources.as_ref();
    for (field, quantity) in [
        ("spec.sidecar.resources.cpu", resources.and_then(|resources| resources.cpu.as_ref())),
        ("spec.sidecar.resources.memory", resources.and_then(|resources| resources.memory.as_ref())),
    ] {
        resources::check_limit(subject, field, quantity, findings);
    }
}

/// Violations and warnings of an agent, of either kind.
///
/// `has_namesake` says whether there is an object of the other kind with its name: the two kinds share one name space.
pub fn admit_agent(subject: &Subject, spec: &AgentSpec, has_namesake: bool) -> Denial {
    let mut findings = Findings::default();
    if has_namesake {
        findings.deny(
            subject,
            violation(
                "metadata.name",
                "agent-ambiguous",
                format!("{} is both an Agent and a SympoziumInstance", quote(&subject.name)),
                "choose another name; the two kinds are two names for one thing",
            ),
        );
    }
    packs::check_skills(subject, &spec.skills, &mut findings);
    unused_fields::check_agent(subject, spec, &mut findings);
    volumes::check_agent(subject, &spec.volumes, &spec.volume_mounts, &mut findings);
    let config = &spec.agents.default;
    env::check_agent_env(subject, "spec.agents.default.env", &config.env, &mut findings);
    if let Some(timeout) = &config.run_timeout {
        let most = crate::duration::MAX_RUN_TIMEOUT;
        super::timeouts::check_timeout(subject, "spec.agents.default.runTimeout", timeout, most, &mut findings);
    }
    if let Some(lifecycle) = &config.lifecycle {
        hooks::check_hooks(subject, "spec.agents.default.lifecycle", lifecycle, &mut findings);
        check_ceilings(
            subject,
            "spec.agents.default.lifecycle.rbac",
            &lifecycle.rbac,
            Scope::Namespace,
            None,
            &mut findings,
        );
    }
    into_denial(findings)
}

/// Permissions of an agent's hooks that its author does not hold. Runs inherit these hooks.
pub fn admit_agent_author(subject: &Subject, spec: &AgentSpec, author: &Permissions) -> Denial {
    let mut findings = Findings::default();
    if let Some(hooks) = &spec.agents.default.lifecycle {
        let author = Author { description: "the agent's author", permissions: Some(author) };
        let field = "spec.agents.default.lifecycle.rbac";
        check_author(subject, field, &hooks.rbac, Scope::Namespace, author, &mut findings);
    }
    into_denial(findings)
}

/// Invalid entries of a policy. They never allow more than was meant, so that a mistake shows as a denial.
pub fn admit_policy(subject: &Subject, spec: &SympoziumPolicySpec) -> Denial {
    let mut findings = Findings::default();
    for entry in EffectivePolicy::invalid_entries(spec) {
        let remedy = format!("correct it; as it stands, {}", entry.effect);
        findings.deny(subject, violation(format!("spec.{}", entry.field), "policy-entry", entry.reason, remedy));
    }
    unused_fields::check_policy(subject, spec, &mut findings);
    if spec.network_policy.as_ref().is_some_and(|network_policy| network_policy.allow_dns) {
        findings.warn(
            subject,
            violation(
                "spec.networkPolicy.allowDNS",
                "dns-by-gateway",
                "runs have no DNS, with `allowDNS: true` as without: the gateway looks up the hosts that they reach",
                "set it to `false`, which every run meets",
            ),
        );
    }
    into_denial(findings)
}

/// Warnings of a schedule.
pub fn admit_schedule(subject: &Subject, spec: &SympoziumScheduleSpec) -> Denial {
    let mut findings = Findings::default();
    unused_fields::check_schedule(subject, spec, &mut findings);
    into_denial(findings)
}

/// Violations and warnings of a model server. It is not part of a run, so it is checked when it is written.
pub fn admit_model(subject: &Subject, spec: &ModelSpec) -> Denial {
    let mut findings = Findings::default();
    let field = "spec.inference.env";
    env::check_container_env(subject, field, &spec.inference.env, &mut findings);
    unused_fields::check_model(subject, spec, &mut findings);
    into_denial(findings)
}

fn into_denial(findings: Findings) -> Denial {
    Denial { violations: findings.violations, warnings: findings.warnings }
}
