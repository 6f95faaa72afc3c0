//! The packs of a run, and the namespace that each comes from.

use std::collections::BTreeMap;

use sympozium_api::SkillPackSpec;
use sympozium_api::agent::SkillRef;
use sympozium_api::agent_run::RunMode;
use sympozium_api::names::SkillPackName;
use sympozium_api::skill_pack::Sidecar;
use sympozium_api::text::quote;

use super::input::{PackObject, Permissions};
use super::tools::SANDBOX_PACK;
use super::violation::{Findings, violation};
use super::{RuleContext, Subject};
use crate::policy::packs::PackId;

/// A pack as a run uses it.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedPack<'a> {
    /// The name of the pack.
    pub name: SkillPackName,
    /// The namespace that it was found in.
    pub namespace: String,
    /// The UID of the object, once it has one.
    pub uid: Option<String>,
    /// Whether it is of the run's namespace or of the system's.
    pub origin: PackOrigin,
    /// The spec of the pack.
    pub spec: &'a SkillPackSpec,
    /// The run's parameters for it.
    pub params: BTreeMap<String, String>,
    /// The permissions of its author, where they are known.
    pub author: Option<&'a Permissions>,
    /// Its index in the run's list.
    pub(super) index: usize,
    /// Whether the run starts its sidecar.
    pub starts_sidecar: bool,
}

/// The namespace of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackOrigin {
    /// The run's namespace.
    Own,
    /// The system namespace.
    System,
}

impl<'a> ResolvedPack<'a> {
    /// The sidecar that the run starts for it.
    pub fn sidecar(&self) -> Option<&'a Sidecar> {
        self.spec.sidecar.as_ref().filter(|_| self.starts_sidecar)
    }

    /// The pack, as policies name it.
    pub(super) fn id<'p>(&'p self, case: &RuleContext<'_, '_>) -> PackId<'p> {
        PackId {
            namespace: &self.namespace,
            name: self.name.as_str(),
            is_system: self.namespace == case.input.settings.system_namespace,
        }
    }

    /// The pack, as messages name it.
    pub(super) fn subject(&self) -> Subject {
        Subject::new("SkillPack", Some(&self.namespace), self.name.as_str())
    }
}

/// Resolves the pack of each skill.
pub fn resolve<'a>(case: &RuleContext<'_, 'a>, findings: &mut Findings) -> Vec<ResolvedPack<'a>> {
    check_skills(&case.subject, &case.run.spec.skills, findings);
    let mut packs: Vec<ResolvedPack<'a>> = Vec::new();
    for (index, skill) in case.run.spec.skills.iter().enumerate() {
        let Some(name) = &skill.skill_pack_ref else {
            continue;
        };
        if packs.iter().any(|pack| pack.name == *name) {
            continue;
        }
        let field = format!("spec.skills[{index}].skillPackRef");
        let shown = quote(name.as_str());
        if name == SANDBOX_PACK {
            let message = format!("{shown} is the name of the run's own sandbox");
            findings.deny(&case.subject, violation(field, "pack-name-reserved", message, "give the pack another name"));
            continue;
        }
        let chosen = choose_candidate(case, name, field.clone(), findings);
        let pack = chosen.map(|(object, origin)| resolve_pack(case, index, name, object, origin, findings));
        check_allowed(case, name, pack.as_ref(), field, findings);
        packs.extend(pack);
    }
    packs
}

/// Checks that the policy allows a pack; for a missing one, that it allows one of the namespaces where it may appear.
fn check_allowed(
    case: &RuleContext<'_, '_>,
    name: &SkillPackName,
    pack: Option<&ResolvedPack<'_>>,
    field: String,
    findings: &mut Findings,
) {
    let own = case.input.namespace;
    let places = match pack {
        Some(pack) => vec![pack.namespace.as_str()],
        None => vec![own, &case.input.settings.system_namespace],
    };
    let ids: Vec<String> = places.iter().map(|namespace| format!("{namespace}/{name}")).collect();
    if ids.iter().any(|id| case.policy.packs.covers(id)) {
        return;
    }
    let id = crate::text::quote_list(ids.iter().take(1));
    let allowed = case.policy.packs.quote_members();
    findings.deny(
        &case.subject,
        violation(
            field,
            "pack-not-allowed",
            format!("the policy allows the packs {allowed}, not {id}"),
            format!("remove the skill, or add {id} to `packPolicy.allowedPacks`"),
        ),
    );
}

