//! Resolves, admits, plans and renders a run. Reads only the caches, and sends no request.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use sympozium_api::agent_run::Phase;
use sympozium_api::labels::FLOOR_POLICY;
use sympozium_api::names::{AgentName, SkillPackName};
use sympozium_api::{AgentRun, RunPlan, SkillPack, limits};
use sympozium_plan::admit::{
    Agents, Candidates, Decision, Facts, Input, PackCandidates, PackObject, Permissions, RuntimeClasses, Violation,
    admit, referenced_packs, referenced_policy, subagent_bounds,
};
use sympozium_plan::plan::plan;
use sympozium_plan::render::{RenderSettings, Rendered, render};

use super::index::WaitReason;
use super::stored::StoredRun;
use crate::caches::Caches;
use crate::context::Context;

/// An admitted and rendered run.
#[derive(Debug)]
pub struct Prepared {
    pub plan: RunPlan,
    pub rendered: Rendered,
    /// Warnings of the admission.
    pub warnings: Vec<Violation>,
}

/// Why a run cannot start now.
#[derive(Debug, PartialEq)]
pub enum StartBlocker {
    /// An object that it names does not exist yet.
    Missing(Vec<Violation>),
    /// It has to wait for a slot.
    Queued(WaitReason),
    Denied(Vec<Violation>),
    /// It is admitted, and cannot be planned or rendered.
    Impossible(String),
}

pub fn prepare(run: &StoredRun, context: &Context, render_settings: &RenderSettings) -> Result<Prepared, StartBlocker> {
    let caches = &context.caches;
    let namespace = run.namespace();
    let system = context.settings.system_namespace.as_str();
    let elsewhere = (namespace != system).then_some(system);

    let name = run.spec.agent().map(AgentName::as_str);
    let agent = name.and_then(|name| Caches::find(&caches.agents, namespace, name));
    let instance = name.and_then(|name| Caches::find(&caches.instances, namespace, name));
    let floor = Caches::find(&caches.policies, system, FLOOR_POLICY);
    let floor_spec = floor.as_deref().map(|it| &it.spec);
    // Authors are not recorded, so those of runs, and of agents and packs of this namespace, are unknown. Packs and
    // agents of the system namespace belong to the operator: nothing is compared for them.
    let unknown = Permissions::for_unknown_author(floor_spec, namespace);
    let of_namespace = elsewhere.map(|_| &unknown);
    let agents = Agents { agent: agent.as_deref(), instance: instance.as_deref(), author: of_namespace };
    let policies = referenced_policy(agents).map(|name| {
        let in_namespace = |namespace: &str| Caches::find(&caches.policies, namespace, name.as_str());
        (in_namespace(namespace), elsewhere.and_then(in_namespace))
    });
    let (own_policy, system_policy) = policies.unwrap_or((None, None));
    let (own_model, system_model) = find_models(run, caches, namespace, elsewhere);

    let packs = find_packs(run, agents, caches, namespace, elsewhere);
    let candidates: BTreeMap<SkillPackName, PackCandidates<'_>> = packs
        .iter()
        .map(|(name, (own, of_system))| {
            let candidates = PackCandidates {
                own: own.as_deref().map(|pack| PackObject { pack, author: of_namespace }),
                system: of_system.as_deref().map(|pack| PackObject { pack, author: None }),
            };
            (name.clone(), candidates)
        })
        .collect();
    let runtime_classes = runtime_handlers(caches);
    let input = Input {
        run,
        namespace,
        agents,
        packs: &candidates,
        policies: Candidates { own: own_policy.as_deref(), system: system_policy.as_deref() },
        floor: floor_spec,
        models: Candidates { own: own_model.as_deref(), system: system_model.as_deref() },
        author: Some(&unknown),
        runtime_classes: &runtime_classes,
        facts: tree_facts(run, caches),
        settings: &context.settings.admission,
    };
    let admitted = match admit(&input) {
        Decision::Admitted(admitted) => admitted,
        // Without its agent or a pack, a run has many other violations: they count once everything is found.
        Decision::Denied(denied) if denied.violations.iter().any(|it| it.missing.is_some()) => {
            return Err(StartBlocker::Missing(denied.violations));
        }
        Decision::Denied(denied) => return Err(StartBlocker::Denied(denied.violations)),
    };
    let bounds = subagent_bounds(&admitted.policy, agents.spec());
    if run.status.as_ref().is_none_or(|it| it.plan_digest.is_none())
        && let Err(turn) = reserve_slot(run, context, bounds.concurrent)
    {
        return Err(StartBlocker::Queued(turn));
    }
    let planned = plan(&input, &admitted, &context.settings.plan)
        .map_err(|error| StartBlocker::Impossible(format!("{error}; {}", error.hint())))?;
    let rendered = render(&planned.plan, &planned.texts, render_settings)
        .map_err(|error| StartBlocker::Impossible(error.to_string()))?;
    Ok(Prepared { plan: planned.plan, rendered, warnings: admitted.warnings.clone() })
}

