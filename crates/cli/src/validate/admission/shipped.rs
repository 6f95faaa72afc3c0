//! Names of shipped objects: an object of the files does not replace the shipped one by having its name.

use sympozium_api::AgentRun;
use sympozium_api::agent::SkillRef;
use sympozium_plan::admit::{Reason, Subject, wanted_policy};

use super::super::object::Object;
use super::case::Case;
use crate::manifests::problem::quoted;
use crate::origin::{COMMAND_LINE, Origin, PACK, POLICY, ResolvedFrom};

#[derive(Clone, Copy)]
pub struct Among<'a> {
    pub objects: &'a [Object],
    pub files: &'a [String],
}

/// An object of the files that has the name of a shipped one and differs from it, for one run.
struct Clash {
    /// The kind of both.
    what: &'static str,
    name: String,
    /// The index of the object of the files.
    index: usize,
    /// The object that refers to it; `field` has the reference.
    subject: Subject,
    field: String,
    weight: Weight,
}

/// Whether the object of the files can be permitted.
enum Weight {
    /// It is in the run's namespace: a policy can allow shadowing. Admission denies with this rule if none does.
    Ambiguous(&'static str),
    /// It claims to be in the system namespace, which nothing can permit.
    Certain,
}

/// The violations of admission, with better messages for names of shipped objects, and with those that admission cannot
/// know.
pub fn reasons(
    case: &Case<'_>,
    run: &AgentRun,
    namespace: &str,
    of_admission: &[Reason],
    among: Among<'_>,
) -> Vec<Reason> {
    let mut reasons = of_admission.to_vec();
    for clash in clashes(case, run, namespace) {
        let (message, remedy) = clash.words(among);
        let known = match clash.weight {
            Weight::Ambiguous(rule) => {
                let is_it = |it: &&mut Reason| it.rule == rule && it.field == clash.field;
                reasons.iter_mut().find(is_it)
            }
            Weight::Certain => {
                reasons.push(Reason {
                    subject: clash.subject,
                    field: clash.field,
                    rule: "shipped-name",
                    message,
                    remedy,
                    missing: None,
                });
                continue;
            }
        };
        if let Some(reason) = known {
            reason.message = message;
            reason.remedy = remedy;
        }
    }
    reasons
}

fn clashes(case: &Case<'_>, run: &AgentRun, namespace: &str) -> Vec<Clash> {
    let mut clashes = Vec::new();
    let mut add = |what, name: &str, own, impostor, rule, subject: &Subject, field: &str| {
        let found = [(own, Weight::Ambiguous(rule)), (impostor, Weight::Certain)];
        for (index, weight) in found {
            let Some(index) = index else { continue };
            clashes.push(Clash {
                what,
                name: name.to_owned(),
                index,
                subject: subject.clone(),
                field: field.to_owned(),
                weight,
            });
        }
    };
    let found = &case.found_policy;
    if let Some(name) = wanted_policy(case.agents) {
        let (kind, metadata) = match (case.agents.agent, case.agents.instance) {
            (None, Some(instance)) => ("SympoziumInstance", Some(&instance.metadata)),
            (agent, _) => ("Agent", agent.map(|it| &it.metadata)),
        };
        let agent = metadata.and_then(|it| it.name.as_deref());
        let subject = Subject::new(kind, Some(namespace), agent.unwrap_or_default());
        let own = found.own.filter(|_| found.is_shipped());
        let (name, field) = (name.as_str(), "spec.policyRef");
        add(POLICY, name, own, found.impostor, "policy-ambiguous", &subject, field);
    }
    let of_agent = case.agents.spec().map(|it| it.skills.as_slice());
    let skills = match run.spec.skills.as_slice() {
        [] => of_agent.unwrap_or_default(),
        skills => skills,
    };
    let subject = Subject::new("AgentRun", Some(namespace), run.metadata.name.as_deref().unwrap_or_default());
    for (name, found) in &case.found_packs {
        let is_it = |it: &SkillRef| it.skill_pack_ref.as_ref() == Some(name);
        let index = skills.iter().position(is_it).unwrap_or_default();
        let field = format!("spec.skills[{index}].skillPackRef");
        let own = found.own.filter(|_| found.is_shipped());
        let name = name.as_str();
        add(PACK, name, own, found.impostor, "pack-ambiguous", &subject, &field);
    }
    clashes
}

impl Clash {
    /// The message and the hint.
    fn words(&self, among: Among<'_>) -> (String, String) {
        let object = &among.objects[self.index];
        let file = &among.files[object.file];
        let message = format!(
            "{} {} is shipped, and {file} has another one of that name in namespace {}",
            self.what,
            quoted(&self.name),
            quoted(&object.name.namespace)
        );
        let rename = "give yours another name";
        let remedy = match (self.what, &self.weight) {
            (POLICY, _) => {
                format!("{rename}, or choose it by its file: sympozium run --policy ./FILE.yaml")
            }
            (_, Weight::Ambiguous(_)) => {
                format!("{rename}, or set `packPolicy.allowShadowing` where yours is to stand for it")
            }
            (_, Weight::Certain) => rename.to_owned(),
        };
        (message, remedy)
    }
}

/// Where the policy and the packs of a run came from, as admission chooses them.
pub fn origins(case: &Case<'_>, among: Among<'_>) -> Vec<ResolvedFrom> {
    let of = |kind: &str, name: &str, own: Option<usize>, system: Option<usize>, shipped| {
        let from = match own.or(system) {
            Some(index) => {
                let file = &among.files[among.objects[index].file];
                match file.as_str() {
                    COMMAND_LINE => Origin::CommandLine,
                    path => Origin::File { path: path.to_owned() },
                }
            }
            None if shipped => Origin::Shipped,
            None => return None,
        };
        Some(ResolvedFrom { kind: kind.to_owned(), name: name.to_owned(), from })
    };
    let policy = wanted_policy(case.agents).and_then(|name| {
        let found = &case.found_policy;
        let is_shipped = found.is_shipped();
        of(POLICY, name.as_str(), found.own, found.system, is_shipped)
    });
    let packs = case.found_packs.iter().filter_map(|(name, found)| {
        let is_shipped = found.is_shipped();
        of(PACK, name.as_str(), found.own, found.system, is_shipped)
    });
    policy.into_iter().chain(packs).collect()
}
