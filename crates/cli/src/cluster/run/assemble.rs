//! Assembles the objects of a run in a cluster from files and flags.

use anyhow::anyhow;
use serde_json::{Value, json};
use sympozium_api::labels::{self, API_VERSION, FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::sources::Reader;
use sympozium_manifests::tree::{Mark, Node};
use sympozium_manifests::validate::{
    CheckOptions, Completeness, Conclusion, Object, ObjectKind, Purpose, Schemas, Session,
};

use super::super::objects::{FileObject, FileObjectKind, ignored_warning};
use crate::failure::Failure;
use crate::run::arguments::RunArguments;
use crate::run::assemble::inputs::RunInputs;
use crate::run::assemble::selection::{
    add_object, ambiguous, find_indices, find_one, is_agent, skill_directory, skill_references,
};
use crate::run::assemble::unusable_manifests;

/// The `generateName` of a run without a name.
const GENERATE_NAME: &str = "run-";

/// Everything that is sent to the cluster.
#[derive(Debug, PartialEq)]
pub struct AssembledRun {
    /// The objects of the files that the run may need, in the order of creation.
    pub objects: Vec<FileObject>,
    pub run: Value,
    pub namespace: String,
    pub warnings: Vec<String>,
}

/// Reads the files and applies the flags, as for a run of this machine. Sends nothing to the cluster.
///
/// # Errors
///
/// When it is not clear which run is meant, a flag has no meaning in a cluster, or the files have what no cluster would
/// admit.
pub fn assemble(arguments: &RunArguments, namespace: &str) -> Result<AssembledRun, Failure> {
    check_flags(arguments)?;
    let inputs = RunInputs::from_arguments(arguments)?;
    let mut session = Session::for_cluster(namespace);
    session.add_inputs(&inputs.files, &mut Reader::default());
    if !session.is_readable() {
        let report = session.finish(&mut Schemas::default(), Completeness::Partial);
        return Err(unusable_manifests(report.failures_text()));
    }
    let place = find_source(arguments, session.objects())?;
    let (namespace, mut run) = base_run(&place, session.objects(), namespace);
    apply_flags(arguments, &inputs, &mut run, &namespace)?;
    let index = match place {
        RunSource::Run(index) => {
            if let Some(object) = session.object_mut(index) {
                object.node = Node::from_json(run.clone(), Mark::START);
            }
            index
        }
        RunSource::Agent(_) => add_object(&mut session, run.clone()),
    };
    let name = session.objects()[index].name.name.clone();
    let mut warnings = Vec::new();
    let objects = select_objects(session.objects(), &mut warnings);
    check_admission(session, &name)?;
    Ok(AssembledRun { objects, run, namespace, warnings })
}

/// Where the run comes from.
#[derive(Debug)]
enum RunSource {
    /// An object of the files, by its index.
    Run(usize),
    /// A new run for an agent, by the agent's name and, if the files have it, its index.
    Agent(AgentSource),
}

#[derive(Debug)]
struct AgentSource {
    name: String,
    index: Option<usize>,
}

/// Fails on flags that have no meaning in a cluster, with a hint what to do instead.
fn check_flags(arguments: &RunArguments) -> Result<(), Failure> {
    let key = "put the key into a Secret of the namespace, and name it in `authRefs` of the agent";
    let is_directory = |skill: &&String| skill_directory(skill).is_some() && skill.contains('/');
    let refused = [
        (arguments.key_file.is_some().then_some("--key-file"), "the model's key is a Secret in the cluster", key),
        (arguments.key_command.is_some().then_some("--key-command"), "no command of this machine runs there", key),
        (
            arguments.floor.is_some().then_some("--floor"),
            "the floor is the cluster's own",
            "`sympozium explain --floor` tells what another floor would say",
        ),
        (
            arguments.policy.is_some().then_some("--policy"),
            "the policy is that of the agent in the cluster",
            "set `policyRef` of the agent",
        ),
        (
            arguments.workspace.is_some().then_some("--workspace"),
            "a directory of this machine is not there",
            "give the run a volume in its manifest",
        ),
        (
            arguments.skills.iter().any(|it| is_directory(&it)).then_some("--skill with a directory"),
            "a directory of this machine is no image and no pack there",
            "make a pack of it with `sympozium skill import`, apply that, and name the pack",
        ),
    ];
    for (flag, why, hint) in refused {
        if let Some(flag) = flag {
            let error = anyhow!("{flag} means nothing in a cluster: {why}");
            return Err(Failure::usage(error, hint));
        }
    }
    Ok(())
}

fn find_source(arguments: &RunArguments, objects: &[Object]) -> Result<RunSource, Failure> {
    let runs = find_indices(objects, |it| it.is_kind(Kind::AgentRun));
    let agents = find_indices(objects, is_agent);
    let named =
        |index: usize| RunSource::Agent(AgentSource { name: objects[index].name.name.clone(), index: Some(index) });
    if let Some(name) = &arguments.run {
        return find_one(objects, &runs, name, "AgentRun").map(RunSource::Run);
    }
    if let Some(name) = &arguments.agent {
        let of_files = agents.iter().any(|it| objects[*it].name.name == *name);
        return match of_files {
            true => find_one(objects, &agents, name, "agent").map(named),
            // It exists in the cluster, or the run's conditions will say that it does not.
            false => Ok(RunSource::Agent(AgentSource { name: name.clone(), index: None })),
        };
    }
    match (runs.as_slice(), agents.as_slice()) {
        ([run], _) => Ok(RunSource::Run(*run)),
        ([], [agent]) => Ok(named(*agent)),
        ([], []) => Err(Failure::usage(
            anyhow!("neither a run nor an agent is named"),
            "name an agent of the cluster with --agent, or files with manifests",
        )),
        ([], agents) => Err(ambiguous(objects, agents, "agents", "--agent")),
        (runs, _) => Err(ambiguous(objects, runs, "runs", "--run")),
    }
}

/// The run of the files or a new one, and its namespace.
fn base_run(place: &RunSource, objects: &[Object], namespace: &str) -> (String, Value) {
    match place {
        RunSource::Run(index) => {
            let object = &objects[*index];
            (object.name.namespace.clone(), object.node.to_json())
        }
        RunSource::Agent(agent) => {
            let namespace = match agent.index {
                Some(index) => objects[index].name.namespace.clone(),
                None => namespace.to_owned(),
            };
            let run = json!({
                "apiVersion": API_VERSION,
                "kind": "AgentRun",
                "metadata": {"generateName": GENERATE_NAME},
                "spec": {"agentRef": agent.name},
            });
            (namespace, run)
        }
    }
}

/// Applies the flags to the run.
fn apply_flags(arguments: &RunArguments, inputs: &RunInputs, run: &mut Value, namespace: &str) -> Result<(), Failure> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let old = &run["metadata"];
    let (name, begins) = (text(&old["name"]), text(&old["generateName"]));
    let mut metadata = json!({"namespace": namespace});
    // The other fields of the metadata are of another run: its UID, its owner, its version.
    for field in ["labels", "annotations"] {
        if old[field].is_object() {
            metadata[field] = old[field].clone();
        }
    }
    if metadata["labels"][labels::SOURCE].is_null() {
        metadata["labels"][labels::SOURCE] = json!("cli");
    }
    match (name.is_empty(), begins.is_empty()) {
        (false, _) => metadata["name"] = json!(name),
        (true, false) => metadata["generateName"] = json!(begins),
        (true, true) => metadata["generateName"] = json!(GENERATE_NAME),
    }
    run["metadata"] = metadata;
    if let Some(object) = run.as_object_mut() {
        object.remove("status");
    }
    let spec = &mut run["spec"];
    if spec["cancel"] == true {
        let error = anyhow!("the run has `cancel: true`: it is over before it begins");
        return Err(Failure::new(error, "remove `cancel`"));
    }
    if let Some(task) = &inputs.task {
        spec["task"] = json!(task);
    }
    if spec["task"].is_null() {
        let error = anyhow!("there is no task");
        let hint = "say what the agent is to do: sympozium run [FILE…] \"TASK\"";
        return Err(Failure::usage(error, hint));
    }
    if let Some(timeout) = &arguments.timeout {
        spec["timeout"] = json!(timeout);
    }
    if !arguments.skills.is_empty() {
        let own = Node::from_json(json!({"spec": spec}), Mark::START);
        spec["skills"] = skill_references(&arguments.skills, &[&own]);
    }
    apply_model_flags(arguments, spec)
}

