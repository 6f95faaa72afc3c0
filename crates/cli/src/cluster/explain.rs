//! `sympozium explain` in a cluster: explains existing runs by their stored plans, and files as the cluster would admit
//! them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::anyhow;
use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_api::text::{printable, quote, truncate};
use sympozium_api::{Agent, Model, SkillPack, SympoziumInstance, SympoziumPolicy};
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::load::LoadedFile;
use sympozium_manifests::planning::{PlanResults, PlannedRun, RunResult, plan_session};
use sympozium_manifests::sources::Reader;
use sympozium_manifests::tree::{Mark, Node};
use sympozium_manifests::validate::{Completeness, Object, ObjectName, Schemas, Session};
use sympozium_plan::explain::{Explanation, explain};

use super::call_error::{MAX_MESSAGE, Role};
use super::objects::are_valid_names;
use super::plan::{StoredPlan, read_stored_plan};
use super::{Cluster, Connection};
use crate::arguments::ExplainArguments;
use crate::failure::Failure;
use crate::planning::NIL_UID;
use crate::run::assemble::inputs::is_file_argument;

/// The source, in place of a file name, of an object that the cluster has.
const CLUSTER_SOURCE: &str = "<cluster>";
/// The same for the policy floor.
const FLOOR_SOURCE: &str = "<floor of the cluster>";
/// The maximum number of objects that are read from the cluster for files.
const MAX_OBJECTS: usize = 512;

/// Explains the inputs: files, and existing runs.
///
/// # Errors
///
/// When a run does not exist or has no plan, the API server rejects a request, or runs are to be compared.
pub fn explain_inputs(
    cluster: &Cluster,
    arguments: &ExplainArguments,
    inputs: &[PathBuf],
) -> Result<PlanResults<Explanation>, Failure> {
    if arguments.diff {
        return Err(Failure::usage(
            anyhow!("--diff compares files, and a cluster was chosen"),
            "leave the cluster out, or explain what is in it without --diff",
        ));
    }
    let connection = &cluster.connection;
    let (files, names): (Vec<PathBuf>, Vec<PathBuf>) =
        inputs.iter().cloned().partition(|it| is_file_argument(it.as_os_str()));
    let mut planning = match files.is_empty() {
        true => empty_results(connection),
        false => cluster.block_on(explain_files(connection, &files, arguments))?,
    };
    for name in &names {
        planning.runs.push(explain_run(cluster, &name.to_string_lossy())?);
    }
    Ok(planning)
}

fn empty_results(connection: &Connection) -> PlanResults<Explanation> {
    let session = Session::for_cluster(&connection.namespace);
    PlanResults { report: session.finish(&mut Schemas::default(), Completeness::Partial), runs: Vec::new() }
}

/// Explains an existing run by its stored plan; it is not planned a second time.
fn explain_run(cluster: &Cluster, name: &str) -> Result<PlannedRun<Explanation>, Failure> {
    let connection = &cluster.connection;
    let found = cluster.find(name)?;
    let quoted = quote(&found.name);
    let target = connection.target.as_str();
    let plan = match cluster.block_on(read_stored_plan(connection, &found.run)) {
        StoredPlan::Plan(plan) => plan,
        StoredPlan::NotPlanned => {
            return Err(Failure::new(
                anyhow!("run {quoted} has no plan"),
                format!("`sympozium show {}{target}` prints what it waits for, or why it was denied", found.name),
            ));
        }
        StoredPlan::Deleted => {
            return Err(Failure::new(
                anyhow!("the stored plan of run {quoted} was deleted"),
                "its ConfigMap does not exist; the plan digest in the run's status can only verify a copy of the plan",
            ));
        }
        StoredPlan::Mismatch(why) => {
            return Err(Failure::new(
                anyhow!(
                    "the stored plan of run {quoted} does not match the run's plan digest: {}",
                    printable(truncate(why.trim(), MAX_MESSAGE))
                ),
                "its ConfigMap was replaced: do not trust its contents",
            ));
        }
        StoredPlan::Unreadable(error) => {
            let operation = "read the run's plan (ConfigMap)";
            return Err(connection.call_context(operation, Role::View).as_failure(&error).into());
        }
    };
    Ok(PlannedRun {
        name: ObjectName {
            kind: Kind::AgentRun.name().to_owned(),
            namespace: connection.namespace.clone(),
            name: found.name,
        },
        is_assumed: false,
        // The stored plan records what it was made from.
        origins: Vec::new(),
        result: RunResult::Admitted(explain(&plan)),
    })
}

