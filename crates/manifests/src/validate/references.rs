//! Checks that the objects which an object names exist.
//!
//! A file need not contain everything: a Secret belongs elsewhere, and a policy may be in the cluster already. So an
//! unresolved reference is a warning, and an error only when the files claim to be complete (`--strict`).

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::names;
use sympozium_api::text::quote;

use super::finding::{Finding, FindingSeverity, Findings, ObjectName, ValidationStage};
use super::object::{Object, ObjectKind};
use super::suggest;
use crate::built_in;
use crate::kinds::Kind;
use crate::tree::{Node, Path};

/// What a field refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// An `Agent` or a `SympoziumInstance`: two objects of these kinds cannot have one name.
    Agent,
    SkillPack,
    Policy,
    Run,
    /// As `name` or `namespace/name`.
    Model,
    Secret,
    ConfigMap,
}

/// The maximum number of names that a misspelt one is compared with: enough for any set of files that a person wrote,
/// and a bound for others.
const MAX_SUGGESTED: usize = 100;

/// Whether the files claim to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// Missing objects may be in the cluster.
    Partial,
    /// Missing objects are errors.
    Complete,
}

/// Resolves every reference of every object, and reports names that two objects have.
pub fn check(objects: &[Object], files: &[String], completeness: Completeness, findings: &mut Findings) {
    let index = Index::build(objects, files, findings);
    let checker = Checker { index, files, completeness };
    for object in objects {
        checker.check(object, findings);
    }
}

/// Objects by kind, namespace and name.
struct Index<'a> {
    by_kind: HashMap<&'a str, Vec<&'a ObjectName>>,
    exact: HashMap<(&'a str, &'a str, &'a str), &'a Object>,
}

impl<'a> Index<'a> {
    /// Also reports duplicate objects.
    fn build(objects: &'a [Object], files: &[String], findings: &mut Findings) -> Self {
        let mut index = Self { by_kind: HashMap::new(), exact: HashMap::new() };
        for object in objects.iter().filter(|object| !object.name.name.is_empty()) {
            let kind = naming_kind(&object.kind);
            let name = &object.name;
            index.by_kind.entry(kind).or_default().push(name);
            let key = (kind, name.namespace.as_str(), name.name.as_str());
            match index.exact.get(&key) {
                None => {
                    index.exact.insert(key, object);
                }
                Some(first) if matches!(object.kind, ObjectKind::Sympozium(_)) => {
                    findings.add(duplicate_finding(first, object, files));
                }
                Some(_) => {}
            }
        }
        index
    }

    fn contains(&self, kind: &str, namespace: &str, name: &str) -> bool {
        self.exact.contains_key(&(kind, namespace, name))
    }
}

/// Kinds that share their names count as one.
fn naming_kind(kind: &ObjectKind) -> &str {
    match kind {
        ObjectKind::Sympozium(Kind::SympoziumInstance) => Kind::Agent.name(),
        ObjectKind::Sympozium(kind) => kind.name(),
        ObjectKind::Other(kind) => kind,
    }
}

fn duplicate_finding(first: &Object, second: &Object, files: &[String]) -> Finding {
    let location = format!("{}:{}", files[first.file], first.node.at.line);
    let message = if first.kind == second.kind {
        format!("duplicate {}; the first one is in {location}", second.name.kind)
    } else {
        format!(
            "the {} in {location} has the same name; Agent and SympoziumInstance share their names",
            first.name.kind
        )
    };
    let at = second.node.locate("metadata.name");
    Finding {
        severity: FindingSeverity::Error,
        stage: ValidationStage::Reference,
        rule: "duplicate-object".to_owned(),
        file: files[second.file].clone(),
        line: at.line,
        column: at.column,
        object: Some(second.name.clone()),
        field: "metadata.name".to_owned(),
        message,
        hint: Some("remove one of the two, or rename it".to_owned()),
    }
}

struct Checker<'a> {
    index: Index<'a>,
    files: &'a [String],
    completeness: Completeness,
}

