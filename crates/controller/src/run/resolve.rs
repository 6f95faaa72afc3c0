//! Resolves, admits, plans and renders a run. Reads only the caches, and sends no request.

use std::borrow::Cow;
use std::sync::Arc;

use kube::ResourceExt as _;
use sympozium_api::agent_run::Phase;
use sympozium_api::labels::FLOOR_POLICY;
use sympozium_api::{Agent, AgentRun, Model, RunPlan, SkillPack, SympoziumInstance, SympoziumPolicy, limits};
use sympozium_plan::admit::{Decision, Facts, RuntimeClasses, Violation, admit, subagent_bounds};
use sympozium_plan::plan::plan;
use sympozium_plan::render::{RenderSettings, Rendered, render};
use sympozium_plan::resolve::{Found, Objects, Scope, resolve};

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
    let settings = &context.settings.admission;
    let objects = CachedObjects { run, caches: &context.caches, system_namespace: &settings.system_namespace };
    let resolved = resolve(run, run.namespace(), &objects, settings);
    let packs = resolved.packs();
    let input = resolved.input(&packs);
    let admitted = match admit(&input) {
        Decision::Admitted(admitted) => admitted,
        // Without its agent or a pack, a run has many other violations: they count once everything is found.
        Decision::Denied(denied) if denied.violations.iter().any(|violation| violation.missing.is_some()) => {
            return Err(StartBlocker::Missing(denied.violations));
        }
        Decision::Denied(denied) => return Err(StartBlocker::Denied(denied.violations)),
    };
    let bounds = subagent_bounds(&admitted.policy, input.agents.spec());
    if run.status.as_ref().is_none_or(|status| status.plan_digest.is_none())
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

/// What the caches have for a run, at the moment of each call.
struct CachedObjects<'c> {
    run: &'c StoredRun,
    caches: &'c Caches,
    system_namespace: &'c str,
}

impl Objects for CachedObjects<'_> {
    type Handle<K: 'static> = Arc<K>;

    fn agent(&self, namespace: &str, name: &str) -> Option<Arc<Agent>> {
        Caches::find(&self.caches.agents, namespace, name)
    }

    fn instance(&self, namespace: &str, name: &str) -> Option<Arc<SympoziumInstance>> {
        Caches::find(&self.caches.instances, namespace, name)
    }

    fn model(&self, namespace: &str, name: &str) -> Option<Arc<Model>> {
        Caches::find(&self.caches.models, namespace, name)
    }

    fn packs(&self, scope: Scope<'_>, name: &str) -> Found<Arc<SkillPack>> {
        scope.find(|namespace| Caches::find(&self.caches.packs, namespace, name))
    }

    fn policies(&self, scope: Scope<'_>, name: &str) -> Found<Arc<SympoziumPolicy>> {
        scope.find(|namespace| Caches::find(&self.caches.policies, namespace, name))
    }

    fn floor(&self) -> Option<Arc<SympoziumPolicy>> {
        Caches::find(&self.caches.policies, self.system_namespace, FLOOR_POLICY)
    }

    /// There are only a few.
    fn runtime_classes(&self) -> Cow<'_, RuntimeClasses> {
        let classes = self.caches.runtime_classes.state().into_iter();
        Cow::Owned(classes.map(|class| (class.name_any(), class.handler.clone())).collect())
    }

    fn facts(&self) -> Facts {
        tree_facts(self.run, self.caches)
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
            && (other.spec.parent.as_ref()).is_some_and(|other_parent| other_parent.run_name == parent.run_name)
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
