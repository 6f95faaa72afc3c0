//! Everything that decides about one run, as far as the files have it.

use std::collections::BTreeMap;

use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::names::{ModelRef, SkillPackName};
use sympozium_api::{AgentRun, Model, SkillPack, SympoziumPolicy, SympoziumPolicySpec};
use sympozium_plan::admit::{
    Agents, Candidates, Facts, Input, PackCandidates, PackObject, Permissions, RuntimeClasses, Settings,
    referenced_packs, referenced_policy,
};

use super::object_index::{Lookup, ObjectIndex};

/// A run, with the objects that it names.
pub struct ResolvedRun<'s> {
    run: &'s AgentRun,
    namespace: &'s str,
    author: Option<&'s Permissions>,
    pub agents: Agents<'s>,
    packs: BTreeMap<SkillPackName, PackCandidates<'s>>,
    /// The packs, with their origin.
    pub found_packs: BTreeMap<SkillPackName, Lookup<'s, SkillPack>>,
    /// The policy, with its origin.
    pub found_policy: Lookup<'s, SympoziumPolicy>,
    models: Candidates<'s, Model>,
    runtime_classes: &'s RuntimeClasses,
}

impl<'s> ResolvedRun<'s> {
    /// Authors of what is in the run's namespace may do what `author` says. As the controller has it: what is in the system's
    /// namespace is the operator's own, but for a run.
    pub fn of(store: &'s ObjectIndex, run: &'s AgentRun, namespace: &'s str, author: Option<&'s Permissions>) -> Self {
        let of_namespace = author.filter(|_| namespace != SYSTEM_NAMESPACE);
        let agents = store.find_agents(namespace, run.spec.agent().map(AsRef::as_ref));
        let agents = Agents { author: of_namespace, ..agents };
        let found_packs: BTreeMap<_, _> = referenced_packs(run, agents)
            .into_iter()
            .map(|name| {
                let found = store.find_packs(namespace, name.as_str());
                (name, found)
            })
            .collect();
        let packs = found_packs.iter();
        let packs = packs.map(|(name, found)| (name.clone(), pack_candidates(found.candidates, of_namespace)));
        let packs = packs.collect();
        let found_policy = match referenced_policy(agents) {
            Some(name) => store.find_policies(namespace, name.as_str()),
            None => Lookup::default(),
        };
        let model_ref = run.spec.model.as_ref().and_then(|it| it.model_ref.as_ref());
        Self {
            run,
            namespace,
            author,
            agents,
            packs,
            found_packs,
            found_policy,
            runtime_classes: &store.runtime_classes,
            models: model_ref.map_or_else(Candidates::default, |reference| models(store, namespace, reference)),
        }
    }

    pub fn input<'c>(&'c self, floor: Option<&'c SympoziumPolicySpec>, settings: &'c Settings) -> Input<'c> {
        Input {
            run: self.run,
            namespace: self.namespace,
            agents: self.agents,
            packs: &self.packs,
            policies: self.found_policy.candidates,
            floor,
            models: self.models,
            author: self.author,
            runtime_classes: self.runtime_classes,
            facts: Facts::default(),
            settings,
        }
    }
}

fn pack_candidates<'a>(candidates: Candidates<'a, SkillPack>, author: Option<&'a Permissions>) -> PackCandidates<'a> {
    PackCandidates {
        own: candidates.own.map(|pack| PackObject { pack, author }),
        system: candidates.system.map(|pack| PackObject { pack, author: None }),
    }
}

fn models<'s>(store: &'s ObjectIndex, namespace: &str, reference: &ModelRef) -> Candidates<'s, Model> {
    match reference.as_str().split_once('/') {
        Some((named, name)) => {
            Candidates { own: store.models.get(&(named.to_owned(), name.to_owned())).map(|(_, it)| it), system: None }
        }
        None => store.candidates(&store.models, namespace, reference.as_str()),
    }
}
