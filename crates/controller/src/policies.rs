//! The status of SympoziumPolicies: their violations, and how many agents each applies to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use sympozium_api::labels::field_manager;
use sympozium_api::policy::SympoziumPolicyStatus;
use sympozium_api::{AgentSpec, SympoziumPolicy};
use sympozium_plan::admit::{Subject, admit_policy};

use crate::caches::Caches;
use crate::conditions;
use crate::context::Context;

#[derive(Debug, thiserror::Error)]
#[error("the status could not be written")]
pub struct Error(#[source] kube::Error);

/// Updates a policy's status.
///
/// # Errors
///
/// When it could not be written; it is retried.
pub async fn reconcile(policy: Arc<SympoziumPolicy>, context: Arc<Context>) -> Result<Action, Error> {
    if policy.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let (namespace, name) = (policy.namespace().unwrap_or_default(), policy.name_any());
    let subject = Subject::new("SympoziumPolicy", Some(&namespace), &name);
    let findings = admit_policy(&subject, &policy.spec);
    let before = policy.status.clone().unwrap_or_default();
    let generation = policy.metadata.generation;
    let mut conditions = before.conditions.clone();
    let admitted = conditions::admitted_condition(&findings);
    conditions::set_condition(&mut conditions, admitted, generation, Timestamp::now());
    let system = context.settings.system_namespace.as_str();
    let bound = count_bound_agents(&context.caches, &namespace, &name, system);
    let after = SympoziumPolicyStatus {
        bound_instances: Some(i32::try_from(bound).unwrap_or(i32::MAX)),
        observed_generation: generation,
        conditions,
    };
    if after == before {
        return Ok(Action::await_change());
    }
    let api: Api<SympoziumPolicy> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({"metadata": {"uid": policy.uid()}, "status": after});
    let parameters =
        PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() };
    let written = api.patch_status(&name, &parameters, &Patch::Merge(patch)).await;
    context.metrics.count_write("SympoziumPolicy", "patch");
    match written {
        Ok(_) => Ok(Action::await_change()),
        // It is gone, or the name belongs to a new object, which is reconciled by itself.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Action::await_change()),
        Err(error) => Err(Error(error)),
    }
}

/// The number of agents that a policy applies to: those of its namespace that name it and, for a policy of the system
/// namespace, those of other namespaces that name it and have no policy of that name themselves.
fn count_bound_agents(world: &Caches, namespace: &str, name: &str, system: &str) -> usize {
    let is_bound = |agent: Option<String>, spec: &AgentSpec| {
        let Some(agent) = agent else { return false };
        let names = spec.policy_ref.as_ref().is_some_and(|it| it.as_str() == name);
        let is_here = agent == namespace;
        names && (is_here || namespace == system && Caches::find(&world.policies, &agent, name).is_none())
    };
    let agents = world.agents.state();
    let agents = agents.iter().filter(|it| is_bound(it.namespace(), &it.spec));
    let instances = world.instances.state();
    let instances = instances.iter().filter(|it| is_bound(it.namespace(), &it.spec));
    agents.count() + instances.count()
}

/// The policy that each agent named when it was last delivered by a watch.
#[derive(Debug, Default)]
pub struct PolicyRefs {
    agents: Mutex<HashMap<(String, String), String>>,
}

impl PolicyRefs {
    /// Updates the policy of an agent, and returns the policies whose count changes: none, as long as the agent names
    /// the same one.
    pub fn update(&self, namespace: &str, name: &str, world: &Caches) -> Vec<String> {
        let agent = Caches::find(&world.agents, namespace, name).map(|it| it.spec.policy_ref.clone());
        let instance = Caches::find(&world.instances, namespace, name).map(|it| it.spec.policy_ref.clone());
        let named = agent.flatten().or(instance.flatten());
        self.replace((namespace.to_owned(), name.to_owned()), named.map(|it| it.as_str().to_owned()))
    }

    fn replace(&self, agent: (String, String), named: Option<String>) -> Vec<String> {
        // A panic in another thread leaves the map consistent.
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &named {
            Some(named) => agents.insert(agent, named.clone()),
            None => agents.remove(&agent),
        };
        match before == named {
            true => Vec::new(),
            false => before.into_iter().chain(named).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_counted_again_when_an_agent_names_another() {
        let bindings = PolicyRefs::default();
        let see = |agent: &str, named: Option<&str>| {
            let key = ("team".to_owned(), agent.to_owned());
            bindings.replace(key, named.map(str::to_owned))
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
