//! Manifests as the input of a plan.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sympozium_api::names::SkillPackName;
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy};

use crate::admit::{
    Admitted, Agents, Candidates, Decision, Facts, Input, PackCandidates, PackObject, Reason, Settings, admit,
};

/// A run and everything around it.
pub struct World {
    pub run: AgentRun,
    agent: Option<Agent>,
    instance: Option<SympoziumInstance>,
    packs: Vec<SkillPack>,
    policy: Option<SympoziumPolicy>,
    floor: Option<SympoziumPolicy>,
    model: Option<Model>,
    namespace: String,
    settings: Settings,
}

impl World {
    /// Takes objects as they come.
    pub fn of(objects: impl IntoIterator<Item = Value>) -> Self {
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
        };
        for object in objects {
            match object["kind"].as_str() {
                Some("AgentRun") => run = Some(read::<AgentRun>(object)),
                Some("Agent") => world.agent = Some(read(object)),
                Some("SympoziumInstance") => world.instance = Some(read(object)),
                Some("Model") => world.model = Some(read(object)),
                Some("SkillPack") => world.packs.push(read(object)),
                Some("SympoziumPolicy") if object["metadata"]["name"] == "floor" => {
                    world.floor = Some(read(object));
                }
                Some("SympoziumPolicy") => world.policy = Some(read(object)),
                other => panic!("no kind for a plan: {other:?}"),
            }
        }
        world.run = run.expect("a run");
        world.namespace = world.run.metadata.namespace.clone().expect("a namespace");
        world
    }

    /// The documents of a YAML text.
    pub fn yaml(text: &str) -> Self {
        let documents = text.split("\n---\n").filter(|it| !it.trim().is_empty());
        Self::of(documents.map(|it| serde_saphyr::from_str::<Value>(it).expect("YAML")))
    }

    /// Looks at the run as it is admitted; the reasons when it is not.
    pub fn admitted<T>(&self, look: impl FnOnce(&Input<'_>, &Admitted<'_>) -> T) -> Result<T, Vec<Reason>> {
        let mut packs: BTreeMap<SkillPackName, PackCandidates<'_>> = BTreeMap::new();
        for pack in &self.packs {
            let name = SkillPackName::new(pack.metadata.name.clone().expect("a name"));
            packs.entry(name).or_default().own = Some(PackObject { pack, author: None });
        }
        let input = Input {
            run: &self.run,
            namespace: &self.namespace,
            agents: Agents { agent: self.agent.as_ref(), instance: self.instance.as_ref() },
            packs: &packs,
            policies: Candidates { own: self.policy.as_ref(), system: None },
            floor: self.floor.as_ref().map(|it| &it.spec),
            models: Candidates { own: self.model.as_ref(), system: None },
            author: None,
            facts: Facts::default(),
            settings: &self.settings,
        };
        match admit(&input) {
            Decision::Admitted(admitted) => Ok(look(&input, &admitted)),
            Decision::Denied(denied) => Err(denied.reasons),
        }
    }
}

fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).expect("an object of its kind")
}
