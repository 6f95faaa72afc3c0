//! The status of agents, under both kinds: violations, missing references, and the number of runs.
//!
//! The counts change with every run, so they cause a write at most every [`COUNT_INTERVAL`]; a change of the agent
//! itself is written at once.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use sympozium_api::agent::{AgentPhase, AgentStatus};
use sympozium_api::agent_run::Phase;
use sympozium_api::{Agent, AgentRun, AgentSpec, SympoziumInstance};
use sympozium_plan::admit::{Subject, admit_agent};

use crate::caches::Caches;
use crate::conditions::{ConditionValue, admitted_condition, now, set_condition};
use crate::context::Context;
use crate::object_key::ObjectKey;
use crate::status::{self, Error, Write};

/// Shortest interval between writes of the counts.
pub const COUNT_INTERVAL: Duration = Duration::from_secs(2);

/// The counted runs of each agent, and when the counts were written.
#[derive(Debug, Default)]
pub struct RunCounts {
    agents: Mutex<HashMap<ObjectKey, AgentCount>>,
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
    counts: Arc<RunCounts>,
) -> Result<Action, Error> {
    let Some(key) = ObjectKey::of_existing(agent.as_ref()) else {
        return Ok(Action::await_change());
    };
    let observed = ObservedAgent {
        kind: "Agent",
        spec: &agent.spec,
        before: agent.status.clone().unwrap_or_default(),
        has_namesake: context.caches.instances.get(&key.to_ref()).is_some(),
        key,
    };
    reconcile(agent.as_ref(), observed, &context, &counts).await
}

/// Reconciles a `SympoziumInstance`.
///
/// # Errors
///
/// When its status could not be written; it is retried.
pub async fn reconcile_instance(
    instance: Arc<SympoziumInstance>,
    context: Arc<Context>,
    counts: Arc<RunCounts>,
) -> Result<Action, Error> {
    let Some(key) = ObjectKey::of_existing(instance.as_ref()) else {
        return Ok(Action::await_change());
    };
    let observed = ObservedAgent {
        kind: "SympoziumInstance",
        spec: &instance.spec,
        before: instance.status.clone().unwrap_or_default(),
        has_namesake: context.caches.agents.get(&key.to_ref()).is_some(),
        key,
    };
    reconcile(instance.as_ref(), observed, &context, &counts).await
}

struct ObservedAgent<'a> {
    kind: &'static str,
    key: ObjectKey,
    spec: &'a AgentSpec,
    before: AgentStatus,
    /// Whether there is an object of the same name of the other kind.
    has_namesake: bool,
}

async fn reconcile<K>(
    agent: &K,
    observed: ObservedAgent<'_>,
    context: &Context,
    counts: &RunCounts,
) -> Result<Action, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let ObservedAgent { kind, key, spec, before, has_namesake } = observed;
    let generation = agent.meta().generation;
    // Before the runs are scanned: with many of them that is the expensive part.
    if before.observed_generation == generation
        && let Some(rest) = counts.time_until_due(&key)
    {
        return Ok(Action::requeue(rest));
    }
    let findings = admit_agent(&Subject::new(kind, Some(&key.namespace), &key.name), spec, has_namesake);
    let resolved = resolved_condition(&missing_refs(spec, &key.namespace, context), &key.namespace);
    let numbers = counts.count(&key, &before, &runs_of_agent(&context.caches, &key));
    let phase = if !findings.violations.is_empty() {
        AgentPhase::Error
    } else if !resolved.is_true() {
        AgentPhase::Pending
    } else if numbers.serving {
        AgentPhase::Serving
    } else {
        AgentPhase::Running
    };
    let mut conditions = before.conditions.clone();
    set_condition(&mut conditions, "Admitted", admitted_condition(&findings), generation, now());
    set_condition(&mut conditions, "Resolved", resolved, generation, now());
    let after = AgentStatus {
        phase: Some(phase),
        active_agent_pods: Some(numbers.active),
        total_agent_runs: Some(numbers.total),
        observed_generation: generation,
        last_run_time: numbers.last,
        conditions,
        ..before.clone()
    };
    if status::write(agent, &key, &before, &after, context).await? == Write::Written {
        counts.mark_written(&key);
    }
    Ok(Action::await_change())
}

