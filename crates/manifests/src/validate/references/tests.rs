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
fn what_is_among_the_files_is_found() {
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
fn what_an_installation_ships_is_taken_for_there() {
    let text = object("Agent", "{name: a}", "{policyRef: hardened, skills: [{skillPackRef: k8s-ops}]}");
    assert_eq!(findings(&text, Completeness::Complete), [] as [&str; 0]);
}

#[test]
fn what_is_not_there_is_a_warning_or_an_error() {
    let text = object("AgentRun", "{name: r}", "{agentRef: missing, imagePullSecrets: [{name: pull}]}");
    assert_eq!(
        findings(&text, Completeness::Partial),
        [
            "warning 5 spec.agentRef: no Agent or SympoziumInstance called `missing` is among the files \
             [it must be in the cluster, or in a file that you name too]",
            "warning 5 spec.imagePullSecrets[0].name: no Secret called `pull` is among the files \
             [it must be in the cluster, or in a file that you name too]",
        ]
    );
    assert_eq!(
        findings(&text, Completeness::Complete)[0],
        "error 5 spec.agentRef: no Agent or SympoziumInstance called `missing` is among the files \
         [name the file that has it too, or leave --strict out if it is in the cluster]"
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
            "there is one in namespace `other`; this object is in `default`]",
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
            "error 9 metadata.name: the Agent in a.yaml:2 has this name; an Agent and a SympoziumInstance are one thing \
             [keep one of the two, or give one another name]",
            "error 14 metadata.name: the same Agent is in a.yaml:2 already [keep one of the two, or give one another name]",
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