fn apply_model_flags(arguments: &RunArguments, spec: &mut Value) -> Result<(), Failure> {
    if let Some((provider, model)) = arguments.model.as_deref().and_then(|it| it.split_once('/')) {
        let own = spec["model"]["provider"].as_str();
        // Nothing of another provider applies: neither address, key nor headers.
        if own.is_none_or(|it| !it.eq_ignore_ascii_case(provider)) {
            spec["model"] = json!({"provider": provider});
        }
        spec["model"]["model"] = json!(model);
        if let Some(model) = spec["model"].as_object_mut() {
            model.remove("modelRef");
        }
    }
    if let Some(url) = &arguments.base_url {
        if spec["model"].is_null() {
            let error = anyhow!("--base-url is for a model, and the run names none");
            return Err(Failure::usage(error, "give --model too"));
        }
        spec["model"]["baseURL"] = json!(url);
    }
    Ok(())
}

/// The objects that the run may need, in the order of creation.
fn select_objects(objects: &[Object], warnings: &mut Vec<String>) -> Vec<FileObject> {
    let mut wanted: Vec<FileObject> = Vec::new();
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
        if !wanted.iter().any(is_known) {
            wanted.push(FileObject {
                kind,
                namespace: name.namespace.clone(),
                name: name.name.clone(),
                value: object.node.to_json(),
            });
        }
    }
    wanted.sort_by_key(|it| it.kind);
    wanted
}

/// Fails if the objects violate their schemas, or if something among them denies the run for certain.
fn check_admission(session: Session<'_>, run: &str) -> Result<(), Failure> {
    let demand = CheckOptions { run: Some(run), uid: None, purpose: Purpose::Check };
    let schemas = &mut Schemas::default();
    let report = session.finish_with(schemas, Completeness::Partial, demand);
    let findings = report.failures_text();
    match report.conclusion() {
        Conclusion::Passed => Ok(()),
        Conclusion::Invalid => Err(unusable_manifests(findings)),
        Conclusion::Denied => {
            let hint = "change what the lines above name; `sympozium explain` shows what a run could touch";
            Err(Failure::denied(anyhow!("the run is denied"), hint).with_findings(findings))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

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

    fn composed(files: &str, typed: &[&str]) -> Result<AssembledRun, String> {
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
        assemble(&arguments, "team").map_err(|failure| failure.text())
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
        assert_eq!(composed.warnings, ["Service `other` of the files is left alone; `kubectl apply` makes it"]);
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
            (&["--key-file", "k", "a"][..], "--key-file means nothing in a cluster"),
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
