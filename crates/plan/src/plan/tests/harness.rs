//! Manifests as the input of a plan.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::names::SkillPackName;
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy};

use crate::admit::{
    Admitted, Agents, Candidates, Decision, Facts, Input, PackCandidates, PackObject, Permissions, RuntimeClasses,
    Settings, Violation, admit,
};

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
        let mut world = Self {
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
                Some("Agent") => world.agent = Some(read(object)?),
                Some("SympoziumInstance") => world.instance = Some(read(object)?),
                Some("Model") => world.model = Some(read(object)?),
                Some("SkillPack") => world.packs.push(read(object)?),
                Some("SympoziumPolicy") if object["metadata"]["name"] == "floor" => {
                    world.floor = Some(read(object)?);
                }
                Some("SympoziumPolicy") => world.policy = Some(read(object)?),
                other => panic!("no kind for a plan: {other:?}"),
            }
        }
        world.run = run.expect("a run");
        world.namespace = world.run.metadata.namespace.clone().expect("a namespace");
        Some(world)
    }

    /// The documents of a YAML text.
    pub fn from_yaml(text: &str) -> Self {
        let documents = text.split("\n---\n").filter(|it| !it.trim().is_empty());
        Self::from_objects(documents.map(|it| serde_saphyr::from_str::<Value>(it).expect("YAML")))
    }

    /// Whether the agent names a policy.
    fn is_bound_to(&self, policy: &SympoziumPolicy) -> bool {
        let of_instance = self.instance.as_ref().map(|it| &it.spec);
        let spec = self.agent.as_ref().map(|it| &it.spec).or(of_instance);
        let named = spec.and_then(|it| it.policy_ref.as_ref());
        named.map(|it| it.as_str()) == policy.metadata.name.as_deref()
    }

    /// Calls `look` with the run as it is admitted; returns the violations when it is not.
    pub fn with_admitted<T>(&self, look: impl FnOnce(&Input<'_>, &Admitted<'_>) -> T) -> Result<T, Vec<Violation>> {
        // As the controller does it: authors of objects in the namespace are not recorded.
        let floor = self.floor.as_ref().map(|it| &it.spec);
        let unknown = Permissions::for_unknown_author(floor, &self.namespace);
        let author = Some(&unknown);
        let mut packs: BTreeMap<SkillPackName, PackCandidates<'_>> = BTreeMap::new();
        for pack in &self.packs {
            let name = SkillPackName::new(pack.metadata.name.clone().expect("a name"));
            let candidates = packs.entry(name).or_default();
            match pack.metadata.namespace.as_deref() {
                Some(SYSTEM_NAMESPACE) => {
                    candidates.system = Some(PackObject { pack, author: None });
                }
                _ => candidates.own = Some(PackObject { pack, author }),
            }
        }
        let input = Input {
            run: &self.run,
            namespace: &self.namespace,
            agents: Agents { agent: self.agent.as_ref(), instance: self.instance.as_ref(), author },
            packs: &packs,
            policies: Candidates { own: self.policy.as_ref().filter(|it| self.is_bound_to(it)), system: None },
            floor,
            models: Candidates { own: self.model.as_ref(), system: None },
            author,
            runtime_classes: &self.runtime_classes,
            facts: Facts::default(),
            settings: &self.settings,
        };
        match admit(&input) {
            Decision::Admitted(admitted) => Ok(look(&input, &admitted)),
            Decision::Denied(denied) => Err(denied.violations),
        }
    }
}

fn read<K: DeserializeOwned>(object: Value) -> Option<K> {
    serde_json::from_value(object).ok()
}
