//! Informer caches: one watch per kind, trimmed to the fields that are needed.
//!
//! Objects are trimmed before they are stored: `managedFields` is dropped everywhere, and of a run that is torn down
//! only its status stays, without the texts in it. So thousands of finished runs take little memory.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures::{Stream, StreamExt as _, TryStreamExt as _, future};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use sympozium_api::agent_run::AgentRunStatus;
use sympozium_api::{
    Agent, AgentRun, AgentRunSpec, Model, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumSchedule, labels,
};
use tokio::sync::{mpsc, watch};

use crate::run::pod_status;

/// The objects that the watches have delivered. Clones share the same stores.
#[derive(Clone)]
pub struct Caches {
    /// All runs. Those that are torn down have no texts; see [`is_torn_down`].
    pub runs: Store<AgentRun>,
    pub agents: Store<Agent>,
    /// Agents under the kind's former name.
    pub instances: Store<SympoziumInstance>,
    pub packs: Store<SkillPack>,
    pub policies: Store<SympoziumPolicy>,
    pub models: Store<Model>,
    pub schedules: Store<SympoziumSchedule>,
    /// Only Jobs of runs.
    pub jobs: Store<Job>,
    /// Only pods of runs.
    pub pods: Store<Pod>,
    pub nodes: Store<Node>,
    pub runtime_classes: Store<RuntimeClass>,
    /// How many watches have completed their first list.
    listed_watches: watch::Receiver<usize>,
}

const WATCH_COUNT: usize = 12;

/// A change that a watch has delivered.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    Run(Arc<AgentRun>),
    RunDeleted(Arc<AgentRun>),
    /// Namespace and name.
    Agent(String, String),
    /// Namespace and name.
    Pack(String, String),
    /// Namespace and name.
    Policy(String, String),
    /// Namespace and name.
    Model(String, String),
    /// Namespace and name.
    Schedule(String, String),
    /// Namespace of the Job, and UID of its run.
    Job(String, String),
    /// Namespace of the pod, and UID of its run.
    Pod(String, String),
    /// The API server rejected the pod of a Job.
    PodRejection {
        namespace: String,
        job: String,
        /// The API server's message.
        message: String,
    },
    /// A node was added or removed, changed its readiness, or its runtimes changed.
    Node,
}

/// Objects per list request: a page is held in memory untrimmed, and the authors of objects decide how large they are.
const PAGE_SIZE: u32 = 50;

/// The receiving end of the channel of watch events.
pub type WatchEvents = mpsc::UnboundedReceiver<WatchEvent>;

/// Whether a verification has found that nothing of a finished run is left.
pub fn is_revoked(run: &AgentRun) -> bool {
    let revocation = run.status.as_ref().and_then(|it| it.revocation.as_ref());
    revocation.is_some_and(|it| it.remaining.is_empty())
}

/// Whether nothing is to be done any more about a run, unless it is deleted or too old: its phase is terminal, a
/// verification found nothing left, and our finalizer is removed.
pub fn is_torn_down(run: &AgentRun) -> bool {
    let status = run.status.as_ref();
    let over = status.is_some_and(|it| it.phase.is_some_and(|phase| phase.is_terminal()));
    over && is_revoked(run)
        && run.metadata.deletion_timestamp.is_none()
        && !run.finalizers().iter().any(|it| it == labels::finalizer::RUN)
}

