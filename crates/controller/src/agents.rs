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

use crate::caches::Caches;
use crate::conditions::{self, ConditionUpdate};
use crate::context::Context;

/// Shortest interval between writes of the counts.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
#[error("the status could not be written")]
pub struct Error(#[source] kube::Error);

/// The counted runs of each agent, and when the counts were written.
#[derive(Debug, Default)]
pub struct RunCounts {
    agents: Mutex<HashMap<(String, String), AgentCount>>,
}

#[derive(Debug)]
struct AgentCount {
    total: i64,
    runs: HashSet<String>,
    written_at: Instant,
}

/// Reconciles an `Agent`.
///
/// # Errors
///
/// When its status could not be written; it is retried.
pub async fn reconcile_agent(
    agent: Arc<Agent>,
    context: Arc<Context>,
    counted: Arc<RunCounts>,
) -> Result<Action, Error> {
    let seen = ObservedAgent {
        kind: "Agent",
        spec: &agent.spec,
        old_status: agent.status.clone().unwrap_or_default(),
        has_namesake: exists_in(&context.caches.instances, agent.as_ref()),
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
    counted: Arc<RunCounts>,
) -> Result<Action, Error> {
    let seen = ObservedAgent {
        kind: "SympoziumInstance",
        spec: &instance.spec,
        old_status: instance.status.clone().unwrap_or_default(),
        has_namesake: exists_in(&context.caches.agents, instance.as_ref()),
    };
    reconcile(instance.as_ref(), seen, &context, &counted).await
}

struct ObservedAgent<'a> {
    kind: &'static str,
    spec: &'a AgentSpec,
    old_status: AgentStatus,
    has_namesake: bool,
}

async fn reconcile<K>(
    agent: &K,
    seen: ObservedAgent<'_>,
    context: &Context,
    counted: &RunCounts,
) -> Result<Action, Error>
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
    let unchanged = seen.old_status.observed_generation == generation;
    let too_soon = counted.time_until_due(&key);
    if let Some(rest) = too_soon
        && unchanged
    {
        return Ok(Action::requeue(rest));
    }

    let subject = Subject::new(seen.kind, Some(&namespace), &name);
    let findings = admit_agent(&subject, seen.spec, seen.has_namesake);
    let missing = missing_refs(seen.spec, &namespace, context);
    let runs = runs_of_agent(&context.caches, &namespace, &name);
    let numbers = counted.count(&key, &seen.old_status, &runs);
    let now = Timestamp::now();
    let mut conditions = seen.old_status.conditions.clone();
    let resolved = resolved_condition(&missing);
    let incomplete = resolved.is_true != Some(true);
    conditions::set_condition(&mut conditions, conditions::admitted_condition(&findings), generation, now);
    conditions::set_condition(&mut conditions, resolved, generation, now);
    let after = AgentStatus {
        phase: Some(if !findings.violations.is_empty() {
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
        ..seen.old_status.clone()
    };
    if after == seen.old_status {
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
    context.metrics.count_write(seen.kind, "patch");
    match written {
        Ok(_) => {
            counted.mark_written(&key);
            Ok(Action::await_change())
        }
        // It is gone, or the name belongs to a new object, which is reconciled by itself.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Action::await_change()),
        Err(error) => Err(Error(error)),
    }
}

fn exists_in<K, L>(store: &kube::runtime::reflector::Store<K>, namesake_of: &L) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
    L: Resource,
{
    let namespace = namesake_of.namespace().unwrap_or_default();
    Caches::find(store, &namespace, &namesake_of.name_any()).is_some()
}

/// The packs and the policy that an agent names and that exist neither in its namespace nor in the system namespace.
fn missing_refs(spec: &AgentSpec, namespace: &str, context: &Context) -> Vec<String> {
    let world = &context.caches;
    let places = [namespace, context.settings.system_namespace.as_str()];
    let packs = spec.skills.iter().filter_map(|it| it.skill_pack_ref.as_ref());
    let mut missing: Vec<String> = packs
        .filter(|pack| {
            let found = |place: &&str| Caches::find(&world.packs, place, pack.as_str()).is_some();
            !places.iter().any(found)
        })
        .map(|pack| format!("SkillPack `{}`", pack.as_str()))
        .collect();
    if let Some(policy) = &spec.policy_ref {
        let found = |place: &&str| Caches::find(&world.policies, place, policy.as_str()).is_some();
        if !places.iter().any(found) {
            missing.push(format!("SympoziumPolicy `{}`", policy.as_str()));
        }
    }
    missing
}

fn resolved_condition(missing: &[String]) -> ConditionUpdate {
    let complete = missing.is_empty();
    ConditionUpdate {
        type_: "Resolved",
        is_true: Some(complete),
        reason: if complete { "Found" } else { "Missing" },
        message: if complete {
            "every pack and policy that it names is there".to_owned()
        } else {
            format!("not there: {}; runs of this agent wait", missing.join(", "))
        },
    }
}

pub fn agent_name(run: &AgentRun) -> Option<&str> {
    let spec = &run.spec;
    let name = spec.agent_ref.as_ref().or(spec.instance_ref.as_ref())?;
    Some(name.as_str())
}

fn runs_of_agent(world: &Caches, namespace: &str, name: &str) -> Vec<Arc<AgentRun>> {
    let mut runs = world.runs.state();
    runs.retain(|run| agent_name(run) == Some(name) && run.metadata.namespace.as_deref() == Some(namespace));
    runs
}

/// The run counts of an agent, as they are written to its status.
struct RunNumbers {
    active: i32,
    total: i64,
    serving: bool,
    last: Option<Time>,
}

impl RunCounts {
    /// Time until the counts may be written again.
    fn time_until_due(&self, agent: &(String, String)) -> Option<Duration> {
        let agents = self.lock();
        let count = agents.get(agent)?;
        COUNT_INTERVAL.checked_sub(count.written_at.elapsed()).filter(|rest| !rest.is_zero())
    }

    fn mark_written(&self, agent: &(String, String)) {
        if let Some(count) = self.lock().get_mut(agent) {
            count.written_at = Instant::now();
        }
    }

    /// Counts an agent's runs. The total includes deleted ones: it is the number in the status plus the runs created
    /// since.
    fn count(&self, agent: &(String, String), before: &AgentStatus, runs: &[Arc<AgentRun>]) -> RunNumbers {
        let mut agents = self.lock();
        let count = agents.entry(agent.clone()).or_insert_with(|| AgentCount::initial(before, runs));
        let there: HashSet<String> = runs.iter().filter_map(|run| run.uid()).collect();
        let new = there.difference(&count.runs).count();
        count.total = count.total.saturating_add(i64::try_from(new).unwrap_or(i64::MAX));
        count.runs = there;
        let phase = |run: &Arc<AgentRun>| run.status.as_ref().and_then(|it| it.phase);
        let is_active = |run: &&Arc<AgentRun>| matches!(phase(run), Some(Phase::Running | Phase::Serving));
        let newest = runs.iter().filter_map(|run| run.creation_timestamp()).max();
        RunNumbers {
            active: i32::try_from(runs.iter().filter(is_active).count()).unwrap_or(i32::MAX),
            total: count.total,
            serving: runs.iter().any(|run| phase(run) == Some(Phase::Serving)),
            last: newest.max(before.last_run_time.clone()),
        }
    }

    pub fn forget(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), AgentCount>> {
        // A panic in another thread leaves the map consistent.
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentCount {
    /// For an agent that is new to this process: runs that were created after the last counted one are new.
    fn initial(before: &AgentStatus, runs: &[Arc<AgentRun>]) -> Self {
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
            written_at: Instant::now().checked_sub(COUNT_INTERVAL).unwrap_or_else(Instant::now),
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
        let counted = RunCounts::default();
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
        let counted = RunCounts::default();
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
        let counted = RunCounts::default();
        assert_eq!(counted.time_until_due(&key()), None);
        counted.count(&key(), &AgentStatus::default(), &[]);
        assert_eq!(counted.time_until_due(&key()), None);
        counted.mark_written(&key());
        assert!(counted.time_until_due(&key()).is_some_and(|rest| rest <= COUNT_INTERVAL));
    }
}