/// Checks that every skill names something, and no pack is listed twice.
pub fn check_skills(subject: &Subject, skills: &[SkillRef], findings: &mut Findings) {
    for (index, skill) in skills.iter().enumerate() {
        let field = format!("spec.skills[{index}].skillPackRef");
        let detail = match &skill.skill_pack_ref {
            None if skill.config_map_ref.is_none() => {
                let message = "the skill names no pack and no ConfigMap";
                violation(field, "skill-unnamed", message, "set `skillPackRef`")
            }
            Some(name) if skills[..index].iter().any(|skill| skill.skill_pack_ref.as_ref() == Some(name)) => {
                let message = format!("pack {} is listed twice", quote(name.as_str()));
                violation(field, "skill-twice", message, "list each pack once")
            }
            _ => continue,
        };
        findings.deny(subject, detail);
    }
}

/// Chooses between the two namespaces.
fn choose_candidate<'a>(
    case: &RuleContext<'_, 'a>,
    name: &SkillPackName,
    field: String,
    findings: &mut Findings,
) -> Option<(PackObject<'a>, PackOrigin)> {
    let candidates = case.input.packs.get(name).copied().unwrap_or_default();
    let shown = quote(name.as_str());
    let (own, system) = (case.input.namespace, &case.input.settings.system_namespace);
    match (candidates.own, candidates.system) {
        (Some(_), Some(_)) if !case.policy.shadowing => {
            findings.deny(
                &case.subject,
                violation(
                    field,
                    "pack-ambiguous",
                    format!("pack {shown} is in namespace `{own}` and in `{system}`"),
                    "rename the one in the run's namespace, or set `packPolicy.allowShadowing`",
                ),
            );
            None
        }
        (Some(pack), _) => Some((pack, PackOrigin::Own)),
        (None, Some(_)) if !case.policy.system_packs => {
            findings.deny(
                &case.subject,
                violation(
                    field,
                    "pack-of-system",
                    format!("pack {shown} is in namespace `{system}`, whose packs the policy forbids"),
                    "create a pack in the run's namespace, or set `packPolicy.allowSystemPacks`",
                ),
            );
            None
        }
        (None, Some(pack)) => Some((pack, PackOrigin::System)),
        (None, None) => {
            findings.deny_missing(
                &case.subject,
                violation(
                    field,
                    "pack-missing",
                    format!("there is no pack {shown} in namespace `{own}` or `{system}`"),
                    "create it, or correct the name",
                ),
                Subject::new("SkillPack", Some(own), name.as_str()),
            );
            None
        }
    }
}

fn resolve_pack<'a>(
    case: &RuleContext<'_, 'a>,
    index: usize,
    name: &SkillPackName,
    object: PackObject<'a>,
    origin: PackOrigin,
    findings: &mut Findings,
) -> ResolvedPack<'a> {
    let spec = &object.pack.spec;
    let needs_server = spec.sidecar.as_ref().is_some_and(|sidecar| sidecar.requires_server == Some(true));
    let starts = !needs_server || case.run.spec.mode == RunMode::Server;
    if !starts {
        findings.warn(
            &case.subject,
            violation(
                format!("spec.skills[{index}].skillPackRef"),
                "pack-needs-server",
                format!("pack {} is for runs in server mode; its sidecar is left out", quote(name.as_str())),
                "set `mode: server`, or remove the skill",
            ),
        );
    }
    let namespace = match origin {
        PackOrigin::Own => case.input.namespace,
        PackOrigin::System => &case.input.settings.system_namespace,
    };
    let params = &case.run.spec.skills.get(index).map(|skill| skill.params.clone());
    ResolvedPack {
        name: name.clone(),
        namespace: namespace.to_owned(),
        uid: object.pack.metadata.uid.clone(),
        origin,
        spec,
        params: params.clone().unwrap_or_default(),
        author: object.author,
        index,
        starts_sidecar: starts,
    }
}
