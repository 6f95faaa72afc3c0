//! Finds the objects that a run names, for the decision about it: the same for every caller.
//!
//! A controller looks in its caches, the command line in files and in what is shipped with it. What differs between
//! them is an implementation of [`Objects`]; which objects are looked up, in which namespace, and whose permissions are
//! compared is decided here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

use sympozium_api::names::{ModelRef, SkillPackName};
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy};

use crate::admit::{
    Agents, Candidates, Facts, Input, PackCandidates, PackObject, Permissions, RuntimeClasses, Settings,
    referenced_packs, referenced_policy,
};

/// The objects of a caller.
///
/// # Contract
///
/// * An object that is returned exists for the run: the decision depends on it. Absent means that the run may have to
///   wait for it ([`Violation::missing`](crate::admit::Violation::missing)); whether it waits is up to the caller.
/// * Packs and policies are returned for both namespaces of a [`Scope`]. Two candidates are ambiguous, which admission
///   denies unless a policy allows shadowing. A caller may return fewer candidates than [`Scope::find`] does, where it
///   knows which one is meant (a file that the user selected), and add those that an installation ships. It must not
///   return one of another name.
/// * All answers are of one moment, as far as the caller can tell.
pub trait Objects {
    /// How an object is held: by reference, or by a reference count.
    type Handle<K: 'static>: Deref<Target = K>;

    /// The `Agent` of this name.
    fn agent(&self, namespace: &str, name: &str) -> Option<Self::Handle<Agent>>;
    /// The `SympoziumInstance` of this name.
    fn instance(&self, namespace: &str, name: &str) -> Option<Self::Handle<SympoziumInstance>>;
    /// The model of this name.
    fn model(&self, namespace: &str, name: &str) -> Option<Self::Handle<Model>>;
    /// The packs of this name that a run of this scope can mean.
    fn packs(&self, scope: Scope<'_>, name: &str) -> Found<Self::Handle<SkillPack>>;
    /// The policies of this name that an agent of this scope can mean.
    fn policies(&self, scope: Scope<'_>, name: &str) -> Found<Self::Handle<SympoziumPolicy>>;
    /// The policy floor.
    fn floor(&self) -> Option<Self::Handle<SympoziumPolicy>>;
    /// The RuntimeClasses that are known.
    fn runtime_classes(&self) -> Cow<'_, RuntimeClasses>;

    /// Facts about other runs that decide about this one. Unknown by default.
    fn facts(&self) -> Facts {
        Facts::default()
    }

    /// Whose permissions are compared.
    fn authors(&self) -> Authors {
        Authors::Unknown
    }
}

/// What is known about the authors of objects in the run's namespace. Packs and agents of the system namespace are the
/// operator's own: for them, nothing is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authors {
    /// They are not recorded, and hold [what is assumed then](Permissions::for_unknown_author).
    Unknown,
    /// Nothing is compared: for a run of one machine, where no permissions are granted.
    NotCompared,
}

/// The namespaces in which a name is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope<'a> {
    /// That of the run.
    pub own: &'a str,
    /// That of the installation. Absent when it is the run's.
    pub system: Option<&'a str>,
}

impl<'a> Scope<'a> {
    /// The scope of a run in this namespace.
    pub fn new(namespace: &'a str, system: &'a str) -> Self {
        Self { own: namespace, system: (namespace != system).then_some(system) }
    }

    /// Looks in both namespaces.
    pub fn find<H>(self, find: impl Fn(&str) -> Option<H>) -> Found<H> {
        Found { own: find(self.own), system: self.system.and_then(find) }
    }
}

/// What has a name, in the two namespaces of a [`Scope`].
#[derive(Debug, Clone, Copy)]
pub struct Found<H> {
    /// In the run's namespace.
    pub own: Option<H>,
    /// In the system namespace.
    pub system: Option<H>,
}

impl<H> Default for Found<H> {
    fn default() -> Self {
        Self { own: None, system: None }
    }
}

impl<H: Deref> Found<H> {
    fn candidates(&self) -> Candidates<'_, H::Target>
    where
        H::Target: Sized,
    {
        Candidates { own: self.own.as_deref(), system: self.system.as_deref() }
    }
}

