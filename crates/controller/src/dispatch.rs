//! Maps watch events to the objects that have to be reconciled.

use std::sync::Arc;

use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use sympozium_api::{
    Agent, AgentRun, AgentSpec, Model, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumSchedule,
};
use tokio::sync::{Notify, mpsc};

use crate::agents::{RunCounts, agent_name};
use crate::caches::{Caches, WatchEvent, WatchEvents, is_torn_down};
use crate::context::Context;
use crate::object_key::ObjectKey;
use crate::policies::PolicyRefs;
use crate::reconcile_loop::Queue;
use crate::run::{self, StoredRun};
use crate::sweep::DeletedRun;

/// The queues that watch events are dispatched to.
pub struct Dispatch {
    pub runs: Queue<AgentRun>,
    pub packs: Queue<SkillPack>,
    pub agents: Queue<Agent>,
    /// Agents under the kind's former name.
    pub instances: Queue<SympoziumInstance>,
    /// Runs that are deleted, for the sweeper.
    pub deleted_runs: mpsc::UnboundedSender<DeletedRun>,
    /// Is notified when a node has changed.
    pub nodes_changed: Arc<Notify>,
    pub run_counts: Arc<RunCounts>,
    pub policies: Queue<SympoziumPolicy>,
    pub policy_refs: PolicyRefs,
    pub models: Queue<Model>,
    pub schedules: Queue<SympoziumSchedule>,
}

impl Dispatch {
    /// Runs until the channel of watch events is closed.
    pub async fn run(self, mut events: WatchEvents, context: Arc<Context>) {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = context.index.wait_turns_changed() => {
                    for run in context.index.take_runnable() {
                        self.runs.add(run);
                    }
                    continue;
                }
            };
            let Some(event) = event else { return };
            for run in run::runs_to_requeue(&event, &context) {
                self.runs.add(run);
            }
            self.dispatch(event, &context);
            context.metrics.set_waiting(self.runs.len());
        }
    }

    fn dispatch(&self, event: WatchEvent, context: &Context) {
        let caches = &context.caches;
        match event {
            WatchEvent::Run(run) => self.enqueue_agent_of(&run),
            WatchEvent::RunDeleted(run) => {
                self.enqueue_agent_of(&run);
                // A run that was torn down has left nothing.
                if !is_torn_down(&run) {
                    let _ = self.deleted_runs.send(DeletedRun { uid: run.uid().to_owned() });
                }
            }
            WatchEvent::Agent(key) => {
                if caches.agents.get(&key.to_ref()).is_none() && caches.instances.get(&key.to_ref()).is_none() {
                    self.run_counts.forget(&key);
                }
                for policy in self.policy_refs.update(&key, caches) {
                    self.enqueue_policy(&key.namespace, &policy, context);
                }
                // An Agent and a SympoziumInstance of the same name conflict: both statuses have to be updated.
                self.enqueue_agent(&key);
            }
            WatchEvent::Pack(key) => {
                self.enqueue_agents(caches, |spec| {
                    let mut packs = spec.skills.iter().filter_map(|skill| skill.skill_pack_ref.as_ref());
                    packs.any(|pack| pack.as_str() == key.name)
                });
                self.packs.add(key.to_ref());
            }
            WatchEvent::Policy(key) => {
                // A policy shadows the one of the same name in the system namespace: the agents of both are affected.
                self.enqueue_policy(&key.namespace, &key.name, context);
                self.enqueue_agents(caches, |spec| {
                    spec.policy_ref.as_ref().is_some_and(|policy| policy.as_str() == key.name)
                });
            }
            WatchEvent::Node => self.nodes_changed.notify_one(),
            WatchEvent::Model(key) => self.models.add(key.to_ref()),
            WatchEvent::Schedule(key) => self.schedules.add(key.to_ref()),
            WatchEvent::RunObject { .. } | WatchEvent::PodRejection { .. } => {}
        }
    }

    fn enqueue_agent_of(&self, run: &StoredRun) {
        if let Some(name) = agent_name(run) {
            self.enqueue_agent(&ObjectKey::new(run.namespace(), name));
        }
    }

    fn enqueue_policy(&self, namespace: &str, name: &str, context: &Context) {
        for namespace in [namespace, context.settings.system_namespace.as_str()] {
            self.policies.add(ObjectKey::new(namespace, name).to_ref());
        }
    }

    fn enqueue_agent(&self, key: &ObjectKey) {
        self.agents.add(key.to_ref());
        self.instances.add(key.to_ref());
    }

    fn enqueue_agents(&self, caches: &Caches, is_affected: impl Fn(&AgentSpec) -> bool) {
        enqueue_matching(&caches.agents, &self.agents, |agent| is_affected(&agent.spec));
        enqueue_matching(&caches.instances, &self.instances, |instance| is_affected(&instance.spec));
    }
}

fn enqueue_matching<K>(store: &Store<K>, queue: &Queue<K>, wanted: impl Fn(&K) -> bool)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    for object in store.state() {
        if wanted(&object) {
            queue.add(ObjectRef::from_obj(object.as_ref()));
        }
    }
}
