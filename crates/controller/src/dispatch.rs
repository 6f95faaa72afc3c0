//! Maps watch events to the objects that have to be reconciled.

use std::sync::Arc;

use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt as _};
use sympozium_api::{
    Agent, AgentRun, AgentSpec, Model, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumSchedule,
};
use tokio::sync::{Notify, mpsc};

use crate::agents::{Counted, agent_of};
use crate::context::Context;
use crate::policies::Bindings;
use crate::run;
use crate::sweep::Gone;
use crate::work::Queue;
use crate::world::{Seen, Told, World, is_settled};

/// The queues that watch events are dispatched to.
pub struct Dispatch {
    pub runs: Queue<AgentRun>,
    pub packs: Queue<SkillPack>,
    pub agents: Queue<Agent>,
    /// Agents under the kind's former name.
    pub instances: Queue<SympoziumInstance>,
    /// Runs that are deleted, for the sweeper.
    pub gone: mpsc::UnboundedSender<Gone>,
    /// Is notified when a node has changed.
    pub nodes: Arc<Notify>,
    pub counted: Arc<Counted>,
    pub policies: Queue<SympoziumPolicy>,
    pub bindings: Bindings,
    pub models: Queue<Model>,
    pub schedules: Queue<SympoziumSchedule>,
}

impl Dispatch {
    /// Runs until the channel of watch events is closed.
    pub async fn run(self, mut told: Told, context: Arc<Context>) {
        loop {
            let seen = tokio::select! {
                seen = told.recv() => seen,
                () = context.index.turns_changed() => {
                    for run in context.index.take_turns() {
                        self.runs.add(run);
                    }
                    continue;
                }
            };
            let Some(seen) = seen else { return };
            for run in run::wake(&seen, &context) {
                self.runs.add(run);
            }
            self.pass_on(seen, &context);
            context.metrics.waiting(self.runs.len());
        }
    }

    fn pass_on(&self, seen: Seen, context: &Context) {
        let world = &context.world;
        match seen {
            Seen::Run(run) => self.agent_of(&run),
            Seen::RunGone(run) => {
                self.agent_of(&run);
                // A run that was torn down has left nothing.
                if let Some(uid) = run.uid().filter(|_| !is_settled(&run)) {
                    let _ = self.gone.send(Gone { uid });
                }
            }
            Seen::Agent(namespace, name) => {
                let agent = World::find(&world.agents, &namespace, &name);
                let instance = World::find(&world.instances, &namespace, &name);
                if agent.is_none() && instance.is_none() {
                    self.counted.forget(&namespace, &name);
                }
                for policy in self.bindings.see(&namespace, &name, world) {
                    self.policy(&namespace, &policy, context);
                }
                // An Agent and a SympoziumInstance of the same name conflict: both statuses have to be updated.
                self.agent(&namespace, &name);
            }
            Seen::Pack(namespace, name) => {
                let names = |spec: &AgentSpec| {
                    let packs = spec.skills.iter().filter_map(|it| it.skill_pack_ref.as_ref());
                    packs.into_iter().any(|pack| pack.as_str() == name)
                };
                self.agents_that(world, names);
                self.packs.add(ObjectRef::new(&name).within(&namespace));
            }
            Seen::Policy(namespace, name) => {
                // A policy shadows the one of the same name in the system namespace: the agents of both are affected.
                self.policy(&namespace, &name, context);
                let names = |spec: &AgentSpec| spec.policy_ref.as_ref().is_some_and(|it| it.as_str() == name);
                self.agents_that(world, names);
            }
            Seen::Node => self.nodes.notify_one(),
            Seen::Model(namespace, name) => {
                self.models.add(ObjectRef::new(&name).within(&namespace));
            }
            Seen::Schedule(namespace, name) => {
                self.schedules.add(ObjectRef::new(&name).within(&namespace));
            }
            Seen::Job(..) | Seen::Pod(..) | Seen::Refusal { .. } => {}
        }
    }

    fn agent_of(&self, run: &AgentRun) {
        if let (Some(namespace), Some(name)) = (run.namespace(), agent_of(run)) {
            self.agent(&namespace, name);
        }
    }

    fn policy(&self, namespace: &str, name: &str, context: &Context) {
        let system = context.settings.system_namespace.as_str();
        for namespace in [namespace, system] {
            self.policies.add(ObjectRef::new(name).within(namespace));
        }
    }

    fn agent(&self, namespace: &str, name: &str) {
        self.agents.add(ObjectRef::new(name).within(namespace));
        self.instances.add(ObjectRef::new(name).within(namespace));
    }

    fn agents_that(&self, world: &World, names: impl Fn(&AgentSpec) -> bool) {
        add_those(&world.agents, &self.agents, |agent| names(&agent.spec));
        add_those(&world.instances, &self.instances, |it| names(&it.spec));
    }
}

fn add_those<K>(store: &Store<K>, queue: &Queue<K>, wanted: impl Fn(&K) -> bool)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    for object in store.state() {
        if wanted(&object) {
            queue.add(ObjectRef::from_obj(object.as_ref()));
        }
    }
}