impl Checker<'_> {
    fn check(&self, object: &Object, findings: &mut Findings) {
        let ObjectKind::Sympozium(kind) = object.kind else {
            return;
        };
        for (field, target) in kind.row().references {
            let steps: Vec<&str> = field.split('.').collect();
            for_each_text(&object.node, &steps, Path::Root, &mut |node, path, name| {
                // An invalid name is reported already.
                if is_name(name) && !self.resolves(object, *target, name) {
                    let mut finding = self.missing_finding(object, node, path, *target, name);
                    // The search for a suggestion costs more than everything else.
                    if !findings.is_full() {
                        finding.hint = Some(self.hint(object, *target, name));
                    }
                    findings.add(finding);
                }
            });
        }
    }

    fn resolves(&self, object: &Object, target: Target, name: &str) -> bool {
        let own = object.name.namespace.as_str();
        let has = |kind: &str, namespace: &str| self.index.contains(kind, namespace, name);
        match target {
            Target::Agent => has("Agent", own),
            Target::Run => has("AgentRun", own),
            Target::Secret => has("Secret", own),
            Target::ConfigMap => has("ConfigMap", own),
            // What an installation ships resolves from every namespace.
            Target::SkillPack => {
                has("SkillPack", own) || has("SkillPack", SYSTEM_NAMESPACE) || built_in::pack_text(name).is_some()
            }
            Target::Policy => {
                has("SympoziumPolicy", own)
                    || has("SympoziumPolicy", SYSTEM_NAMESPACE)
                    || built_in::policy_text(name).is_some()
            }
            Target::Model => {
                let (namespace, name) = name.split_once('/').unwrap_or((own, name));
                self.index.contains("Model", namespace, name)
            }
        }
    }

    fn missing_finding(&self, object: &Object, node: &Node, path: Path<'_>, target: Target, name: &str) -> Finding {
        let message = format!("{} {} is not among the files", target.noun(), quote(name));
        Finding {
            severity: match self.completeness {
                Completeness::Partial => FindingSeverity::Warning,
                Completeness::Complete => FindingSeverity::Error,
            },
            stage: ValidationStage::Reference,
            rule: "missing-reference".to_owned(),
            file: self.files[object.file].clone(),
            line: node.at.line,
            column: node.at.column,
            object: Some(object.name.clone()),
            field: path.to_string(),
            message,
            hint: None,
        }
    }

    fn hint(&self, object: &Object, target: Target, name: &str) -> String {
        let known = self.index.by_kind.get(target.kind());
        let known = known.map_or(&[] as &[_], Vec::as_slice);
        let other_namespace = known.iter().find(|object| object.name == name);
        if let Some(found) = other_namespace {
            return format!(
                "one exists in namespace `{}`, but this object is in `{}`",
                found.namespace, object.name.namespace
            );
        }
        let built_in = match target {
            Target::SkillPack => built_in::PACKS,
            Target::Policy => built_in::POLICIES,
            _ => &[],
        };
        let built_in = built_in.iter().map(|(name, _)| *name);
        let names = known.iter().take(MAX_SUGGESTED).map(|object| object.name.as_str());
        if let Some(meant) = suggest::closest(name, names.chain(built_in)) {
            return format!("did you mean `{meant}`?");
        }
        match self.completeness {
            Completeness::Partial => "it must exist in the cluster or in one of the files".to_owned(),
            Completeness::Complete => {
                "add the file that contains it, or omit --strict if it is in the cluster".to_owned()
            }
        }
    }
}

impl Target {
    fn kind(self) -> &'static str {
        match self {
            Self::Agent => "Agent",
            Self::SkillPack => "SkillPack",
            Self::Policy => "SympoziumPolicy",
            Self::Run => "AgentRun",
            Self::Model => "Model",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Agent => "Agent or SympoziumInstance",
            other => other.kind(),
        }
    }
}

/// Whether this is a valid name, for models also with a namespace before it.
fn is_name(text: &str) -> bool {
    let name = text.rsplit_once('/').map_or(text, |(_, name)| name);
    names::ObjectName::from(name).check().is_ok()
}

/// Calls `found` for each text at `steps` below `node`.
fn for_each_text(node: &Node, steps: &[&str], path: Path<'_>, found: &mut dyn FnMut(&Node, Path<'_>, &str)) {
    let Some((step, rest)) = steps.split_first() else {
        if let Some(text) = node.as_text() {
            found(node, path, text);
        }
        return;
    };
    let (name, is_list) = match step.strip_suffix("[]") {
        Some(name) => (name, true),
        None => (*step, false),
    };
    let Some(inner) = node.get(name) else {
        return;
    };
    let path = path.field(name);
    if !is_list {
        return for_each_text(inner, rest, path, found);
    }
    for (index, element) in inner.as_list().unwrap_or_default().iter().enumerate() {
        for_each_text(element, rest, path.index(index), found);
    }
}
