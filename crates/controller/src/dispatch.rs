//! From what was seen to whom it concerns.

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

/// Where what was seen goes on to.
pub struct Dispatch {
    /// Runs to look at.
    pub runs: Queue<AgentRun>,
    /// Packs to look at.
    pub packs: Queue<SkillPack>,
    /// Agents to look at.
    pub agents: Queue<Agent>,
    /// The same, by their older name.
    pub instances: Queue<SympoziumInstance>,
    /// Runs that are gone, for the sweeper.
    pub gone: mpsc::UnboundedSender<Gone>,
    /// A node was seen.
    pub nodes: Arc<Notify>,
    /// Numbers of agents.
    pub counted: Arc<Counted>,
    /// Policies to look at.
    pub policies: Queue<SympoziumPolicy>,
    /// Which policy each agent names.
    pub bindings: Bindings,
    /// Models to look at.
    pub models: Queue<Model>,
    /// Schedules to look at.
    pub schedules: Queue<SympoziumSchedule>,
}

impl Dispatch {
    /// Goes on until nothing is told any more.
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
                // Of one that was settled nothing was left.
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
                // Each is the other's namesake: both have to say so, or no longer.
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
                // One that comes or goes takes agents from the system's of that name, or leaves them to it.
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
