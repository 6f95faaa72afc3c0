//! The status of SympoziumPolicies: their violations, and how many agents each applies to.

use std::collections::HashMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use parking_lot::Mutex;
use sympozium_api::policy::SympoziumPolicyStatus;
use sympozium_api::{AgentSpec, SympoziumPolicy};
use sympozium_plan::admit::{Subject, admit_policy};

use crate::caches::Caches;
use crate::conditions::{admitted_condition, now, set_condition};
use crate::context::Context;
use crate::object_key::ObjectKey;
use crate::status::{self, Error};

/// Updates a policy's status.
///
/// # Errors
///
/// When it could not be written; it is retried.
pub async fn reconcile(policy: Arc<SympoziumPolicy>, context: Arc<Context>) -> Result<Action, Error> {
    let Some(key) = ObjectKey::of_existing(policy.as_ref()) else {
        return Ok(Action::await_change());
    };
    let findings = admit_policy(&Subject::new("SympoziumPolicy", Some(&key.namespace), &key.name), &policy.spec);
    let before = policy.status.clone().unwrap_or_default();
    let generation = policy.metadata.generation;
    let mut conditions = before.conditions.clone();
    set_condition(&mut conditions, "Admitted", admitted_condition(&findings), generation, now());
    let bound = count_bound_agents(&context.caches, &key, &context.settings.system_namespace);
    let after = SympoziumPolicyStatus {
        bound_instances: Some(i32::try_from(bound).unwrap_or(i32::MAX)),
        observed_generation: generation,
        conditions,
    };
    status::write(policy.as_ref(), &key, &before, &after, &context).await?;
    Ok(Action::await_change())
}

/// The number of agents that a policy applies to: those of its namespace that name it and, for a policy of the system
/// namespace, those of other namespaces that name it and have no policy of that name themselves.
fn count_bound_agents(caches: &Caches, policy: &ObjectKey, system_namespace: &str) -> usize {
    let is_bound = |agent_namespace: Option<String>, spec: &AgentSpec| {
        let Some(agent_namespace) = agent_namespace else { return false };
        let names_it = spec.policy_ref.as_ref().is_some_and(|name| name.as_str() == policy.name);
        let is_shadowed = || Caches::find(&caches.policies, &agent_namespace, &policy.name).is_some();
        let in_same_namespace = agent_namespace == policy.namespace;
        names_it && (in_same_namespace || policy.namespace == system_namespace && !is_shadowed())
    };
    let agents = caches.agents.state();
    let agents = agents.iter().filter(|agent| is_bound(agent.namespace(), &agent.spec));
    let instances = caches.instances.state();
    let instances = instances.iter().filter(|instance| is_bound(instance.namespace(), &instance.spec));
    agents.count() + instances.count()
}

/// The policy that each agent named when it was last delivered by a watch.
#[derive(Debug, Default)]
pub struct PolicyRefs {
    agents: Mutex<HashMap<ObjectKey, String>>,
}

impl PolicyRefs {
    /// Updates the policy of an agent, and returns the policies whose count changes: none, as long as the agent names
    /// the same one.
    pub fn update(&self, key: &ObjectKey, caches: &Caches) -> Vec<String> {
        let agent = caches.agents.get(&key.to_ref()).map(|agent| agent.spec.policy_ref.clone());
        let instance = caches.instances.get(&key.to_ref()).map(|instance| instance.spec.policy_ref.clone());
        let policy = agent.flatten().or(instance.flatten());
        self.replace(key.clone(), policy.map(|policy| policy.as_str().to_owned()))
    }

    fn replace(&self, agent: ObjectKey, named: Option<String>) -> Vec<String> {
        let mut agents = self.agents.lock();
        let before = match &named {
            Some(named) => agents.insert(agent, named.clone()),
            None => agents.remove(&agent),
        };
        if before == named { Vec::new() } else { before.into_iter().chain(named).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_counted_again_when_an_agent_names_another() {
        let bindings = PolicyRefs::default();
        let see = |agent: &str, named: Option<&str>| {
            bindings.replace(ObjectKey::new("team", agent), named.map(str::to_owned))
        };
        assert_eq!(see("a", None), Vec::<String>::new());
        assert_eq!(see("a", Some("p")), ["p"]);
        assert_eq!(see("a", Some("p")), Vec::<String>::new());
        assert_eq!(see("b", Some("p")), ["p"]);
        assert_eq!(see("a", Some("q")), ["p", "q"]);
        assert_eq!(see("a", None), ["q"]);
        assert_eq!(see("a", None), Vec::<String>::new());
    }
}