impl Caches {
    /// Starts the watches. They run for as long as the future is polled; events are sent in the order in which they
    /// arrive.
    pub fn watch(client: &Client) -> (Self, WatchEvents, impl Future<Output = ()> + Send + use<>) {
        let (tell, told) = mpsc::unbounded_channel();
        let (count, listed) = watch::channel(0);
        let count = &Arc::new(count);
        let all = || watcher::Config::default().page_size(PAGE_SIZE);
        let ours = all().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER));

        let (runs, watch_runs) = reflect(client, count, all(), trim_run, {
            let tell = tell.clone();
            move |run: Arc<AgentRun>, there| {
                let seen = if there { WatchEvent::Run(run) } else { WatchEvent::RunDeleted(run) };
                let _ = tell.send(seen);
            }
        });
        let named = |tell: &mpsc::UnboundedSender<WatchEvent>, seen: fn(String, String) -> WatchEvent| {
            let tell = tell.clone();
            move |namespace: String, name: String| {
                let _ = tell.send(seen(namespace, name));
            }
        };
        let agent = named(&tell, WatchEvent::Agent);
        let instance = named(&tell, WatchEvent::Agent);
        let pack = named(&tell, WatchEvent::Pack);
        let policy = named(&tell, WatchEvent::Policy);
        let model = named(&tell, WatchEvent::Model);
        let schedule = named(&tell, WatchEvent::Schedule);
        let job = named(&tell, WatchEvent::Job);
        let pod = named(&tell, WatchEvent::Pod);
        let (agents, watch_agents) = reflect(client, count, all(), trim, move |it: Arc<Agent>, _| {
            agent(it.namespace().unwrap_or_default(), it.name_any());
        });
        let (instances, watch_instances) = reflect(client, count, all(), trim, move |it: Arc<SympoziumInstance>, _| {
            instance(it.namespace().unwrap_or_default(), it.name_any());
        });
        let (packs, watch_packs) = reflect(client, count, all(), trim, move |it: Arc<SkillPack>, _| {
            pack(it.namespace().unwrap_or_default(), it.name_any());
        });
        let (policies, watch_policies) = reflect(client, count, all(), trim, move |it: Arc<SympoziumPolicy>, _| {
            policy(it.namespace().unwrap_or_default(), it.name_any());
        });
        let (models, watch_models) = reflect(client, count, all(), trim, move |it: Arc<Model>, _| {
            model(it.namespace().unwrap_or_default(), it.name_any());
        });
        let (schedules, watch_schedules) = reflect(client, count, all(), trim, move |it: Arc<SympoziumSchedule>, _| {
            schedule(it.namespace().unwrap_or_default(), it.name_any());
        });
        let (jobs, watch_jobs) = reflect(client, count, ours.clone(), trim_job, move |it: Arc<Job>, _| {
            if let Some(uid) = it.labels().get(labels::RUN_UID) {
                job(it.namespace().unwrap_or_default(), uid.clone());
            }
        });
        let (pods, watch_pods) = reflect(client, count, ours, trim_pod, move |it: Arc<Pod>, _| {
            if let Some(uid) = it.labels().get(labels::RUN_UID) {
                pod(it.namespace().unwrap_or_default(), uid.clone());
            }
        });
        // The Job controller reports it in an Event, and nowhere else.
        let refused = all().fields("involvedObject.kind=Job,reason=FailedCreate");
        let (_, watch_refusals) = reflect(client, count, refused, trim, {
            let tell = tell.clone();
            move |event: Arc<Event>, there| {
                let said = event.message.clone().filter(|_| there);
                let about = &event.involved_object;
                if let (Some(namespace), Some(job), Some(said)) = (about.namespace.clone(), about.name.clone(), said) {
                    let _ = tell.send(WatchEvent::PodRejection { namespace, job, message: said });
                }
            }
        });
        // Nodes update their status every few seconds; the fields that matter here change seldom.
        let mut known = HashMap::new();
        let (nodes, watch_nodes) = reflect(client, count, all(), trim_node, move |node: Arc<Node>, there| {
            let now = there.then(|| (pod_status::is_node_lost(&node), runtime_support(&node)));
            let before = match &now {
                Some(now) => known.insert(node.name_any(), now.clone()),
                None => known.remove(&node.name_any()),
            };
            if before != now {
                let _ = tell.send(WatchEvent::Node);
            }
        });
        let (runtime_classes, watch_runtime_classes) =
            reflect(client, count, all(), trim, |_: Arc<RuntimeClass>, _| {});
        let world = Self {
            runs,
            agents,
            instances,
            packs,
            policies,
            models,
            schedules,
            jobs,
            pods,
            nodes,
            runtime_classes,
            listed_watches: listed,
        };
        let watching = async move {
            tokio::join!(
                watch_runs,
                watch_agents,
                watch_instances,
                watch_packs,
                watch_policies,
                watch_models,
                watch_schedules,
                watch_jobs,
                watch_pods,
                watch_refusals,
                watch_nodes,
                watch_runtime_classes
            );
        };
        (world, told, watching)
    }

    /// Waits until every kind was listed once. Returns false if that cannot happen any more, because a watch has ended.
    ///
    /// Does not use the stores' own `wait_until_ready`: of several waiters of one store, it wakes only the last.
    pub async fn wait_until_ready(&self) -> bool {
        let mut listed = self.listed_watches.clone();
        listed.wait_for(|listed| *listed >= WATCH_COUNT).await.is_ok()
    }

    pub fn find<K>(store: &Store<K>, namespace: &str, name: &str) -> Option<Arc<K>>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        store.get(&ObjectRef::new(name).within(namespace))
    }
}

