//! The status of agents, under both kinds: violations, missing references, and the number of runs.
//!
//! The counts change with every run, so they cause a write at most every [`COUNT_INTERVAL`]; a change of the agent
//! itself is written at once.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use sympozium_api::agent::{AgentPhase, AgentStatus};
use sympozium_api::agent_run::Phase;
use sympozium_api::labels::field_manager;
use sympozium_api::{Agent, AgentRun, AgentSpec, SympoziumInstance};
use sympozium_plan::admit::{Subject, admit_agent};

use crate::conditions::{self, Said};
use crate::context::Context;
use crate::world::World;

/// Shortest interval between writes of the counts.
pub const COUNT_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
#[error("the status could not be written")]
pub struct Error(#[source] kube::Error);

/// The counted runs of each agent, and when the counts were written.
#[derive(Debug, Default)]
pub struct Counted {
    agents: Mutex<HashMap<(String, String), Count>>,
}

#[derive(Debug)]
struct Count {
    total: i64,
    runs: HashSet<String>,
    written: Instant,
}

/// Reconciles an `Agent`.
///
/// # Errors
///
/// When its status could not be written; it is retried.
pub async fn reconcile_agent(agent: Arc<Agent>, context: Arc<Context>, counted: Arc<Counted>) -> Result<Action, Error> {
    let seen = Sighting {
        kind: "Agent",
        spec: &agent.spec,
        before: agent.status.clone().unwrap_or_default(),
        has_namesake: is_there(&context.world.instances, agent.as_ref()),
    };
    reconcile(agent.as_ref(), seen, &context, &counted).await
}

/// Reconciles a `SympoziumInstance`.
///
/// # Errors
///
/// When its status could not be written; it is retried.
pub async fn reconcile_instance(
    instance: Arc<SympoziumInstance>,
    context: Arc<Context>,
    counted: Arc<Counted>,
) -> Result<Action, Error> {
    let seen = Sighting {
        kind: "SympoziumInstance",
        spec: &instance.spec,
        before: instance.status.clone().unwrap_or_default(),
        has_namesake: is_there(&context.world.agents, instance.as_ref()),
    };
    reconcile(instance.as_ref(), seen, &context, &counted).await
}

struct Sighting<'a> {
    kind: &'static str,
    spec: &'a AgentSpec,
    before: AgentStatus,
    has_namesake: bool,
}

async fn reconcile<K>(agent: &K, seen: Sighting<'_>, context: &Context, counted: &Counted) -> Result<Action, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    if agent.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let (namespace, name) = (agent.namespace().unwrap_or_default(), agent.name_any());
    let generation = agent.meta().generation;
    let key = (namespace.clone(), name.clone());
    // Before the runs are scanned: with many of them that is the expensive part.
    let unchanged = seen.before.observed_generation == generation;
    let too_soon = counted.until_due(&key);
    if let Some(rest) = too_soon
        && unchanged
    {
        return Ok(Action::requeue(rest));
    }

    let subject = Subject::new(seen.kind, Some(&namespace), &name);
    let findings = admit_agent(&subject, seen.spec, seen.has_namesake);
    let missing = missing(seen.spec, &namespace, context);
    let runs = runs_of(&context.world, &namespace, &name);
    let numbers = counted.count(&key, &seen.before, &runs);
    let now = Timestamp::now();
    let mut conditions = seen.before.conditions.clone();
    let resolved = resolved(&missing);
    let incomplete = resolved.holds != Some(true);
    conditions::say(&mut conditions, conditions::admitted(&findings), generation, now);
    conditions::say(&mut conditions, resolved, generation, now);
    let after = AgentStatus {
        phase: Some(if !findings.reasons.is_empty() {
            AgentPhase::Error
        } else if incomplete {
            AgentPhase::Pending
        } else if numbers.serving {
            AgentPhase::Serving
        } else {
            AgentPhase::Running
        }),
        active_agent_pods: Some(numbers.active),
        total_agent_runs: Some(numbers.total),
        observed_generation: generation,
        last_run_time: numbers.last.clone(),
        conditions,
        ..seen.before.clone()
    };
    if after == seen.before {
        return Ok(Action::await_change());
    }
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({"metadata": {"uid": agent.uid()}, "status": {
        "phase": after.phase,
        "activeAgentPods": after.active_agent_pods,
        "totalAgentRuns": after.total_agent_runs,
        "observedGeneration": after.observed_generation,
        "lastRunTime": after.last_run_time,
        "conditions": after.conditions,
    }});
    let parameters =
        PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() };
    let written = api.patch_status(&name, &parameters, &Patch::Merge(patch)).await;
    context.metrics.wrote(seen.kind, "patch");
    match written {
        Ok(_) => {
            counted.wrote(&key);
            Ok(Action::await_change())
        }
        // It is gone, or the name belongs to a new object, which is reconciled by itself.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Action::await_change()),
        Err(error) => Err(Error(error)),
    }
}