/// Explains files, with the agents, packs, policies and the floor of the cluster for references that the files do not
/// resolve.
async fn explain_files(
    connection: &Connection,
    files: &[PathBuf],
    arguments: &ExplainArguments,
) -> Result<PlanResults<Explanation>, Failure> {
    let mut reader = Reader::default();
    let mut session = Session::for_cluster(&connection.namespace);
    session.add_inputs(files, &mut reader);
    let mut read = BTreeSet::new();
    loop {
        let wanted = unresolved_references(session.objects());
        let new: Vec<Reference> = wanted.into_iter().filter(|it| !read.contains(it)).collect();
        if new.is_empty() {
            break;
        }
        for reference in new {
            if read.len() >= MAX_OBJECTS {
                return Err(Failure::new(
                    anyhow!("the files refer to more than {MAX_OBJECTS} objects of the cluster"),
                    "explain fewer files at a time",
                ));
            }
            let found = get_object(connection, &reference).await?;
            read.insert(reference);
            if let Some(value) = found {
                session.add_stored(CLUSTER_SOURCE.to_owned(), load_value(value));
            }
        }
    }
    let has_floor = session.objects().iter().any(is_floor);
    match &arguments.floor {
        Some(path) => session.add_floor(&mut reader, path),
        // A floor in the files would replace the cluster's when it is applied.
        None if has_floor => {}
        None => {
            let floor = Reference::new(Kind::SympoziumPolicy, SYSTEM_NAMESPACE, FLOOR_POLICY);
            let floor = get_object(connection, &floor).await?;
            session.add_floor_loaded(FLOOR_SOURCE, floor.map(load_value));
        }
    }
    let schemas = &mut Schemas::default();
    let run = arguments.run.as_deref();
    let planning = plan_session(session, schemas, run, NIL_UID, |planned| Ok(explain(&planned.plan)));
    Ok(planning)
}

fn is_floor(object: &Object) -> bool {
    object.is_kind(Kind::SympoziumPolicy)
        && object.name.namespace == SYSTEM_NAMESPACE
        && object.name.name == FLOOR_POLICY
}

/// A reference to an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Reference {
    kind: Kind,
    namespace: String,
    name: String,
}

