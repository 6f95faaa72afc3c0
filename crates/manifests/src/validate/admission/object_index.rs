//! The objects of the files, parsed into their types, by name.

use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumSchedule};
use sympozium_plan::admit::RuntimeClasses;
use sympozium_plan::resolve::{Found, Scope};

use super::super::ExternalObjects;
use super::super::finding::{Finding, Findings, ValidationStage};
use super::super::object::{Object, ObjectKind};
use crate::built_in;
use crate::kinds::Kind;
use crate::problem::Problem;
use crate::tree::Node;

/// Namespace and name.
type Key = (String, String);

/// Objects by name, each with its index among all objects. Of two objects with one name the first counts.
pub struct ByName<K>(HashMap<Key, (usize, K)>);

impl<K> Default for ByName<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K> ByName<K> {
    pub fn find(&self, namespace: &str, name: &str) -> Option<&K> {
        self.get(namespace, name).map(|(_, object)| object)
    }

    fn get(&self, namespace: &str, name: &str) -> Option<&(usize, K)> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// In the order of the files.
    pub fn sorted(&self) -> Vec<&(usize, K)> {
        let mut all: Vec<_> = self.0.values().collect();
        all.sort_by_key(|(index, _)| *index);
        all
    }
}

impl<K: DeserializeOwned> ByName<K> {
    fn add(&mut self, index: usize, object: &Object) -> Result<(), serde_json::Error> {
        let key = (object.name.namespace.clone(), object.name.name.clone());
        let value = read(object)?;
        self.0.entry(key).or_insert((index, value));
        Ok(())
    }
}

#[derive(Default)]
pub struct ObjectIndex {
    pub agents: ByName<Agent>,
    pub instances: ByName<SympoziumInstance>,
    pub packs: ByName<SkillPack>,
    pub policies: ByName<SympoziumPolicy>,
    pub models: ByName<Model>,
    pub schedules: ByName<SympoziumSchedule>,
    pub runs: Vec<(usize, AgentRun)>,
    /// The handlers of the RuntimeClasses among the files. Others are unknown: a class's name proves nothing.
    pub runtime_classes: RuntimeClasses,
    /// The shipped policies that an object names.
    built_in_policies: HashMap<&'static str, SympoziumPolicy>,
    /// The shipped packs that an object names.
    built_in_packs: HashMap<&'static str, SkillPack>,
    /// The indices of objects that the command line selected by their files.
    explicit: HashSet<usize>,
}

/// The objects of one name that an object of some namespace can refer to, and their origins.
#[derive(Debug)]
pub struct Lookup<'s, K> {
    /// The objects that admission chooses from.
    pub found: Found<&'s K>,
    /// The index of the candidate of the own namespace.
    pub own: Option<usize>,
    /// The index of the candidate of the system namespace; `None` for a shipped one.
    pub system: Option<usize>,
    /// The index of an object that claims the system namespace and the name of a shipped object, and differs from it.
    /// It is not a candidate: the system namespace has the shipped object.
    pub impostor: Option<usize>,
}

impl<K> Lookup<'_, K> {
    /// Whether the candidate of the system namespace is shipped.
    pub fn is_shipped(&self) -> bool {
        self.found.system.is_some() && self.system.is_none()
    }
}

impl<K> Default for Lookup<'_, K> {
    fn default() -> Self {
        Self { found: Found::default(), own: None, system: None, impostor: None }
    }
}

impl ObjectIndex {
    /// Parses the objects that conform to their schemas, and others if they can be parsed: users should see all
    /// findings at once. Policies and models with an error are left out, because what they allow is unknown.
    pub fn build(objects: &[Object], files: &[String], beyond: ExternalObjects, findings: &mut Findings) -> Self {
        let mut store = Self::default();
        for (index, object) in objects.iter().enumerate() {
            let ObjectKind::Sympozium(kind) = object.kind else {
                store.add_runtime_class(object);
                continue;
            };
            if object.is_explicit {
                store.explicit.insert(index);
            }
            if !object.is_valid && kind.row().decides_about_others {
                continue;
            }
            // For an object with an error the error was reported already.
            if let Err(error) = store.add(index, object, kind)
                && object.is_valid
            {
                let message = format!("cannot be read as {}: {error}", kind.name());
                let problem = Problem::error("type", object.node.at, message)
                    .with_hint("correct the value; `sympozium crds` prints what each field takes");
                findings.add(Finding {
                    stage: ValidationStage::Schema,
                    object: Some(object.name.clone()),
                    ..Finding::from_problem(&files[object.file], problem)
                });
            }
        }
        if beyond != ExternalObjects::Cluster {
            store.add_built_in();
        }
        store
    }

    fn add(&mut self, index: usize, object: &Object, kind: Kind) -> Result<(), serde_json::Error> {
        match kind {
            Kind::Agent => self.agents.add(index, object),
            Kind::SympoziumInstance => self.instances.add(index, object),
            Kind::SkillPack => self.packs.add(index, object),
            Kind::SympoziumPolicy => self.policies.add(index, object),
            Kind::Model => self.models.add(index, object),
            Kind::AgentRun => {
                self.runs.push((index, read(object)?));
                Ok(())
            }
            Kind::SympoziumSchedule => self.schedules.add(index, object),
            Kind::ToolApproval | Kind::RunRecord => Ok(()),
        }
    }

