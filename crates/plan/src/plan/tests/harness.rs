//! Manifests as the input of a plan.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy};

use crate::admit::{Admitted, Decision, Input, RuntimeClasses, Settings, Violation, admit};
use crate::resolve::{Found, Objects, Scope, resolve};

/// A run and all its objects.
pub struct Harness {
    pub run: AgentRun,
    agent: Option<Agent>,
    instance: Option<SympoziumInstance>,
    packs: Vec<SkillPack>,
    policy: Option<SympoziumPolicy>,
    floor: Option<SympoziumPolicy>,
    model: Option<Model>,
    namespace: String,
    settings: Settings,
    pub runtime_classes: RuntimeClasses,
}

impl Harness {
    /// Sorts objects by their kind.
    pub fn from_objects(objects: impl IntoIterator<Item = Value>) -> Self {
        Self::try_from_objects(objects).expect("objects of their kinds")
    }

    /// The same; `None` where one does not match its kind.
    pub fn try_from_objects(objects: impl IntoIterator<Item = Value>) -> Option<Self> {
        let mut run = None;
        let mut harness = Self {
            run: AgentRun::new("", Default::default()),
            agent: None,
            instance: None,
            packs: Vec::new(),
            policy: None,
            floor: None,
            model: None,
            namespace: String::new(),
            settings: Settings::default(),
            runtime_classes: RuntimeClasses::from([("gvisor".to_owned(), "runsc".to_owned())]),
        };
        for object in objects {
            match object["kind"].as_str() {
                Some("AgentRun") => run = Some(read::<AgentRun>(object)?),
                Some("Agent") => harness.agent = Some(read(object)?),
                Some("SympoziumInstance") => harness.instance = Some(read(object)?),
                Some("Model") => harness.model = Some(read(object)?),
                Some("SkillPack") => harness.packs.push(read(object)?),
                Some("SympoziumPolicy") if object["metadata"]["name"] == "floor" => {
                    harness.floor = Some(read(object)?);
                }
                Some("SympoziumPolicy") => harness.policy = Some(read(object)?),
                other => panic!("no kind for a plan: {other:?}"),
            }
        }
        harness.run = run.expect("a run");
        harness.namespace = harness.run.metadata.namespace.clone().expect("a namespace");
        Some(harness)
    }

    /// The documents of a YAML text.
    pub fn from_yaml(text: &str) -> Self {
        let documents = text.split("\n---\n").filter(|document| !document.trim().is_empty());
        Self::from_objects(documents.map(|document| serde_saphyr::from_str::<Value>(document).expect("YAML")))
    }

    /// Calls `look` with the run as it is admitted; returns the violations when it is not.
    pub fn with_admitted<T>(&self, look: impl FnOnce(&Input<'_>, &Admitted<'_>) -> T) -> Result<T, Vec<Violation>> {
        let resolved = resolve(&self.run, &self.namespace, self, &self.settings);
        let packs = resolved.packs();
        let input = resolved.input(&packs);
        match admit(&input) {
            Decision::Admitted(admitted) => Ok(look(&input, &admitted)),
            Decision::Denied(denied) => Err(denied.violations),
        }
    }
}

/// There is one object of each kind but packs; only the names of packs and of the policy count.
impl Objects for Harness {
    type Handle<K: 'static> = Arc<K>;

    fn agent(&self, _: &str, _: &str) -> Option<Arc<Agent>> {
        self.agent.clone().map(Arc::new)
    }

    fn instance(&self, _: &str, _: &str) -> Option<Arc<SympoziumInstance>> {
        self.instance.clone().map(Arc::new)
    }

    fn model(&self, namespace: &str, _: &str) -> Option<Arc<Model>> {
        self.model.clone().filter(|_| namespace != SYSTEM_NAMESPACE).map(Arc::new)
    }

    fn packs(&self, scope: Scope<'_>, name: &str) -> Found<Arc<SkillPack>> {
        let is_of_system = |pack: &SkillPack| pack.metadata.namespace.as_deref() == Some(SYSTEM_NAMESPACE);
        scope.find(|namespace| {
            let of_namespace = |pack: &&SkillPack| is_of_system(pack) == (namespace == SYSTEM_NAMESPACE);
            let mut named = self.packs.iter().filter(|pack| pack.metadata.name.as_deref() == Some(name));
            named.rfind(of_namespace).cloned().map(Arc::new)
        })
    }

    fn policies(&self, _: Scope<'_>, name: &str) -> Found<Arc<SympoziumPolicy>> {
        let policy = self.policy.clone().filter(|policy| policy.metadata.name.as_deref() == Some(name));
        Found { own: policy.map(Arc::new), system: None }
    }

    fn floor(&self) -> Option<Arc<SympoziumPolicy>> {
        self.floor.clone().map(Arc::new)
    }

    fn runtime_classes(&self) -> Cow<'_, RuntimeClasses> {
        Cow::Borrowed(&self.runtime_classes)
    }
}

fn read<K: DeserializeOwned>(object: Value) -> Option<K> {
    serde_json::from_value(object).ok()
}