fn is_there<K, L>(store: &kube::runtime::reflector::Store<K>, namesake_of: &L) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
    L: Resource,
{
    let namespace = namesake_of.namespace().unwrap_or_default();
    World::find(store, &namespace, &namesake_of.name_any()).is_some()
}

/// The packs and the policy that an agent names and that exist neither in its namespace nor in the system namespace.
fn missing(spec: &AgentSpec, namespace: &str, context: &Context) -> Vec<String> {
    let world = &context.world;
    let places = [namespace, context.settings.system_namespace.as_str()];
    let packs = spec.skills.iter().filter_map(|it| it.skill_pack_ref.as_ref());
    let mut missing: Vec<String> = packs
        .filter(|pack| {
            let found = |place: &&str| World::find(&world.packs, place, pack.as_str()).is_some();
            !places.iter().any(found)
        })
        .map(|pack| format!("SkillPack `{}`", pack.as_str()))
        .collect();
    if let Some(policy) = &spec.policy_ref {
        let found = |place: &&str| World::find(&world.policies, place, policy.as_str()).is_some();
        if !places.iter().any(found) {
            missing.push(format!("SympoziumPolicy `{}`", policy.as_str()));
        }
    }
    missing
}

fn resolved(missing: &[String]) -> Said {
    let complete = missing.is_empty();
    Said {
        about: "Resolved",
        holds: Some(complete),
        reason: if complete { "Found" } else { "Missing" },
        message: if complete {
            "every pack and policy that it names is there".to_owned()
        } else {
            format!("not there: {}; runs of this agent wait", missing.join(", "))
        },
    }
}

pub fn agent_of(run: &AgentRun) -> Option<&str> {
    let spec = &run.spec;
    let name = spec.agent_ref.as_ref().or(spec.instance_ref.as_ref())?;
    Some(name.as_str())
}

fn runs_of(world: &World, namespace: &str, name: &str) -> Vec<Arc<AgentRun>> {
    let mut runs = world.runs.state();
    runs.retain(|run| agent_of(run) == Some(name) && run.metadata.namespace.as_deref() == Some(namespace));
    runs
}

/// The run counts of an agent, as they are written to its status.
struct Numbers {
    active: i32,
    total: i64,
    serving: bool,
    last: Option<Time>,
}

impl Counted {
    /// Time until the counts may be written again.
    fn until_due(&self, agent: &(String, String)) -> Option<Duration> {
        let agents = self.lock();
        let count = agents.get(agent)?;
        COUNT_EVERY.checked_sub(count.written.elapsed()).filter(|rest| !rest.is_zero())
    }

    fn wrote(&self, agent: &(String, String)) {
        if let Some(count) = self.lock().get_mut(agent) {
            count.written = Instant::now();
        }
    }

    /// Counts an agent's runs. The total includes deleted ones: it is the number in the status plus the runs created
    /// since.
    fn count(&self, agent: &(String, String), before: &AgentStatus, runs: &[Arc<AgentRun>]) -> Numbers {
        let mut agents = self.lock();
        let count = agents.entry(agent.clone()).or_insert_with(|| Count::begun(before, runs));
        let there: HashSet<String> = runs.iter().filter_map(|run| run.uid()).collect();
        let new = there.difference(&count.runs).count();
        count.total = count.total.saturating_add(i64::try_from(new).unwrap_or(i64::MAX));
        count.runs = there;
        let phase = |run: &Arc<AgentRun>| run.status.as_ref().and_then(|it| it.phase);
        let is_active = |run: &&Arc<AgentRun>| matches!(phase(run), Some(Phase::Running | Phase::Serving));
        let newest = runs.iter().filter_map(|run| run.creation_timestamp()).max();
        Numbers {
            active: i32::try_from(runs.iter().filter(is_active).count()).unwrap_or(i32::MAX),
            total: count.total,
            serving: runs.iter().any(|run| phase(run) == Some(Phase::Serving)),
            last: newest.max(before.last_run_time.clone()),
        }
    }