    /// Records the handler of a RuntimeClass. Of two with one name and different handlers neither counts: a cluster has
    /// one of them, and it is unknown which.
    fn add_runtime_class(&mut self, object: &Object) {
        let text = |field: &str| object.node.get(field).and_then(Node::as_text);
        let is_one = text("kind") == Some("RuntimeClass")
            && text("apiVersion").is_some_and(|text| text.starts_with("node.k8s.io/"));
        let (true, Some(handler)) = (is_one, text("handler")) else {
            return;
        };
        let name = object.name.name.clone();
        let known = self.runtime_classes.entry(name).or_insert_with(|| handler.to_owned());
        if known != handler {
            known.clear();
        }
    }

    /// Parses only what the objects name: the packs are long.
    fn add_built_in(&mut self) {
        let agents = self.agents.0.values().map(|(_, agent)| &agent.spec);
        let instances = self.instances.0.values().map(|(_, instance)| &instance.spec);
        let specs: Vec<_> = agents.chain(instances).collect();
        let policies: HashSet<&str> =
            specs.iter().filter_map(|spec| spec.policy_ref.as_ref().map(AsRef::as_ref)).collect();
        let of_agents = specs.iter().flat_map(|spec| &spec.skills);
        let of_runs = self.runs.iter().flat_map(|(_, run)| &run.spec.skills);
        let packs: HashSet<&str> =
            of_agents.chain(of_runs).filter_map(|skill| skill.skill_pack_ref.as_ref().map(AsRef::as_ref)).collect();
        self.built_in_policies = built_in::POLICIES
            .iter()
            .filter(|(name, _)| policies.contains(name))
            .filter_map(|(name, _)| Some((*name, built_in::policy(name)?)))
            .collect();
        self.built_in_packs = built_in::PACKS
            .iter()
            .filter(|(name, _)| packs.contains(name))
            .filter_map(|(name, _)| Some((*name, built_in::pack(name)?)))
            .collect();
    }

    /// The index of a run's agent.
    pub fn agent_index(&self, namespace: &str, run: &AgentRun) -> Option<usize> {
        let name = run.spec.agent()?.as_str();
        let agent = self.agents.get(namespace, name).map(|(index, _)| *index);
        agent.or_else(|| self.instances.get(namespace, name).map(|(index, _)| *index))
    }

    /// The agents that no run among the files names, in the order of the files.
    pub fn agents_without_runs<'o>(&self, objects: &'o [Object]) -> Vec<(usize, &'o str)> {
        let with_runs: HashSet<usize> = self
            .runs
            .iter()
            .filter_map(|(index, run)| self.agent_index(&objects[*index].name.namespace, run))
            .collect();
        let agents = self.agents.0.values().map(|(index, _)| *index);
        let mut all: Vec<usize> = agents
            .chain(self.instances.0.values().map(|(index, _)| *index))
            .filter(|index| !with_runs.contains(index))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|index| (index, objects[index].name.name.as_str())).collect()
    }

    /// The policies of this name, including a shipped one that the files do not have.
    pub fn find_policies(&self, scope: Scope<'_>, name: &str) -> Lookup<'_, SympoziumPolicy> {
        let shipped = self.built_in_policies.get(name);
        // The operator owns the floor of the system namespace.
        let is_operators = name == FLOOR_POLICY && self.policies.get(SYSTEM_NAMESPACE, name).is_some();
        let shipped = shipped.filter(|_| !is_operators);
        self.lookup(&self.policies, shipped, scope, name, |a, b| a.spec == b.spec)
    }

    /// The same for packs.
    pub fn find_packs(&self, scope: Scope<'_>, name: &str) -> Lookup<'_, SkillPack> {
        let shipped = self.built_in_packs.get(name);
        self.lookup(&self.packs, shipped, scope, name, |a, b| a.spec == b.spec)
    }

    /// A shipped object is in the system namespace. An equal object of the files is that object, whatever namespace it
    /// names; a different one of its name does not replace it.
    fn lookup<'s, K>(
        &'s self,
        all: &'s ByName<K>,
        shipped: Option<&'s K>,
        scope: Scope<'_>,
        name: &str,
        is_same: fn(&K, &K) -> bool,
    ) -> Lookup<'s, K> {
        let Found { own, system } = scope.find(|namespace| all.get(namespace, name));
        if let Some((index, object)) = own.filter(|(index, _)| self.explicit.contains(index)) {
            let found = Found { own: Some(object), system: None };
            return Lookup { found, own: Some(*index), ..Lookup::default() };
        }
        let Some(shipped) = shipped else {
            return Lookup {
                found: Found { own: own.map(|(_, object)| object), system: system.map(|(_, object)| object) },
                own: own.map(|(index, _)| *index),
                system: system.map(|(index, _)| *index),
                impostor: None,
            };
        };
        let own = own.filter(|(_, object)| !is_same(object, shipped));
        let system = system.filter(|(_, object)| !is_same(object, shipped));
        let (own, impostor) = if scope.system.is_some() { (own, system) } else { (None, own) };
        Lookup {
            found: Found { own: own.map(|(_, object)| object), system: Some(shipped) },
            own: own.map(|(index, _)| *index),
            system: None,
            impostor: impostor.map(|(index, _)| *index),
        }
    }
}

/// Without the status if the object is from a file: our programs decide by the status that they wrote, and any user can
/// write a file.
fn read<K: DeserializeOwned>(object: &Object) -> Result<K, serde_json::Error> {
    let mut value = object.node.to_json();
    if let Some(fields) = value.as_object_mut().filter(|_| !object.is_stored) {
        fields.remove("status");
    }
    serde_json::from_value(value)
}
