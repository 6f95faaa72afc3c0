//! Scenes: a run with all its objects, in which fields are changed, and the result.

use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy};

use crate::admit::{Admitted, Input};
use crate::explain::explain;
use crate::plan::tests::harness::Harness;
use crate::plan::{PlanSettings, plan};
use crate::render::{RenderSettings, render};

/// The objects of a run that is admitted, and the result.
pub struct Scene {
    pub objects: Vec<Value>,
    pub result: SceneResult,
}

/// The result for a run.
#[derive(Debug, PartialEq)]
pub enum SceneResult {
    /// Plan, objects and explanation, without digests of the objects that they were made from: those change with every
    /// character.
    Admitted(Box<Value>),
    /// The rules by which it is denied.
    Denied(BTreeSet<&'static str>),
}

/// Every leaf that makes a difference must be in one of these.
const SCENES: &[&str] = &[
    "run",
    "agent",
    "kernel",
    "agent-kernel",
    "hook-rights",
    "agent-hook-rights",
    "node",
    "policy",
    "bare",
    "served-model",
];

/// One object of each kind that uses every field without an effect.
const UNUSED: &str = "unused";

pub fn all() -> Vec<Scene> {
    let scene = |name: &&str| {
        let objects = documents(name);
        for object in &objects {
            assert!(is_readable(object), "scene {name}: {object}");
        }
        let outcome = SceneResult::from_objects(objects.clone());
        let outcome = outcome.unwrap_or_else(|| panic!("scene {name} cannot be rendered"));
        assert!(matches!(outcome, SceneResult::Admitted(_)), "scene {name}: {outcome:?}");
        Scene { objects, result: outcome }
    };
    SCENES.iter().map(scene).collect()
}

pub fn unused() -> Vec<Value> {
    documents(UNUSED)
}

fn documents(scene: &str) -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fields/scenes");
    let text = std::fs::read_to_string(directory.join(format!("{scene}.yaml"))).expect("a scene");
    let documents = text.split("\n---\n").filter(|document| !document.trim().is_empty());
    documents.map(|document| serde_saphyr::from_str::<Value>(document).expect("YAML")).collect()
}

pub fn kind_of(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

pub fn read<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("it has the form")
}

/// The smallest valid spec of a kind.
pub fn minimal_spec(kind: &str) -> Value {
    match kind {
        "AgentRun" => json!({ "agentRef": "a", "task": "Look around." }),
        "Agent" => json!({ "agents": { "default": { "model": "m" } } }),
        "SkillPack" => json!({ "skills": [] }),
        "Model" => json!({ "source": { "url": "https://example.org/m.gguf" } }),
        _ => json!({}),
    }
}

/// The warnings of admission about a run itself: rule and field.
pub fn run_warnings(run: &Value) -> BTreeSet<(&'static str, String)> {
    let mut run = run.clone();
    run["metadata"] = json!({ "name": "r", "namespace": "team", "uid": "u" });
    let agent =
        json!({ "kind": "Agent", "metadata": { "name": "a", "namespace": "team" }, "spec": minimal_spec("Agent") });
    let mut objects = vec![agent, run];
    for object in &mut objects {
        object["apiVersion"] = json!("sympozium.ai/v1alpha1");
    }
    let warnings_of = |_: &Input<'_>, admitted: &Admitted<'_>| -> BTreeSet<(&'static str, String)> {
        let warnings = admitted.warnings.iter();
        warnings.map(|warning| (warning.rule, warning.field.clone())).collect()
    };
    Harness::from_objects(objects).with_admitted(warnings_of).expect("an admitted run")
}

fn is_readable(object: &Value) -> bool {
    fn can<K: DeserializeOwned>(object: &Value) -> bool {
        serde_json::from_value::<K>(object.clone()).is_ok()
    }
    match kind_of(object) {
        "AgentRun" => can::<AgentRun>(object),
        "Agent" => can::<Agent>(object),
        "SympoziumInstance" => can::<SympoziumInstance>(object),
        "SkillPack" => can::<SkillPack>(object),
        "SympoziumPolicy" => can::<SympoziumPolicy>(object),
        "Model" => can::<Model>(object),
        other => panic!("no kind of a scene: {other}"),
    }
}

impl SceneResult {
    /// The result for the run of these objects; `None` where one of them cannot be read.
    pub fn from_objects(objects: Vec<Value>) -> Option<Self> {
        if !objects.iter().all(is_readable) {
            return None;
        }
        let made = Harness::from_objects(objects).with_admitted(plan_and_render);
        Some(match made {
            Ok(made) => Self::Admitted(Box::new(made?)),
            Err(reasons) => Self::Denied(reasons.iter().map(|reason| reason.rule).collect()),
        })
    }
}

fn plan_and_render(input: &Input<'_>, admitted: &Admitted<'_>) -> Option<Value> {
    let planned = plan(input, admitted, &PlanSettings::default()).ok()?;
    let mut plan = planned.plan;
    plan.resolved.clear();
    let rendered = render(&plan, &planned.texts, &RenderSettings::default()).ok()?;
    let objects = rendered.objects.iter().map(|object| object.object.to_value().ok());
    let objects: Option<Vec<Value>> = objects.collect();
    Some(json!({
        "plan": serde_json::to_value(&plan).ok()?,
        "objects": objects?,
        "explanation": serde_json::to_value(explain(&plan)).ok()?,
    }))
}
