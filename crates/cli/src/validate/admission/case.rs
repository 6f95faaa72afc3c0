//! Everything that decides about one run, as far as the files have it.

use std::collections::BTreeMap;

use sympozium_api::names::{ModelRef, SkillPackName};
use sympozium_api::{AgentRun, Model, SkillPack, SympoziumPolicy, SympoziumPolicySpec};
use sympozium_plan::admit::{
    Agents, Candidates, Facts, Input, PackCandidates, PackObject, Settings, wanted_packs, wanted_policy,
};

use super::store::Store;

/// A run, with what it names.
pub struct Case<'s> {
    run: &'s AgentRun,
    namespace: &'s str,
    pub agents: Agents<'s>,
    packs: BTreeMap<SkillPackName, PackCandidates<'s>>,
    pub policies: Candidates<'s, SympoziumPolicy>,
    models: Candidates<'s, Model>,
}

impl<'s> Case<'s> {
    pub fn of(store: &'s Store, run: &'s AgentRun, namespace: &'s str) -> Self {
        let agents = store.agents_called(namespace, run.spec.agent().map(AsRef::as_ref));
        let packs = wanted_packs(run, agents)
            .into_iter()
            .map(|name| {
                let candidates = store.packs_called(namespace, name.as_str());
                (name, pack_candidates(candidates))
            })
            .collect();
        let policies = match wanted_policy(agents) {
            Some(name) => store.policies_called(namespace, name.as_str()),
            None => Candidates::default(),
        };
        let model_ref = run.spec.model.as_ref().and_then(|it| it.model_ref.as_ref());
        Self {
            run,
            namespace,
            agents,
            packs,
            policies,
            models: model_ref.map_or_else(Candidates::default, |reference| models(store, namespace, reference)),
        }
    }

    pub fn input<'c>(&'c self, floor: Option<&'c SympoziumPolicySpec>, settings: &'c Settings) -> Input<'c> {
        Input {
            run: self.run,
            namespace: self.namespace,
            agents: self.agents,
            packs: &self.packs,
            policies: self.policies,
            floor,
            models: self.models,
            author: None,
            facts: Facts::default(),
            settings,
        }
    }
}

fn pack_candidates<'a>(candidates: Candidates<'a, SkillPack>) -> PackCandidates<'a> {
    let object = |pack: Option<&'a SkillPack>| pack.map(|pack| PackObject { pack, author: None });
    PackCandidates { own: object(candidates.own), system: object(candidates.system) }
}

fn models<'s>(store: &'s Store, namespace: &str, reference: &ModelRef) -> Candidates<'s, Model> {
    match reference.as_str().split_once('/') {
        Some((named, name)) => {
            Candidates { own: store.models.get(&(named.to_owned(), name.to_owned())).map(|(_, it)| it), system: None }
        }
        None => store.candidates(&store.models, namespace, reference.as_str()),
    }
}
