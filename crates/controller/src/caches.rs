//! Informer caches: one watch per kind, trimmed to the fields that are needed.
//!
//! A kind that is watched is one field of [`Caches`] and one registration in [`Caches::watch`]: what to list, how to
//! trim it, and which event a change is. Objects are [trimmed](trim) before they are stored: `managedFields` is dropped
//! everywhere, and of a run that is torn down only its status stays, without the texts in it. So thousands of finished
//! runs take little memory.

mod registry;
mod trim;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::Config;
use kube::{Client, Resource, ResourceExt as _};
use sympozium_api::{Agent, AgentRun, Model, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumSchedule, labels};
use tokio::sync::{mpsc, watch};

use self::registry::{Change, Registry};
use self::trim::{trim, trim_job, trim_node, trim_pod, trim_run};
use crate::object_key::ObjectKey;
use crate::run::{StoredRun, pod_status};

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
    /// How many watches have not completed their first list.
    unlisted: watch::Receiver<usize>,
}

/// A change that a watch has delivered.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    Run(StoredRun),
    RunDeleted(StoredRun),
    /// An `Agent` or a `SympoziumInstance`.
    Agent(ObjectKey),
    Pack(ObjectKey),
    Policy(ObjectKey),
    Model(ObjectKey),
    Schedule(ObjectKey),
    /// A Job or a pod that has the label of a run.
    RunObject {
        namespace: String,
        /// From the label, which any client can set.
        run_uid: String,
    },
    /// The API server rejected the pod of a Job.
    PodRejection {
        job: ObjectKey,
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

impl Caches {
    /// Starts the watches. They run for as long as the future is polled; events are sent in the order in which they
    /// arrive.
    pub fn watch(client: &Client) -> (Self, WatchEvents, impl Future<Output = ()> + Send + use<>) {
        let (sender, events) = mpsc::unbounded_channel();
        let mut registry = Registry::new(client, sender);
        let all = || Config::default().page_size(PAGE_SIZE);
        let of_runs = || all().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER));
        // The Job controller reports it in an Event, and nowhere else.
        let rejections = all().fields("involvedObject.kind=Job,reason=FailedCreate");
        registry.add(rejections, trim, pod_rejection);
        let caches = Self {
            runs: registry.add(all(), trim_run, run_event),
            agents: registry.add(all(), trim, by_key(WatchEvent::Agent)),
            instances: registry.add(all(), trim, by_key(WatchEvent::Agent)),
            packs: registry.add(all(), trim, by_key(WatchEvent::Pack)),
            policies: registry.add(all(), trim, by_key(WatchEvent::Policy)),
            models: registry.add(all(), trim, by_key(WatchEvent::Model)),
            schedules: registry.add(all(), trim, by_key(WatchEvent::Schedule)),
            jobs: registry.add(of_runs(), trim_job, run_object),
            pods: registry.add(of_runs(), trim_pod, run_object),
            nodes: registry.add(all(), trim_node, node_event()),
            runtime_classes: registry.add(all(), trim, |_, _| None),
            unlisted: registry.unlisted(),
        };
        (caches, events, registry.watch())
    }

    /// Waits until every kind was listed once. Returns false if that cannot happen any more, because a watch has ended.
    ///
    /// Does not use the stores' own `wait_until_ready`: of several waiters of one store, it wakes only the last.
    pub async fn wait_until_ready(&self) -> bool {
        let mut unlisted = self.unlisted.clone();
        unlisted.wait_for(|count| *count == 0).await.is_ok()
    }

    pub fn find<K>(store: &Store<K>, namespace: &str, name: &str) -> Option<Arc<K>>
    where
        K: Resource<DynamicType = ()> + Clone + 'static,
    {
        store.get(&ObjectKey::new(namespace, name).to_ref())
    }
}

/// Whether a verification has found that nothing of a finished run is left.
pub fn is_revoked(run: &AgentRun) -> bool {
    let revocation = run.status.as_ref().and_then(|status| status.revocation.as_ref());
    revocation.is_some_and(|revocation| revocation.remaining.is_empty())
}

/// Whether nothing is to be done any more about a run, unless it is deleted or too old: its phase is terminal, a
/// verification found nothing left, and our finalizer is removed.
pub fn is_torn_down(run: &AgentRun) -> bool {
    let phase = run.status.as_ref().and_then(|status| status.phase);
    phase.is_some_and(|phase| phase.is_terminal())
        && is_revoked(run)
        && run.metadata.deletion_timestamp.is_none()
        && !run.finalizers().iter().any(|finalizer| finalizer == labels::finalizer::RUN)
}

fn by_key<K: Resource>(event: fn(ObjectKey) -> WatchEvent) -> impl FnMut(Arc<K>, Change) -> Option<WatchEvent> {
    move |object, _| Some(event(ObjectKey::of(object.as_ref())?))
}

/// The only place where runs enter: one without an identity is not announced to anything.
fn run_event(run: Arc<AgentRun>, change: Change) -> Option<WatchEvent> {
    let run = StoredRun::new(run)?;
    Some(match change {
        Change::Applied => WatchEvent::Run(run),
        Change::Deleted => WatchEvent::RunDeleted(run),
    })
}

fn run_object<K: Resource>(object: Arc<K>, _: Change) -> Option<WatchEvent> {
    let run_uid = object.labels().get(labels::RUN_UID)?.clone();
    Some(WatchEvent::RunObject { namespace: object.namespace()?, run_uid })
}

fn pod_rejection(event: Arc<Event>, change: Change) -> Option<WatchEvent> {
    if change == Change::Deleted {
        return None;
    }
    let job = &event.involved_object;
    let job = ObjectKey::new(job.namespace.clone()?, job.name.clone()?);
    Some(WatchEvent::PodRejection { job, message: event.message.clone()? })
}

/// Nodes update their status every few seconds; the fields that matter here change seldom.
fn node_event() -> impl FnMut(Arc<Node>, Change) -> Option<WatchEvent> {
    let mut known = HashMap::new();
    move |node, change| {
        let name = node.name_any();
        let after = (change == Change::Applied).then(|| (pod_status::is_node_lost(&node), runtime_support(&node)));
        let before = match &after {
            Some(after) => known.insert(name, after.clone()),
            None => known.remove(&name),
        };
        (before != after).then_some(WatchEvent::Node)
    }
}

/// Whether a node is closed for pods, and which of its runtimes have user namespaces: what affects future pods.
fn runtime_support(node: &Node) -> (bool, Vec<(Option<String>, bool)>) {
    let is_closed = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let handlers = node.status.iter().flat_map(|status| status.runtime_handlers.iter().flatten());
    let handlers = handlers.map(|handler| {
        let features = handler.features.as_ref();
        let has_user_namespaces = features.and_then(|features| features.user_namespaces) == Some(true);
        (handler.name.clone(), has_user_namespaces)
    });
    (is_closed, handlers.collect())
}
