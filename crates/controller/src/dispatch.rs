//! Maps watch events to the objects that have to be reconciled.

use std::sync::Arc;

use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt as _};
use sympozium_api::{
    Agent, AgentRun, AgentSpec, Model, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumSchedule,
};
use tokio::sync::{Notify, mpsc};

use crate::agents::{RunCounts, agent_name};
use crate::caches::{Caches, WatchEvent, WatchEvents, is_torn_down};
use crate::context::Context;
use crate::policies::PolicyRefs;
use crate::reconcile_loop::Queue;
use crate::run;
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
    pub async fn run(self, mut told: WatchEvents, context: Arc<Context>) {
        loop {
            let seen = tokio::select! {
                seen = told.recv() => seen,
                () = context.index.wait_turns_changed() => {
                    for run in context.index.take_runnable() {
                        self.runs.add(run);
                    }
                    continue;
                }
            };
            let Some(seen) = seen else { return };
            for run in run::runs_to_requeue(&seen, &context) {
                self.runs.add(run);
            }
            self.dispatch(seen, &context);
            context.metrics.set_waiting(self.runs.len());
        }
    }

    fn dispatch(&self, seen: WatchEvent, context: &Context) {
        let world = &context.caches;
        match seen {
            WatchEvent::Run(run) => self.enqueue_agent_of(&run),
            WatchEvent::RunDeleted(run) => {
                self.enqueue_agent_of(&run);
                // A run that was torn down has left nothing.
                if let Some(uid) = run.uid().filter(|_| !is_torn_down(&run)) {
                    let _ = self.deleted_runs.send(DeletedRun { uid });
                }
            }
            WatchEvent::Agent(namespace, name) => {
                let agent = Caches::find(&world.agents, &namespace, &name);
                let instance = Caches::find(&world.instances, &namespace, &name);
                if agent.is_none() && instance.is_none() {
                    self.run_counts.forget(&namespace, &name);
                }
                for policy in self.policy_refs.update(&namespace, &name, world) {
                    self.enqueue_policy(&namespace, &policy, context);
                }
                // An Agent and a SympoziumInstance of the same name conflict: both statuses have to be updated.
                self.enqueue_agent(&namespace, &name);
            }
            WatchEvent::Pack(namespace, name) => {
                let names = |spec: &AgentSpec| {
                    let packs = spec.skills.iter().filter_map(|it| it.skill_pack_ref.as_ref());
                    packs.into_iter().any(|pack| pack.as_str() == name)
                };
                self.enqueue_agents(world, names);
                self.packs.add(ObjectRef::new(&name).within(&namespace));
            }
            WatchEvent::Policy(namespace, name) => {
                // A policy shadows the one of the same name in the system namespace: the agents of both are affected.
                self.enqueue_policy(&namespace, &name, context);
                let names = |spec: &AgentSpec| spec.policy_ref.as_ref().is_some_and(|it| it.as_str() == name);
                self.enqueue_agents(world, names);
            }
            WatchEvent::Node => self.nodes_changed.notify_one(),
            WatchEvent::Model(namespace, name) => {
                self.models.add(ObjectRef::new(&name).within(&namespace));
            }
            WatchEvent::Schedule(namespace, name) => {
                self.schedules.add(ObjectRef::new(&name).within(&namespace));
            }
            WatchEvent::Job(..) | WatchEvent::Pod(..) | WatchEvent::PodRejection { .. } => {}
        }
    }

    fn enqueue_agent_of(&self, run: &AgentRun) {
        if let (Some(namespace), Some(name)) = (run.namespace(), agent_name(run)) {
            self.enqueue_agent(&namespace, name);
        }
    }

    fn enqueue_policy(&self, namespace: &str, name: &str, context: &Context) {
        let system = context.settings.system_namespace.as_str();
        for namespace in [namespace, system] {
            self.policies.add(ObjectRef::new(name).within(namespace));
        }
    }

    fn enqueue_agent(&self, namespace: &str, name: &str) {
        self.agents.add(ObjectRef::new(name).within(namespace));
        self.instances.add(ObjectRef::new(name).within(namespace));
    }

    fn enqueue_agents(&self, world: &Caches, names: impl Fn(&AgentSpec) -> bool) {
        enqueue_matching(&world.agents, &self.agents, |agent| names(&agent.spec));
        enqueue_matching(&world.instances, &self.instances, |it| names(&it.spec));
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