/// The handlers of the cluster's RuntimeClasses; there are only a few.
fn runtime_handlers(caches: &Caches) -> RuntimeClasses {
    let classes = caches.runtime_classes.state().into_iter();
    classes.map(|class| (class.name_any(), class.handler.clone())).collect()
}

type OwnAndSystem<K> = (Option<Arc<K>>, Option<Arc<K>>);

fn find_packs(
    run: &AgentRun,
    agents: Agents<'_>,
    caches: &Caches,
    namespace: &str,
    elsewhere: Option<&str>,
) -> Vec<(SkillPackName, OwnAndSystem<SkillPack>)> {
    let in_namespace = |name: &SkillPackName, namespace: &str| Caches::find(&caches.packs, namespace, name.as_str());
    referenced_packs(run, agents)
        .into_iter()
        .map(|name| {
            let own = in_namespace(&name, namespace);
            let system = elsewhere.and_then(|system| in_namespace(&name, system));
            (name, (own, system))
        })
        .collect()
}

/// The model that a run names, as `name` or `namespace/name`.
fn find_models(
    run: &AgentRun,
    caches: &Caches,
    namespace: &str,
    elsewhere: Option<&str>,
) -> OwnAndSystem<sympozium_api::Model> {
    let reference = run.spec.model.as_ref().and_then(|it| it.model_ref.as_ref());
    let Some(reference) = reference.map(|it| it.as_str()) else {
        return (None, None);
    };
    match reference.split_once('/') {
        Some((namespace, name)) => (Caches::find(&caches.models, namespace, name), None),
        None => (
            Caches::find(&caches.models, namespace, reference),
            elsewhere.and_then(|system| Caches::find(&caches.models, system, reference)),
        ),
    }
}

/// Depth and number of siblings in the run's tree. The number of active runs is left to the queue.
fn tree_facts(run: &StoredRun, caches: &Caches) -> Facts {
    let Some(parent) = &run.spec.parent else {
        return Facts::default();
    };
    let above = Caches::find(&caches.runs, run.namespace(), parent.run_name.as_str());
    let depth = above.and_then(|above| match &above.spec.parent {
        Some(parent) => u32::try_from(parent.spawn_depth).ok(),
        None => Some(0),
    });
    let created = |run: &AgentRun| (run.creation_timestamp(), run.name_any());
    let siblings = caches.runs.state_filter(|other| {
        other.metadata.namespace.as_deref() == Some(run.namespace())
            && other.metadata.uid.as_deref() != Some(run.uid())
            && created(other) < created(run)
            && (other.spec.parent.as_ref()).is_some_and(|it| it.run_name == parent.run_name)
    });
    Facts { runs_in_tree: None, siblings: u32::try_from(siblings.len()).ok(), parent_depth: depth }
}

/// Whether a run has started and its phase is not terminal.
pub fn is_active(run: &AgentRun) -> bool {
    run.status
        .as_ref()
        .is_some_and(|status| status.plan_digest.is_some() && !status.phase.is_some_and(Phase::is_terminal))
}

/// Reserves a slot for a run. A child run waits for the limit of its tree, every run for that of the cluster. The
/// message has no current count: it would change all the time, and be written each time.
fn reserve_slot(run: &StoredRun, context: &Context, concurrent: u32) -> Result<(), WaitReason> {
    let caches = &context.caches;
    let namespace = run.namespace();
    context.index.seed(|| caches.runs.state());
    context.index.reserve(run, |active| {
        run.spec.parent.as_ref()?;
        let root = tree_root(run, namespace, caches);
        let active = active.iter().filter(|other| other.namespace.as_deref() == Some(namespace));
        let active = active.filter_map(|other| caches.runs.get(other));
        // The root of a tree does not count towards its limit.
        let below = active.filter(|other| other.spec.parent.is_some() && tree_root(other, namespace, caches) == root);
        (below.count() >= concurrent as usize)
            .then(|| format!("the run waits: {concurrent} runs of its tree are active, which is the limit"))
    })
}

/// The name of the root of a run's tree. A cyclic chain has no root: the walk ends at the depth limit.
fn tree_root(run: &AgentRun, namespace: &str, caches: &Caches) -> String {
    let mut name = run.name_any();
    let mut parent = run.spec.parent.clone();
    for _ in 0..limits::DEPTH {
        let Some(above) = parent else { break };
        name = above.run_name.as_str().to_owned();
        parent = Caches::find(&caches.runs, namespace, &name).and_then(|run| run.spec.parent.clone());
    }
    name
}
