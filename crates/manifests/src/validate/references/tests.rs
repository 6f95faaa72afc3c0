//! References that resolve, and references that do not.

use super::*;
use crate::kinds::tests::schema;
use crate::load::{Budget, load};
use crate::validate::object::ObjectReader;

/// `line field: message [hint]` of every finding.
fn findings(text: &str, completeness: Completeness) -> Vec<String> {
    let mut objects = Vec::new();
    let mut sorter = ObjectReader {
        file: 0,
        default_namespace: "default",
        objects: &mut objects,
        problems: &mut |_, field, problem| panic!("{field}: {problem:?}"),
    };
    let loaded = load(text, &mut Budget::default());
    assert_eq!(loaded.problems.items, []);
    for document in loaded.documents {
        sorter.read_document(document);
    }
    let mut findings = Findings::default();
    check(&objects, &["a.yaml".to_owned()], completeness, &mut findings);
    let shown = |finding: &Finding| {
        let hint = finding.hint.as_deref().unwrap_or("");
        format!("{} {} {}: {} [{hint}]", finding.severity.as_str(), finding.line, finding.field, finding.message)
    };
    findings.as_slice().iter().map(shown).collect()
}

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!("---\napiVersion: sympozium.ai/v1alpha1\nkind: {kind}\nmetadata: {name}\nspec: {spec}\n")
}

fn foreign(kind: &str, name: &str) -> String {
    format!("---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n")
}

#[test]
fn references_to_files_resolve() {
    let text = [
        object("AgentRun", "{name: r}", "{agentRef: a, instanceRef: i, model: {modelRef: other/m, authSecretRef: s}}"),
        object(
            "Agent",
            "{name: a}",
            "{policyRef: p, skills: [{skillPackRef: k}, {configMapRef: c}], authRefs: [{secret: s}]}",
        ),
        object("SympoziumInstance", "{name: i}", "{policyRef: in-system}"),
        object("SympoziumPolicy", "{name: p}", "{}"),
        object("SympoziumPolicy", "{name: in-system, namespace: sympozium-system}", "{}"),
        object("SkillPack", "{name: k}", "{sidecar: {secretRef: s}}"),
        object("Model", "{name: m, namespace: other}", "{}"),
        foreign("Secret", "s"),
        foreign("ConfigMap", "c"),
    ];
    assert_eq!(findings(&text.concat(), Completeness::Complete), [] as [&str; 0]);
}

#[test]
fn references_to_shipped_objects_resolve() {
    let text = object("Agent", "{name: a}", "{policyRef: hardened, skills: [{skillPackRef: k8s-ops}]}");
    assert_eq!(findings(&text, Completeness::Complete), [] as [&str; 0]);
}

#[test]
fn missing_references_are_warnings_or_errors() {
    let text = object("AgentRun", "{name: r}", "{agentRef: missing, imagePullSecrets: [{name: pull}]}");
    assert_eq!(
        findings(&text, Completeness::Partial),
        [
            "warning 5 spec.agentRef: Agent or SympoziumInstance `missing` is not among the files \
             [it must exist in the cluster or in one of the files]",
            "warning 5 spec.imagePullSecrets[0].name: Secret `pull` is not among the files \
             [it must exist in the cluster or in one of the files]",
        ]
    );
    assert_eq!(
        findings(&text, Completeness::Complete)[0],
        "error 5 spec.agentRef: Agent or SympoziumInstance `missing` is not among the files \
         [add the file that contains it, or omit --strict if it is in the cluster]"
    );
}

#[test]
fn a_slip_and_another_namespace_are_pointed_out() {
    let text = [
        object("SympoziumSchedule", "{name: s}", "{agentRef: my-agnet}"),
        object("AgentRun", "{name: r}", "{agentRef: elsewhere}"),
        object("Agent", "{name: my-agent}", "{policyRef: restrictve, skills: [{skillPackRef: k8sops}]}"),
        object("Agent", "{name: elsewhere, namespace: other}", "{}"),
    ];
    let hints: Vec<String> = findings(&text.concat(), Completeness::Partial)
        .into_iter()
        .filter_map(|finding| Some(finding.rsplit_once('[')?.1.to_owned()))
        .collect();
    assert_eq!(
        hints,
        [
            "did you mean `my-agent`?]",
            "one exists in namespace `other`, but this object is in `default`]",
            "did you mean `k8s-ops`?]",
            "did you mean `restrictive`?]",
        ]
    );
}

#[test]
fn an_empty_secret_name_means_none() {
    let text = object("AgentRun", "{name: r}", "{model: {authSecretRef: ''}}");
    assert_eq!(findings(&text, Completeness::Complete), [] as [&str; 0]);
}

#[test]
fn one_name_is_one_object() {
    let text = [
        object("Agent", "{name: a}", "{}"),
        object("SympoziumInstance", "{name: a}", "{}"),
        object("Agent", "{name: a}", "{}"),
        object("Agent", "{name: a, namespace: other}", "{}"),
        object("SkillPack", "{name: a}", "{}"),
        foreign("Secret", "a"),
        foreign("Secret", "a"),
    ];
    assert_eq!(
        findings(&text.concat(), Completeness::Partial),
        [
            "error 9 metadata.name: the Agent in a.yaml:2 has the same name; Agent and SympoziumInstance share their names \
             [remove one of the two, or rename it]",
            "error 14 metadata.name: duplicate Agent; the first one is in a.yaml:2 [remove one of the two, or rename it]",
        ]
    );
}

/// Every field of the schemas that is named like a reference is in the table, or is known not to be one.
#[test]
fn every_field_that_looks_like_a_reference_is_looked_up() {
    /// In free-form or foreign objects, in the status, or resolved elsewhere.
    const ELSEWHERE: &[&str] =
        &["valueFrom", "envFrom", "status", "runtimeClass", "warmPoolRef", "storageClass", "volumes"];
    fn walk(schema: &serde_json::Value, path: String, found: &mut Vec<String>) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            if ELSEWHERE.contains(&name.as_str()) {
                continue;
            }
            let list = inner.get("items");
            let path = match (path.as_str(), list) {
                ("", _) => name.clone(),
                (_, None) => format!("{path}.{name}"),
                (_, Some(_)) => format!("{path}.{name}[]"),
            };
            let inner = list.unwrap_or(inner);
            let is_text = inner["type"] == "string" && inner["pattern"].is_string();
            let looks_so = name.ends_with("Ref") || name.to_lowercase().contains("secret");
            let looks_so = looks_so && !name.ends_with("Path");
            if is_text && (looks_so || name == "runName") {
                found.push(path.clone());
            }
            walk(inner, path, found);
        }
    }
    for kind in Kind::ALL {
        let of_kind = schema(*kind);
        let mut found = Vec::new();
        walk(&of_kind, String::new(), &mut found);
        for field in found {
            let is_listed = kind.row().references.iter().any(|(listed, _)| *listed == field);
            assert!(is_listed, "{} {field}", kind.name());
        }
    }
    for kind in Kind::ALL {
        for (field, _) in kind.row().references {
            let mut schema = schema(*kind);
            for step in field.split('.') {
                let name = step.strip_suffix("[]").unwrap_or(step);
                schema = schema["properties"][name].take();
                if step.ends_with("[]") {
                    schema = schema["items"].take();
                }
            }
            assert_eq!(schema["type"], "string", "{} has no {field}", kind.name());
        }
    }
}