/// Watches a kind into a store, and calls `tell` for each object that was applied (`true`) or deleted (`false`).
fn reflect<K, T>(
    client: &Client,
    count: &Arc<watch::Sender<usize>>,
    config: watcher::Config,
    trim: fn(&mut K),
    tell: T,
) -> (Store<K>, impl Future<Output = ()> + Send + use<K, T>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
    T: FnMut(Arc<K>, bool) + Send + 'static,
{
    let mut tell = tell;
    let (reader, writer) = store();
    let api: Api<K> = Api::all(client.clone());
    let events = watcher(api, config).default_backoff().modify(trim).reflect(writer);
    // The store replaces its content when a list is complete: objects that are announced earlier would not be found in
    // it. Objects that are missing from the new list were deleted while the watch was interrupted.
    let mut listed: Vec<K> = Vec::new();
    let (known, mut before) = (reader.clone(), Vec::new());
    let mut count = Some(Arc::clone(count));
    let told: std::pin::Pin<Box<dyn Stream<Item = _> + Send>> =
        Box::pin(events.map_ok(move |event: watcher::Event<K>| match event {
            watcher::Event::Apply(object) => tell(Arc::new(object), true),
            watcher::Event::Delete(object) => tell(Arc::new(object), false),
            watcher::Event::Init => {
                listed.clear();
                before = known.state();
            }
            watcher::Event::InitApply(object) => listed.push(object),
            watcher::Event::InitDone => {
                let there: HashSet<_> = listed.iter().map(|it| it.meta().uid.clone()).collect();
                for gone in std::mem::take(&mut before) {
                    if !there.contains(&gone.meta().uid) {
                        tell(gone, false);
                    }
                }
                for object in std::mem::take(&mut listed) {
                    tell(Arc::new(object), true);
                }
                // Only for the first list.
                if let Some(count) = count.take() {
                    count.send_modify(|count| *count += 1);
                }
            }
        }));
    let watching = told.for_each(|outcome| {
        if let Err(error) = outcome {
            tracing::warn!(kind = %K::kind(&()), %error, "a watch was cut; it is taken up again");
        }
        future::ready(())
    });
    (reader, watching)
}

/// Drops `managedFields`, which nothing here uses.
fn trim<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Keeps only what lists need of a run that is torn down.
fn trim_run(run: &mut AgentRun) {
    trim(run);
    if !is_torn_down(run) {
        return;
    }
    let spec = std::mem::take(&mut run.spec);
    run.spec = AgentRunSpec {
        agent_ref: spec.agent_ref,
        instance_ref: spec.instance_ref,
        parent: spec.parent,
        ..AgentRunSpec::default()
    };
    if let Some(status) = run.status.take() {
        run.status = Some(AgentRunStatus {
            phase: status.phase,
            completed_at: status.completed_at,
            revocation: status.revocation,
            ..AgentRunStatus::default()
        });
    }
    run.metadata.annotations = None;
    run.metadata.labels = None;
}

fn trim_job(job: &mut Job) {
    trim(job);
    if let Some(spec) = &mut job.spec {
        spec.template = Default::default();
    }
}

/// Keeps readiness and runtimes. The list of images alone can have thousands of entries.
fn trim_node(node: &mut Node) {
    trim(node);
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}

/// Whether a node is closed for pods, and which of its runtimes have user namespaces: what affects future pods.
fn runtime_support(node: &Node) -> (bool, Vec<(String, bool)>) {
    let closed = node.spec.as_ref().and_then(|it| it.unschedulable) == Some(true);
    let handlers = node.status.iter().flat_map(|it| it.runtime_handlers.iter().flatten());
    let handlers = handlers.map(|it| {
        let features = it.features.as_ref();
        let user_namespaces = features.and_then(|it| it.user_namespaces) == Some(true);
        (it.name.clone().unwrap_or_default(), user_namespaces)
    });
    (closed, handlers.collect())
}

/// Drops the pod's specification, which is in the plan, and keeps its status.
fn trim_pod(pod: &mut Pod) {
    trim(pod);
    pod.metadata.annotations = None;
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(k8s_openapi::api::core::v1::PodSpec {
            node_name: spec.node_name,
            host_users: spec.host_users,
            runtime_class_name: spec.runtime_class_name,
            ..Default::default()
        });
    }
}