impl Reference {
    fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// The references of the objects that the objects themselves do not resolve.
fn unresolved_references(objects: &[Object]) -> Vec<Reference> {
    let mut all = Vec::new();
    for object in objects {
        let own = object.name.namespace.as_str();
        let node = &object.node;
        let text = |path: &[&str]| node.get_path(path).and_then(Node::as_text);
        let is_run = object.is_kind(Kind::AgentRun);
        let is_agent = object.is_kind(Kind::Agent) || object.is_kind(Kind::SympoziumInstance);
        if is_run {
            let agent = text(&["spec", "agentRef"]).or_else(|| text(&["spec", "instanceRef"]));
            for kind in [Kind::Agent, Kind::SympoziumInstance] {
                all.extend(agent.map(|it| Reference::new(kind, own, it)));
            }
            if let Some(model) = text(&["spec", "model", "modelRef"]) {
                let (namespace, name) = model.split_once('/').unwrap_or((own, model));
                all.push(Reference::new(Kind::Model, namespace, name));
                all.push(Reference::new(Kind::Model, SYSTEM_NAMESPACE, name));
            }
        }
        if is_run || is_agent {
            let skills = node.get_path(&["spec", "skills"]).and_then(Node::as_list);
            let packs = skills.into_iter().flatten();
            let packs = packs.filter_map(|it| it.get("skillPackRef")?.as_text());
            for pack in packs {
                for namespace in [own, SYSTEM_NAMESPACE] {
                    all.push(Reference::new(Kind::SkillPack, namespace, pack));
                }
            }
        }
        if let Some(policy) = text(&["spec", "policyRef"]).filter(|_| is_agent) {
            for namespace in [own, SYSTEM_NAMESPACE] {
                all.push(Reference::new(Kind::SympoziumPolicy, namespace, policy));
            }
        }
    }
    let is_loaded = |it: &Reference| {
        objects.iter().any(|object| {
            object.is_kind(it.kind) && object.name.namespace == it.namespace && object.name.name == it.name
        })
    };
    // A cluster has no object with an invalid name; validation of the files reports it.
    all.retain(|it| are_valid_names(&it.namespace, &it.name) && !is_loaded(it));
    all
}

async fn get_object(connection: &Connection, reference: &Reference) -> Result<Option<Value>, Failure> {
    match reference.kind {
        Kind::Agent => read_object::<Agent>(connection, reference).await,
        Kind::SympoziumInstance => read_object::<SympoziumInstance>(connection, reference).await,
        Kind::SkillPack => read_object::<SkillPack>(connection, reference).await,
        Kind::SympoziumPolicy => read_object::<SympoziumPolicy>(connection, reference).await,
        Kind::Model => read_object::<Model>(connection, reference).await,
        _ => Ok(None),
    }
}

async fn read_object<K>(connection: &Connection, reference: &Reference) -> Result<Option<Value>, Failure>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let connection = connection.in_namespace(&reference.namespace);
    let operation = format!(
        "read {} {} of namespace {}",
        reference.kind.name(),
        quote(&reference.name),
        quote(&reference.namespace)
    );
    let api = connection.api::<K>();
    let found = connection.call(&operation, Role::Viewer, api.get_opt(&reference.name));
    let Some(found) = found.await? else {
        return Ok(None);
    };
    let mut value = serde_json::to_value(&found).unwrap_or_default();
    // Only the fields that a manifest would have.
    let mut metadata = json!({"name": found.name_any(), "namespace": reference.namespace});
    if !found.labels().is_empty() {
        metadata["labels"] = json!(found.labels());
    }
    value["metadata"] = metadata;
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    Ok(Some(value))
}

fn load_value(value: Value) -> LoadedFile {
    LoadedFile { documents: vec![Node::from_json(value, Mark::START)], ..LoadedFile::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_with_invalid_names_are_not_requested() {
        let run = |namespace: &str, agent: &str, model: &str| {
            let run = json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
                "metadata": {"name": "later", "namespace": namespace},
                "spec": {"agentRef": agent, "model": {"modelRef": model}, "skills": [{"skillPackRef": "../x"}]},
            });
            let mut session = Session::for_cluster("team");
            session.add_loaded("run.yaml".to_owned(), load_value(run));
            let all = unresolved_references(session.objects()).into_iter();
            all.map(|it| format!("{} {}/{}", it.kind.name(), it.namespace, it.name)).collect::<Vec<_>>()
        };
        assert_eq!(
            run("team", "reader", "models/gpt"),
            ["Agent team/reader", "SympoziumInstance team/reader", "Model models/gpt", "Model sympozium-system/gpt",]
        );
        assert_eq!(run("../../../apis\u{1b}[2J", "reader", "../../x/gpt"), Vec::<String>::new());
        assert_eq!(run("team", "a/b?c", "\u{1b}/gpt"), ["Model sympozium-system/gpt"]);
    }
}