/// The packs and the policy that an agent names and that exist neither in its namespace nor in the system namespace.
fn missing_refs(spec: &AgentSpec, namespace: &str, context: &Context) -> Vec<String> {
    let caches = &context.caches;
    let namespaces = [namespace, context.settings.system_namespace.as_str()];
    let packs = spec.skills.iter().filter_map(|skill| skill.skill_pack_ref.as_ref());
    let is_missing =
        |pack: &str| !namespaces.iter().any(|namespace| Caches::find(&caches.packs, namespace, pack).is_some());
    let missing = packs.filter(|pack| is_missing(pack.as_str())).map(|pack| format!("SkillPack `{}`", pack.as_str()));
    let mut missing: Vec<String> = missing.collect();
    if let Some(policy) = &spec.policy_ref
        && !namespaces.iter().any(|namespace| Caches::find(&caches.policies, namespace, policy.as_str()).is_some())
    {
        missing.push(format!("SympoziumPolicy `{}`", policy.as_str()));
    }
    missing
}

fn resolved_condition(missing: &[String], namespace: &str) -> ConditionValue {
    if missing.is_empty() {
        return ConditionValue::yes("Found", "every SkillPack and SympoziumPolicy that the agent names exists");
    }
    let missing = missing.join(", ");
    let message = format!(
        "runs of this agent wait for {missing}: not found in namespace `{namespace}` nor in the system namespace"
    );
    ConditionValue::no("Missing", message)
}

pub fn agent_name(run: &AgentRun) -> Option<&str> {
    let spec = &run.spec;
    let name = spec.agent_ref.as_ref().or(spec.instance_ref.as_ref())?;
    Some(name.as_str())
}

fn runs_of_agent(caches: &Caches, agent: &ObjectKey) -> Vec<Arc<AgentRun>> {
    let namespace = Some(agent.namespace.as_str());
    caches.runs.state_filter(|run| {
        agent_name(run) == Some(agent.name.as_str()) && run.metadata.namespace.as_deref() == namespace
    })
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
    fn time_until_due(&self, agent: &ObjectKey) -> Option<Duration> {
        let agents = self.agents.lock();
        let count = agents.get(agent)?;
        COUNT_INTERVAL.checked_sub(count.written_at.elapsed()).filter(|rest| !rest.is_zero())
    }

    fn mark_written(&self, agent: &ObjectKey) {
        if let Some(count) = self.agents.lock().get_mut(agent) {
            count.written_at = Instant::now();
        }
    }

    /// Counts an agent's runs. The total includes deleted ones: it is the number in the status plus the runs created
    /// since.
    fn count(&self, agent: &ObjectKey, before: &AgentStatus, runs: &[Arc<AgentRun>]) -> RunNumbers {
        let mut agents = self.agents.lock();
        let count = agents.entry(agent.clone()).or_insert_with(|| AgentCount::initial(before, runs));
        let there: HashSet<String> = runs.iter().filter_map(|run| run.uid()).collect();
        let new = there.difference(&count.runs).count();
        count.total = count.total.saturating_add(i64::try_from(new).unwrap_or(i64::MAX));
        count.runs = there;
        let phase = |run: &Arc<AgentRun>| run.status.as_ref().and_then(|status| status.phase);
        let is_active = |run: &&Arc<AgentRun>| matches!(phase(run), Some(Phase::Running | Phase::Serving));
        let newest = runs.iter().filter_map(|run| run.creation_timestamp()).max();
        RunNumbers {
            active: i32::try_from(runs.iter().filter(is_active).count()).unwrap_or(i32::MAX),
            total: count.total,
            serving: runs.iter().any(|run| phase(run) == Some(Phase::Serving)),
            last: newest.max(before.last_run_time.clone()),
        }
    }

    pub fn forget(&self, agent: &ObjectKey) {
        self.agents.lock().remove(agent);
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
    use jiff::Timestamp;
    use serde_json::json;

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

    fn key() -> ObjectKey {
        ObjectKey::new("team", "a")
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