    pub fn forget(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Count>> {
        // A panic in another thread leaves the map consistent.
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Count {
    /// For an agent that is new to this process: runs that were created after the last counted one are new.
    fn begun(before: &AgentStatus, runs: &[Arc<AgentRun>]) -> Self {
        let counted = |run: &&Arc<AgentRun>| match (&before.last_run_time, run.creation_timestamp()) {
            (Some(last), Some(created)) => created <= *last,
            _ => false,
        };
        let known: HashSet<String> = runs.iter().filter(counted).filter_map(|run| run.uid()).collect();
        let least = i64::try_from(known.len()).unwrap_or(i64::MAX);
        Self {
            total: before.total_agent_runs.unwrap_or(0).max(least),
            runs: known,
            // Long enough ago to be due.
            written: Instant::now().checked_sub(COUNT_EVERY).unwrap_or_else(Instant::now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(uid: &str, second: i64, phase: Phase) -> Arc<AgentRun> {
        Arc::new(
            serde_json::from_value(json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
                "metadata": {"name": uid, "namespace": "team", "uid": uid,
                    "creationTimestamp": Timestamp::from_second(second).unwrap().to_string()},
                "spec": {"agentRef": "a", "task": "t", "model": {"provider": "p", "model": "m"}},
                "status": {"phase": phase},
            }))
            .unwrap(),
        )
    }

    fn status(total: i64, last: i64) -> AgentStatus {
        AgentStatus {
            total_agent_runs: Some(total),
            last_run_time: Some(Time(Timestamp::from_second(last).unwrap())),
            ..AgentStatus::default()
        }
    }

    fn key() -> (String, String) {
        ("team".to_owned(), "a".to_owned())
    }

    #[test]
    fn the_total_grows_with_new_runs_and_outlives_old_ones() {
        let counted = Counted::default();
        let first = run("one", 10, Phase::Running);
        let second = run("two", 20, Phase::Succeeded);
        let none = AgentStatus::default();
        let numbers = counted.count(&key(), &none, &[Arc::clone(&first), second]);
        assert_eq!((numbers.active, numbers.total), (1, 2));
        let third = run("three", 20, Phase::Serving);
        let numbers = counted.count(&key(), &none, &[first, third]);
        assert_eq!((numbers.active, numbers.total, numbers.serving), (2, 3, true));
        let numbers = counted.count(&key(), &none, &[]);
        assert_eq!((numbers.active, numbers.total), (0, 3));
    }

    #[test]
    fn a_new_process_goes_on_from_the_status() {
        let counted = Counted::default();
        let old = run("old", 50, Phase::Succeeded);
        let new = run("new", 51, Phase::Pending);
        let numbers = counted.count(&key(), &status(7, 50), &[old, new]);
        assert_eq!(numbers.total, 8);
        assert_eq!(numbers.last, Some(Time(Timestamp::from_second(51).unwrap())));
        // The watch has not delivered our write yet: the same count again, not one more.
        let numbers = counted.count(&key(), &status(7, 50), &[run("new", 51, Phase::Running)]);
        assert_eq!((numbers.total, numbers.active), (8, 1));
    }

    #[test]
    fn numbers_are_due_again_after_a_while() {
        let counted = Counted::default();
        assert_eq!(counted.until_due(&key()), None);
        counted.count(&key(), &AgentStatus::default(), &[]);
        assert_eq!(counted.until_due(&key()), None);
        counted.wrote(&key());
        assert!(counted.until_due(&key()).is_some_and(|rest| rest <= COUNT_EVERY));
    }
}
