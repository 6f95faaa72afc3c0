//! The objects of the files as what they are, by name.

use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy};
use sympozium_plan::admit::{Agents, Candidates};

use super::super::Beyond;
use super::super::finding::{Finding, Findings, Stage};
use super::super::object::{Object, ObjectKind};
use crate::built_in;
use crate::kinds::Kind;
use crate::manifests::problem::Problem;

/// Namespace and name.
type Key = (String, String);

/// By name; with each its place among all objects. Of two with one name the first counts.
type Named<K> = HashMap<Key, (usize, K)>;

#[derive(Default)]
pub struct Store {
    pub agents: Named<Agent>,
    pub instances: Named<SympoziumInstance>,
    pub packs: Named<SkillPack>,
    pub policies: Named<SympoziumPolicy>,
    pub models: Named<Model>,
    pub runs: Vec<(usize, AgentRun)>,
    /// The policies of an installation, those that somebody names.
    built_in_policies: HashMap<&'static str, SympoziumPolicy>,
    /// The same for packs.
    built_in_packs: HashMap<&'static str, SkillPack>,
}

impl Store {
    /// Reads the objects that their schemas accept. Others too, if they can be read: whoever mends one error should not
    /// meet the next only then. Policies and models with an error are left out, because what they give is not known.
    pub fn of(objects: &[Object], files: &[String], beyond: Beyond, findings: &mut Findings) -> Self {
        let mut store = Self::default();
        for (index, object) in objects.iter().enumerate() {
            let ObjectKind::Ours(kind) = object.kind else {
                continue;
            };
            let decides_about_others = matches!(kind, Kind::SympoziumPolicy | Kind::Model);
            if !object.is_sound && decides_about_others {
                continue;
            }
            // Why an object with an error cannot be read was told with the error.
            if let Err(error) = store.add(index, object, kind)
                && object.is_sound
            {
                let message = format!("cannot be read as {}: {error}", kind.name());
                let problem = Problem::error("type", object.node.at, message)
                    .hint("correct the value; `sympozium crds` prints what each field takes");
                findings.add(Finding {
                    stage: Stage::Schema,
                    object: Some(object.name.clone()),
                    ..Finding::of_file(&files[object.file], problem)
                });
            }
        }
        if beyond == Beyond::Installation {
            store.add_built_in();
        }
        store
    }

    fn add(&mut self, index: usize, object: &Object, kind: Kind) -> Result<(), serde_json::Error> {
        match kind {
            Kind::Agent => add(&mut self.agents, index, object),
            Kind::SympoziumInstance => add(&mut self.instances, index, object),
            Kind::SkillPack => add(&mut self.packs, index, object),
            Kind::SympoziumPolicy => add(&mut self.policies, index, object),
            Kind::Model => add(&mut self.models, index, object),
            Kind::AgentRun => {
                self.runs.push((index, read(object)?));
                Ok(())
            }
            Kind::SympoziumSchedule | Kind::ToolApproval | Kind::RunRecord => Ok(()),
        }
    }

    /// Reads what somebody names, and nothing else: the packs are long.
    fn add_built_in(&mut self) {
        let agents = self.agents.values().map(|(_, it)| &it.spec);
        let instances = self.instances.values().map(|(_, it)| &it.spec);
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

    pub fn agents_called(&self, namespace: &str, name: Option<&str>) -> Agents<'_> {
        let Some(name) = name else {
            return Agents::default();
        };
        let key = (namespace.to_owned(), name.to_owned());
        Agents {
            agent: self.agents.get(&key).map(|(_, agent)| agent),
            instance: self.instances.get(&key).map(|(_, instance)| instance),
        }
    }

    /// The agent of a run, by its place.
    pub fn agent_index(&self, namespace: &str, run: &AgentRun) -> Option<usize> {
        let key = (namespace.to_owned(), run.spec.agent()?.as_str().to_owned());
        let agent = self.agents.get(&key).map(|(index, _)| *index);
        agent.or_else(|| self.instances.get(&key).map(|(index, _)| *index))
    }

    /// The agents that no run among the files is of, with their names, in the order of the files.
    pub fn agents_without_runs<'o>(&self, objects: &'o [Object]) -> Vec<(usize, &'o str)> {
        let with_runs: HashSet<usize> = self
            .runs
            .iter()
            .filter_map(|(index, run)| self.agent_index(&objects[*index].name.namespace, run))
            .collect();
        let agents = self.agents.values().map(|(index, _)| *index);
        let mut all: Vec<usize> = agents
            .chain(self.instances.values().map(|(index, _)| *index))
            .filter(|index| !with_runs.contains(index))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|index| (index, objects[index].name.name.as_str())).collect()
    }

    /// Where an installation looks: the object's own namespace, and the system's.
    pub fn candidates<'s, K>(&'s self, named: &'s Named<K>, namespace: &str, name: &str) -> Candidates<'s, K> {
        let get = |namespace: &str| {
            let key = (namespace.to_owned(), name.to_owned());
            named.get(&key).map(|(_, object)| object)
        };
        Candidates { own: get(namespace), system: get(SYSTEM_NAMESPACE).filter(|_| namespace != SYSTEM_NAMESPACE) }
    }

    /// The same for policies, of which the files need not have those that are shipped.
    pub fn policies_called(&self, namespace: &str, name: &str) -> Candidates<'_, SympoziumPolicy> {
        let found = self.candidates(&self.policies, namespace, name);
        or_built_in(found, self.built_in_policies.get(name))
    }

    /// The same for packs.
    pub fn packs_called(&self, namespace: &str, name: &str) -> Candidates<'_, SkillPack> {
        let found = self.candidates(&self.packs, namespace, name);
        or_built_in(found, self.built_in_packs.get(name))
    }
}

/// What an installation ships counts where the files have nothing of the name: one of theirs may be meant to replace it.
fn or_built_in<'s, K>(found: Candidates<'s, K>, built_in: Option<&'s K>) -> Candidates<'s, K> {
    match (found.own, found.system) {
        (None, None) => Candidates { own: None, system: built_in },
        _ => found,
    }
}

fn add<K: DeserializeOwned>(named: &mut Named<K>, index: usize, object: &Object) -> Result<(), serde_json::Error> {
    let key = (object.name.namespace.clone(), object.name.name.clone());
    let value = read(object)?;
    named.entry(key).or_insert((index, value));
    Ok(())
}

fn read<K: DeserializeOwned>(object: &Object) -> Result<K, serde_json::Error> {
    serde_json::from_value(object.node.to_json())
}
