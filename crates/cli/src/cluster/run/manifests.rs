//! The objects that a run in a cluster needs, from what was assembled of files and flags.

use serde_json::Value;
use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::tree::Node;
use sympozium_manifests::validate::{
    CheckOptions, Completeness, Conclusion, Object, ObjectKind, Purpose, Schemas, Session,
};

use super::super::objects::{FileObject, FileObjectKind, ignored_warning};
use crate::failure::Failure;
use crate::run::arguments::RunArguments;
use crate::run::assemble::{AssembledRun, Target, assemble, denial, unusable_manifests};

/// Everything that is sent to the cluster.
#[derive(Debug, PartialEq)]
pub struct RunManifests {
    /// The objects of the files that the run may need, in the order of creation.
    pub objects: Vec<FileObject>,
    pub run: Value,
    pub namespace: String,
    pub warnings: Vec<String>,
}

/// Assembles the run that the arguments mean, and checks its objects. Sends nothing to the cluster.
///
/// # Errors
///
/// When the run cannot be assembled, or the files have what no cluster would admit.
pub fn prepare(arguments: &RunArguments, namespace: &str) -> Result<RunManifests, Failure> {
    let AssembledRun { session, run, mut warnings } = assemble(arguments, Target::Cluster { namespace })?;
    let objects = select_objects(session.objects(), &mut warnings);
    let run = &session.objects()[run];
    let (name, run) = (run.name.clone(), run.node.to_json());
    check_admission(session, &name.name)?;
    Ok(RunManifests { objects, run, namespace: name.namespace, warnings })
}

/// The objects that the run may need, in the order of creation.
fn select_objects(objects: &[Object], warnings: &mut Vec<String>) -> Vec<FileObject> {
    let mut selected: Vec<FileObject> = Vec::new();
    for object in objects {
        let version = object.node.get("apiVersion").and_then(Node::as_text);
        let kind = match &object.kind {
            ObjectKind::Sympozium(Kind::AgentRun) => continue,
            ObjectKind::Sympozium(kind) => FileObjectKind::from_kind(*kind),
            ObjectKind::Other(kind) => FileObjectKind::from_core_kind(version, kind),
        };
        let name = &object.name;
        let is_floor =
            kind == Some(FileObjectKind::Policy) && name.name == FLOOR_POLICY && name.namespace == SYSTEM_NAMESPACE;
        let Some(kind) = kind.filter(|_| !is_floor) else {
            warnings.push(ignored_warning(&name.kind, &name.name));
            continue;
        };
        // Of two objects with one name the first counts, as everywhere.
        let is_known = |it: &FileObject| it.kind == kind && it.name == name.name && it.namespace == name.namespace;
        if !selected.iter().any(is_known) {
            selected.push(FileObject {
                kind,
                namespace: name.namespace.clone(),
                name: name.name.clone(),
                value: object.node.to_json(),
            });
        }
    }
    selected.sort_by_key(|it| it.kind);
    selected
}

/// Fails if the objects violate their schemas, or if one of them denies the run for certain.
fn check_admission(session: Session<'_>, run: &str) -> Result<(), Failure> {
    let options = CheckOptions { run: Some(run), uid: None, purpose: Purpose::Check };
    let report = session.finish_with(&mut Schemas::default(), Completeness::Partial, options);
    let findings = report.failures_text();
    match report.conclusion() {
        Conclusion::Passed => Ok(()),
        Conclusion::Invalid => Err(unusable_manifests(findings)),
        Conclusion::Denied => Err(denial(findings)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::arguments::{Arguments, Command};

    const FILES: &str = r"
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: worker}
spec: {agents: {default: {model: m}}, skills: [tools]}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {k: v}
---
apiVersion: v1
kind: Service
metadata: {name: other}
";

    fn composed(files: &str, typed: &[&str]) -> Result<RunManifests, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.yaml");
        std::fs::write(&path, files).unwrap();
        let mut all = vec!["sympozium", "run", "--cluster"];
        if !files.is_empty() {
            all.push(path.to_str().unwrap());
        }
        all.extend(typed);
        let Command::Run(arguments) = Arguments::try_parse_from(all).unwrap().command else {
            panic!("another command");
        };
        prepare(&arguments, "team").map_err(|failure| failure.text())
    }

    #[test]
    fn files_and_flags_become_objects() {
        let flags = ["Do it.", "--timeout", "5m", "--skill", "tools", "--model", "ollama/qwen3"];
        let composed = composed(FILES, &flags).unwrap();
        assert_eq!(
            composed.run,
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
                "metadata": {"namespace": "team", "generateName": "run-", "labels": {"sympozium.ai/source": "cli"}},
                "spec": {
                    "agentRef": "worker", "task": "Do it.", "timeout": "5m",
                    "skills": [{"skillPackRef": "tools"}], "model": {"provider": "ollama", "model": "qwen3"},
                },
            })
        );
        let names: Vec<_> = composed.objects.iter().map(|it| (it.kind, it.name.as_str())).collect();
        assert_eq!(names, [(FileObjectKind::Secret, "key"), (FileObjectKind::Agent, "worker")]);
        // In the form that the API server accepts.
        assert_eq!(composed.objects[1].value["spec"]["skills"], json!([{"skillPackRef": "tools"}]));
        assert_eq!(composed.warnings, ["Service `other` of the files is not created; create it with `kubectl apply`"]);
    }

    #[test]
    fn an_agent_of_the_cluster_needs_no_file() {
        let composed = composed("", &["--agent", "reviewer", "Review."]).unwrap();
        assert_eq!(composed.run["spec"], json!({"agentRef": "reviewer", "task": "Review."}));
        assert_eq!((composed.namespace.as_str(), composed.objects.len()), ("team", 0));
    }

    #[test]
    fn a_run_of_the_files_is_a_new_one() {
        let run = r"
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: nightly, namespace: other, uid: 00000000-0000-4000-8000-000000000000, labels: {a: b}}
spec: {agentRef: worker, task: Report., model: {provider: openai, model: a, authSecretRef: key}}
status: {phase: Succeeded}
";
        let composed = composed(run, &["--model", "openai/b"]).unwrap();
        assert_eq!(
            composed.run["metadata"],
            json!({"namespace": "other", "name": "nightly", "labels": {"a": "b", "sympozium.ai/source": "cli"}})
        );
        assert_eq!(composed.run["status"], Value::Null);
        assert_eq!(composed.run["spec"]["model"], json!({"provider": "openai", "model": "b", "authSecretRef": "key"}));
    }

    #[test]
    fn what_means_nothing_there_is_refused_with_the_reason() {
        for (typed, said) in [
            (&["--key-file", "k", "a"][..], "--key-file has no meaning in a cluster"),
            (&["--key-command", "pass", "a"], "no command of this machine runs there"),
            (&["--floor", "f", "a"], "the floor is the cluster's own"),
            (&["--policy", "default", "a"], "set `policyRef` of the agent"),
            (&["--workspace", ".", "a"], "give the run a volume"),
            (&["--base-url", "http://a", "a"], "give --model too"),
            (&[], "there is no task"),
        ] {
            let error = composed(FILES, typed).unwrap_err();
            assert!(error.contains(said), "{typed:?}: {error}");
        }
        let nothing = composed("", &["Do it."]).unwrap_err();
        assert!(nothing.contains("name an agent of the cluster with --agent"), "{nothing}");
        let broken = composed(&FILES.replace("agents:", "agent:"), &["a"]).unwrap_err();
        assert!(broken.contains("cannot be used as they are"), "{broken}");
    }
}
