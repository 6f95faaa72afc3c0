//! Everything that decides about one run, as far as the files have it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sympozium_api::names::SkillPackName;
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy};
use sympozium_plan::admit::{RuntimeClasses, Settings, referenced_packs, referenced_policy};
use sympozium_plan::resolve::{Authors, Found, Objects, Resolved, Scope, resolve};

use super::object_index::{Lookup, ObjectIndex};

/// The objects of the files and the shipped ones, as a run finds them.
pub struct FileObjects<'s> {
    pub index: &'s ObjectIndex,
    pub floor: Option<&'s SympoziumPolicy>,
    pub authors: Authors,
}

impl<'s> Objects for FileObjects<'s> {
    type Handle<K: 'static> = &'s K;

    fn agent(&self, namespace: &str, name: &str) -> Option<&'s Agent> {
        self.index.agents.find(namespace, name)
    }

    fn instance(&self, namespace: &str, name: &str) -> Option<&'s SympoziumInstance> {
        self.index.instances.find(namespace, name)
    }

    fn model(&self, namespace: &str, name: &str) -> Option<&'s Model> {
        self.index.models.find(namespace, name)
    }

    fn packs(&self, scope: Scope<'_>, name: &str) -> Found<&'s SkillPack> {
        self.index.find_packs(scope, name).found
    }

    fn policies(&self, scope: Scope<'_>, name: &str) -> Found<&'s SympoziumPolicy> {
        self.index.find_policies(scope, name).found
    }

    fn floor(&self) -> Option<&'s SympoziumPolicy> {
        self.floor
    }

    fn runtime_classes(&self) -> Cow<'_, RuntimeClasses> {
        Cow::Borrowed(&self.index.runtime_classes)
    }

    fn authors(&self) -> Authors {
        self.authors
    }
}

/// A run, with the objects that it names.
pub struct ResolvedRun<'s> {
    pub resolved: Resolved<'s, FileObjects<'s>>,
    /// The packs, with their origin.
    pub packs: BTreeMap<SkillPackName, Lookup<'s, SkillPack>>,
    /// The policy, with its origin.
    pub policy: Lookup<'s, SympoziumPolicy>,
}

impl<'s> ResolvedRun<'s> {
    pub fn new(objects: &'s FileObjects<'s>, run: &'s AgentRun, namespace: &'s str, settings: &'s Settings) -> Self {
        let scope = Scope::new(namespace, &settings.system_namespace);
        let resolved = resolve(run, namespace, objects, settings);
        let packs = referenced_packs(run, resolved.agents()).into_iter().map(|name| {
            let found = objects.index.find_packs(scope, name.as_str());
            (name, found)
        });
        let packs = packs.collect();
        let policy = referenced_policy(resolved.agents()).map(|name| objects.index.find_policies(scope, name.as_str()));
        let policy = policy.unwrap_or_default();
        Self { resolved, packs, policy }
    }
}