/// A run, with the objects that it names.
pub struct Resolved<'r, O: Objects> {
    run: &'r AgentRun,
    namespace: &'r str,
    settings: &'r Settings,
    agent: Option<O::Handle<Agent>>,
    instance: Option<O::Handle<SympoziumInstance>>,
    packs: BTreeMap<SkillPackName, Found<O::Handle<SkillPack>>>,
    policies: Found<O::Handle<SympoziumPolicy>>,
    models: Found<O::Handle<Model>>,
    floor: Option<O::Handle<SympoziumPolicy>>,
    author: Option<Permissions>,
    runtime_classes: Cow<'r, RuntimeClasses>,
    facts: Facts,
}

/// Finds the objects that a run names: its agent, then the packs and the policy that follow from both, its model and
/// the floor. `namespace` is the run's; the one in its metadata is ignored.
pub fn resolve<'r, O: Objects>(
    run: &'r AgentRun,
    namespace: &'r str,
    objects: &'r O,
    settings: &'r Settings,
) -> Resolved<'r, O> {
    let scope = Scope::new(namespace, &settings.system_namespace);
    let floor = objects.floor();
    let author = match objects.authors() {
        Authors::Unknown => {
            Some(Permissions::for_unknown_author(floor.as_deref().map(|policy| &policy.spec), namespace))
        }
        Authors::NotCompared => None,
    };
    let agent_name = run.spec.agent().map(AsRef::as_ref);
    let mut resolved = Resolved {
        run,
        namespace,
        settings,
        agent: agent_name.and_then(|name| objects.agent(namespace, name)),
        instance: agent_name.and_then(|name| objects.instance(namespace, name)),
        packs: BTreeMap::new(),
        policies: Found::default(),
        models: find_models(run, scope, objects),
        floor,
        author,
        runtime_classes: objects.runtime_classes(),
        facts: objects.facts(),
    };
    let packs = referenced_packs(run, resolved.agents());
    let packs = packs.into_iter().map(|name| (name.clone(), objects.packs(scope, name.as_str())));
    let packs: BTreeMap<_, _> = packs.collect();
    let policies = referenced_policy(resolved.agents()).map(|name| objects.policies(scope, name.as_str()));
    let policies = policies.unwrap_or_default();
    resolved.packs = packs;
    resolved.policies = policies;
    resolved
}

/// The model that a run names, as `name` or `namespace/name`.
fn find_models<O: Objects>(run: &AgentRun, scope: Scope<'_>, objects: &O) -> Found<O::Handle<Model>> {
    let reference = run.spec.model.as_ref().and_then(|model| model.model_ref.as_ref());
    let Some(reference) = reference.map(ModelRef::as_str) else {
        return Found::default();
    };
    match reference.split_once('/') {
        Some((namespace, name)) => Found { own: objects.model(namespace, name), system: None },
        None => scope.find(|namespace| objects.model(namespace, reference)),
    }
}

impl<O: Objects> Resolved<'_, O> {
    /// The agent of the run, by both kinds that it may have.
    pub fn agents(&self) -> Agents<'_> {
        Agents { agent: self.agent.as_deref(), instance: self.instance.as_deref(), author: self.author_in_namespace() }
    }

    /// The policy that the agent names.
    pub fn policies(&self) -> Candidates<'_, SympoziumPolicy> {
        self.policies.candidates()
    }

    /// The packs of the run, for [`Resolved::input`].
    pub fn packs(&self) -> BTreeMap<SkillPackName, PackCandidates<'_>> {
        let author = self.author_in_namespace();
        let candidates = self.packs.iter().map(|(name, found)| {
            let Candidates { own, system } = found.candidates();
            let own = own.map(|pack| PackObject { pack, author });
            let system = system.map(|pack| PackObject { pack, author: None });
            (name.clone(), PackCandidates { own, system })
        });
        candidates.collect()
    }

    /// The input of admission. `packs` are [those of the run](Resolved::packs).
    pub fn input<'a>(&'a self, packs: &'a BTreeMap<SkillPackName, PackCandidates<'a>>) -> Input<'a> {
        Input {
            run: self.run,
            namespace: self.namespace,
            agents: self.agents(),
            packs,
            policies: self.policies(),
            floor: self.floor.as_deref().map(|policy| &policy.spec),
            models: self.models.candidates(),
            author: self.author.as_ref(),
            runtime_classes: &self.runtime_classes,
            facts: self.facts,
            settings: self.settings,
        }
    }

    /// The permissions of authors of agents and packs in the run's namespace.
    fn author_in_namespace(&self) -> Option<&Permissions> {
        self.author.as_ref().filter(|_| self.namespace != self.settings.system_namespace)
    }
}
