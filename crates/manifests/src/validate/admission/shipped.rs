//! Names of shipped objects: an object of the files does not replace the shipped one by having its name.

use sympozium_api::AgentRun;
use sympozium_api::agent::SkillRef;
use sympozium_api::origin::{COMMAND_LINE, ObjectOrigin, Origin, PACK_KIND, POLICY_KIND};
use sympozium_api::text::quote;
use sympozium_plan::admit::{Subject, Violation, referenced_policy};

use super::super::object::Object;
use super::resolve::ResolvedRun;

#[derive(Clone, Copy)]
pub struct LoadedObjects<'a> {
    pub objects: &'a [Object],
    pub files: &'a [String],
}

/// An object of the files that has the name of a shipped one and differs from it, for one run.
struct NameClash {
    /// The kind of both.
    kind: &'static str,
    name: String,
    /// The index of the object of the files.
    index: usize,
    /// The object that refers to it; `field` has the reference.
    subject: Subject,
    field: String,
    consent: ClashKind,
}

/// Whether the object of the files can be permitted.
enum ClashKind {
    /// It is in the run's namespace: a policy can allow shadowing. Admission denies with this rule if none does.
    Ambiguous(&'static str),
    /// It claims to be in the system namespace, which nothing can permit.
    Forbidden,
}

/// The violations of admission, with better messages for names of shipped objects, and with those that admission cannot
/// know.
pub fn add_name_clashes(
    case: &ResolvedRun<'_>,
    run: &AgentRun,
    namespace: &str,
    of_admission: &[Violation],
    among: LoadedObjects<'_>,
) -> Vec<Violation> {
    let mut reasons = of_admission.to_vec();
    for clash in find_clashes(case, run, namespace) {
        let (message, remedy) = clash.message_and_hint(among);
        let known = match clash.consent {
            ClashKind::Ambiguous(rule) => {
                let is_it = |violation: &&mut Violation| violation.rule == rule && violation.field == clash.field;
                reasons.iter_mut().find(is_it)
            }
            ClashKind::Forbidden => {
                reasons.push(Violation {
                    subject: clash.subject,
                    field: clash.field,
                    rule: "shipped-name",
                    message,
                    hint: remedy,
                    missing: None,
                });
                continue;
            }
        };
        if let Some(reason) = known {
            reason.message = message;
            reason.hint = remedy;
        }
    }
    reasons
}

fn find_clashes(case: &ResolvedRun<'_>, run: &AgentRun, namespace: &str) -> Vec<NameClash> {
    let mut clashes = Vec::new();
    let mut add = |what, name: &str, own, impostor, rule, subject: &Subject, field: &str| {
        let found = [(own, ClashKind::Ambiguous(rule)), (impostor, ClashKind::Forbidden)];
        for (index, weight) in found {
            let Some(index) = index else { continue };
            clashes.push(NameClash {
                kind: what,
                name: name.to_owned(),
                index,
                subject: subject.clone(),
                field: field.to_owned(),
                consent: weight,
            });
        }
    };
    let found = &case.policy;
    let agents = case.resolved.agents();
    if let Some(name) = referenced_policy(agents) {
        let (kind, metadata) = match (agents.agent, agents.instance) {
            (None, Some(instance)) => ("SympoziumInstance", Some(&instance.metadata)),
            (agent, _) => ("Agent", agent.map(|agent| &agent.metadata)),
        };
        let agent = metadata.and_then(|metadata| metadata.name.as_deref());
        let subject = Subject::new(kind, Some(namespace), agent.unwrap_or_default());
        let own = found.own.filter(|_| found.is_shipped());
        let (name, field) = (name.as_str(), "spec.policyRef");
        add(POLICY_KIND, name, own, found.impostor, "policy-ambiguous", &subject, field);
    }
    let of_agent = agents.spec().map(|spec| spec.skills.as_slice());
    let skills = match run.spec.skills.as_slice() {
        [] => of_agent.unwrap_or_default(),
        skills => skills,
    };
    let subject = Subject::new("AgentRun", Some(namespace), run.metadata.name.as_deref().unwrap_or_default());
    for (name, found) in &case.packs {
        let is_it = |skill_ref: &SkillRef| skill_ref.skill_pack_ref.as_ref() == Some(name);
        let index = skills.iter().position(is_it).unwrap_or_default();
        let field = format!("spec.skills[{index}].skillPackRef");
        let own = found.own.filter(|_| found.is_shipped());
        let name = name.as_str();
        add(PACK_KIND, name, own, found.impostor, "pack-ambiguous", &subject, &field);
    }
    clashes
}

impl NameClash {
    fn message_and_hint(&self, among: LoadedObjects<'_>) -> (String, String) {
        let object = &among.objects[self.index];
        let file = &among.files[object.file];
        let message = format!(
            "{} {} is a shipped object, and {file} has a different one with that name in namespace {}",
            self.kind,
            quote(&self.name),
            quote(&object.name.namespace)
        );
        let rename = "rename the object of the file";
        let remedy = match (self.kind, &self.consent) {
            (POLICY_KIND, _) => {
                format!("{rename}, or select it by its file: sympozium run --policy ./FILE.yaml")
            }
            (_, ClashKind::Ambiguous(_)) => {
                format!("{rename}, or set `packPolicy.allowShadowing` to use it instead of the shipped one")
            }
            (_, ClashKind::Forbidden) => rename.to_owned(),
        };
        (message, remedy)
    }
}

/// Where the policy and the packs of a run came from, as admission chooses them.
pub fn origins(case: &ResolvedRun<'_>, among: LoadedObjects<'_>) -> Vec<ObjectOrigin> {
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
        Some(ObjectOrigin { kind: kind.to_owned(), name: name.to_owned(), from })
    };
    let policy = referenced_policy(case.resolved.agents()).and_then(|name| {
        let found = &case.policy;
        let is_shipped = found.is_shipped();
        of(POLICY_KIND, name.as_str(), found.own, found.system, is_shipped)
    });
    let packs = case.packs.iter().filter_map(|(name, found)| {
        let is_shipped = found.is_shipped();
        of(PACK_KIND, name.as_str(), found.own, found.system, is_shipped)
    });
    policy.into_iter().chain(packs).collect()
}
