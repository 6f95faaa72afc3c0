//! From manifests to what is rendered of them, as a controller would go.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::labels::{FLOOR_POLICY, MANAGED_BY, SYSTEM_NAMESPACE};
use sympozium_api::{Agent, AgentRun, Model, RunPlan, SkillPack, SympoziumInstance, SympoziumPolicy};
use sympozium_plan::admit::{Decision, RuntimeClasses, Settings, admit};
use sympozium_plan::plan::{PlanSettings, plan};
use sympozium_plan::render::{RenderSettings, Rendered, render};
use sympozium_plan::resolve::{Authors, Found, Objects, Scope, resolve};
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
pub fn create_runs(kubectl: &Kubectl, manifests: &mut [Vec<Value>]) -> Result<()> {
    let mut runs = Vec::new();
    for objects in manifests.iter() {
        let mut run = run_of(objects)?.clone();
        // The API server gives its own.
        if let Some(metadata) = run["metadata"].as_object_mut() {
            metadata.remove("uid");
        }
        runs.push(run);
    }
    let created = send(kubectl, &["create"], &runs)?;
    for (objects, created) in manifests.iter_mut().zip(created) {
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
    let objects = ManifestObjects(objects);
    let settings = Settings::default();
    let resolved = resolve(&run, &namespace, &objects, &settings);
    let packs = resolved.packs();
    let input = resolved.input(&packs);
    let Decision::Admitted(admitted) = admit(&input) else {
        return Ok(None);
    };
    let planned = plan(&input, &admitted, plan_settings)?;
    let rendered =
        render(&planned.plan, &planned.texts, render_settings).map_err(|error| anyhow!("{run_name}: {error}"))?;
    Ok(Some((planned.plan, rendered)))
}

/// The objects beside a run. Of several with one name, the last counts.
struct ManifestObjects<'v>(&'v [Value]);

impl ManifestObjects<'_> {
    fn find<K: DeserializeOwned>(&self, kind: &str, name: &str) -> Option<Arc<K>> {
        let found = self.0.iter().rfind(|object| object["kind"] == kind && object["metadata"]["name"] == name)?;
        Some(Arc::new(read(found).unwrap_or_else(|error| panic!("{error:#}"))))
    }
}

impl Objects for ManifestObjects<'_> {
    type Handle<K: 'static> = Arc<K>;

    fn agent(&self, _: &str, name: &str) -> Option<Arc<Agent>> {
        self.find("Agent", name)
    }

    fn instance(&self, _: &str, name: &str) -> Option<Arc<SympoziumInstance>> {
        self.find("SympoziumInstance", name)
    }

    fn model(&self, namespace: &str, name: &str) -> Option<Arc<Model>> {
        self.find("Model", name).filter(|_| namespace != SYSTEM_NAMESPACE)
    }

    /// As if they were installed with Sympozium: that is what the names in policies mean.
    fn packs(&self, _: Scope<'_>, name: &str) -> Found<Arc<SkillPack>> {
        Found { own: None, system: self.find("SkillPack", name) }
    }

    fn policies(&self, _: Scope<'_>, name: &str) -> Found<Arc<SympoziumPolicy>> {
        Found { own: self.find("SympoziumPolicy", name), system: None }
    }

    fn floor(&self) -> Option<Arc<SympoziumPolicy>> {
        self.find("SympoziumPolicy", FLOOR_POLICY)
    }

    /// As the cluster of these tests has it.
    fn runtime_classes(&self) -> Cow<'_, RuntimeClasses> {
        Cow::Owned(RuntimeClasses::from([("gvisor".to_owned(), "runsc".to_owned())]))
    }

    fn authors(&self) -> Authors {
        Authors::NotCompared
    }
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K> {
    serde_json::from_value(object.clone()).with_context(|| format!("reading {object}"))
}
