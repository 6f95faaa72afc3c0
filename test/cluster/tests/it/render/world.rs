//! From manifests to what is rendered of them, as a controller would go.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::labels::{FLOOR_POLICY, MANAGED_BY};
use sympozium_api::names::SkillPackName;
use sympozium_api::{Agent, AgentRun, Model, RunPlan, SkillPack, SympoziumInstance, SympoziumPolicy};
use sympozium_plan::admit::{
    Agents, Candidates, Decision, Facts, Input, PackCandidates, PackObject, RuntimeClasses, Settings, admit,
    referenced_policy,
};
use sympozium_plan::plan::{PlanSettings, plan};
use sympozium_plan::render::{RenderSettings, Rendered, render};
use sympozium_testkit::cluster::Kubectl;

/// The documents of a YAML text.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = text.split("\n---\n").filter(|it| !it.trim().is_empty());
    documents.map(|it| serde_saphyr::from_str(it).context("reading YAML")).collect()
}

/// Puts the objects of a run into a namespace. The floor stays where it is, and consents to that namespace.
pub fn move_to(objects: &mut [Value], namespace: &str) {
    for object in objects {
        if object["metadata"]["name"] != "floor" {
            object["metadata"]["namespace"] = json!(namespace);
        } else if let Some(consent) = object.pointer_mut("/spec/rbacPolicy/clusterRBACNamespaces") {
            *consent = json!([namespace]);
        }
    }
}

/// Creates the runs among these objects, and gives each the UID that it got.
pub fn create_runs(kubectl: &Kubectl, worlds: &mut [Vec<Value>]) -> Result<()> {
    let mut runs = Vec::new();
    for objects in worlds.iter() {
        let mut run = run_of(objects)?.clone();
        // The API server gives its own.
        if let Some(metadata) = run["metadata"].as_object_mut() {
            metadata.remove("uid");
        }
        runs.push(run);
    }
    let created = send(kubectl, &["create"], &runs)?;
    for (objects, created) in worlds.iter_mut().zip(created) {
        for object in objects.iter_mut().filter(|it| it["kind"] == "AgentRun") {
            object["metadata"]["uid"] = created["metadata"]["uid"].clone();
        }
    }
    Ok(())
}

/// A rendered object without the label by which a controller finds what it has made.
///
/// Other tests install a controller in the same cluster. It denies a run whose agent it does not find, and it sweeps
/// every ten minutes and whenever another replica leads: then it deletes accounts, roles, bindings and NetworkPolicies
/// of such a run.
pub fn unmanaged(mut object: Value) -> Value {
    if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
        labels.remove(MANAGED_BY);
    }
    object
}

fn run_of(objects: &[Value]) -> Result<&Value> {
    let mut objects = objects.iter();
    objects.find(|it| it["kind"] == "AgentRun").context("no run")
}

/// Sends objects in one call, and gives what the API server answers. Every refusal is in the error.
pub fn send(kubectl: &Kubectl, verb: &[&str], objects: &[Value]) -> Result<Vec<Value>> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let arguments = [verb, &["--validate=strict", "-o", "json", "-f", "-"]].concat();
    let printed = kubectl.feed(&arguments, &list)?;
    if !printed.success {
        bail!("{}: {}", verb.join(" "), printed.stderr.trim());
    }
    // One after the other, or one list of all.
    let answers = serde_json::Deserializer::from_str(&printed.stdout).into_iter::<Value>();
    let answers: Vec<Value> = answers.collect::<Result<_, _>>()?;
    match answers.as_slice() {
        [list] if list["kind"] == "List" => {
            let items = list["items"].as_array().cloned();
            items.context("a list has items")
        }
        _ => Ok(answers),
    }
}

/// Admits, plans and renders; nothing when the run is not admitted.
pub fn realise(
    objects: &[Value],
    plan_settings: &PlanSettings,
    render_settings: &RenderSettings,
) -> Result<Option<(RunPlan, Rendered)>> {
    let run: AgentRun = read(run_of(objects)?)?;
    let run_name = run.metadata.name.clone().unwrap_or_default();
    let namespace = run.metadata.namespace.clone().context("no namespace")?;
    let all = |kind: &'static str| objects.iter().filter(move |it| it["kind"] == kind);
    let named = |kind: &'static str, name: &str| {
        let mut found = all(kind).filter(|it| it["metadata"]["name"] == name);
        found.next_back().cloned()
    };
    let agent_name = run.spec.agent().map(ToString::to_string);
    let agent_name = agent_name.context("no agent")?;
    let agent: Option<Agent> = named("Agent", &agent_name).as_ref().map(read).transpose()?;
    let instance = named("SympoziumInstance", &agent_name);
    let instance: Option<SympoziumInstance> = instance.as_ref().map(read).transpose()?;
    let agents = Agents { agent: agent.as_ref(), instance: instance.as_ref(), author: None };
    let packs: Vec<SkillPack> = all("SkillPack").map(read).collect::<Result<_>>()?;
    let model: Option<Model> = all("Model").next().map(read).transpose()?;
    let policy = |name: &str| -> Result<Option<SympoziumPolicy>> {
        let found = named("SympoziumPolicy", name);
        found.as_ref().map(read).transpose()
    };
    let floor = policy(FLOOR_POLICY)?;
    let policy = referenced_policy(agents).map(|name| policy(name.as_str()));
    let policy = policy.transpose()?.flatten();

    let mut candidates: BTreeMap<SkillPackName, PackCandidates<'_>> = BTreeMap::new();
    for pack in &packs {
        let name = SkillPackName::new(pack.metadata.name.clone().context("no name")?);
        // As if they were installed with Sympozium: that is what the names in policies mean.
        candidates.entry(name).or_default().system = Some(PackObject { pack, author: None });
    }
    let settings = Settings::default();
    // As the cluster of these tests has it.
    let runtime_classes = RuntimeClasses::from([("gvisor".to_owned(), "runsc".to_owned())]);
    let input = Input {
        run: &run,
        namespace: &namespace,
        agents,
        packs: &candidates,
        policies: Candidates { own: policy.as_ref(), system: None },
        floor: floor.as_ref().map(|it| &it.spec),
        models: Candidates { own: model.as_ref(), system: None },
        author: None,
        runtime_classes: &runtime_classes,
        facts: Facts::default(),
        settings: &settings,
    };
    let Decision::Admitted(admitted) = admit(&input) else {
        return Ok(None);
    };
    let planned = plan(&input, &admitted, plan_settings)?;
    let rendered =
        render(&planned.plan, &planned.texts, render_settings).map_err(|error| anyhow!("{run_name}: {error}"))?;
    Ok(Some((planned.plan, rendered)))
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K> {
    serde_json::from_value(object.clone()).with_context(|| format!("reading {object}"))
}
