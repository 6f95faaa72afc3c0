//! A fake kubelet and gateway: on a control plane without a node nothing else runs pods or reports for them.
//!
//! A pod of a run is bound to a node that is only an object, is said to run, and ends as its play says. The gateway's part
//! is as short: when the run's status names the pod, and not before, the end is reported. So the controller sees what it
//! would see of a real run, a thousand times faster. Everything here goes straight to the API server, past the faults.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sympozium_api::{AgentRun, labels};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The node that is only an object.
const NODE: &str = "played";
/// How often it says that it lives; the controller manager waits 40 s.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long a call is made again that the API server did not answer, and the pause in between: a pod of which nobody speaks any more
/// would keep its run for ever.
const RETRY_PATIENCE: Duration = Duration::from_secs(120);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// What the agent answers.
pub const RESULT: &str = "Everything is as it should be.";

/// What a run's pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Play {
    /// The agent answers, the gateway reports it, the pod ends.
    #[default]
    Answers,
    /// The bridge is killed: nothing is reported, and the agent lingers.
    LosesBridge,
    /// It runs until it is deleted.
    Works,
    /// It works until [`Played::cue`] says what comes next.
    Waits,
    /// The pod succeeds without reports: for pods that belong to no run.
    Ends,
}

/// What became of a run's pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods {
    /// Pods of the run itself that were there, by UID.
    pub seen: BTreeSet<String>,
    /// Those of them that ran: each is an execution.
    pub executed: BTreeSet<String>,
    /// Pods of hooks afterwards that ran.
    pub hooks: BTreeSet<String>,
}

/// Plays for as long as it is kept.
pub struct Played {
    shared: Arc<Shared>,
    /// Aborted when dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    client: Client,
    plays: Mutex<HashMap<String, Play>>,
    pods: Mutex<HashMap<String, Pods>>,
    /// The UID of the pod that each run's status names.
    runs: Mutex<HashMap<String, watch::Sender<Option<String>>>>,
    /// Whether a pod of each run has run.
    ran: Mutex<HashMap<String, watch::Sender<bool>>>,
    /// What a run that waits was told to do, by UID.
    cues: Mutex<HashMap<String, watch::Sender<Option<Play>>>>,
}

impl Played {
    /// Makes the node and begins.
    ///
    /// # Errors
    ///
    /// When the node cannot be made.
    pub async fn begin(client: Client) -> Result<Self> {
        make_node(&client).await?;
        let shared = Arc::new(Shared {
            client: client.clone(),
            plays: Mutex::default(),
            pods: Mutex::default(),
            runs: Mutex::default(),
            ran: Mutex::default(),
            cues: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_node(client));
        tasks.spawn(Arc::clone(&shared).watch_runs());
        tasks.spawn(Arc::clone(&shared).watch_pods());
        Ok(Self { shared, _tasks: tasks })
    }

    /// What the pod of the run of this name will do, other than to answer.
    pub fn play(&self, run: &str, play: Play) {
        self.shared.plays.lock().insert(run.to_owned(), play);
    }

    /// Has the pod of the run with this UID, which [waits](Play::Waits), go on: at once, or as soon as it runs.
    pub fn cue(&self, uid: &str, play: Play) {
        self.shared.cue(uid).send_replace(Some(play));
    }

    /// Ready when a pod of this run has run.
    pub fn ran(&self, uid: &str) -> impl Future<Output = ()> + Send + use<> {
        let mut ran = self.shared.ran(uid).subscribe();
        async move {
            // The sender is kept with the run, so this can only end well.
            let _ = ran.wait_for(|ran| *ran).await;
        }
    }

    /// What became of the pods of the run with this UID.
    pub fn pods_of(&self, uid: &str) -> Pods {
        self.shared.pods.lock().get(uid).cloned().unwrap_or_default()
    }
}

impl Shared {
    async fn watch_runs(self: Arc<Self>) {
        let api: Api<AgentRun> = Api::all(self.client.clone());
        let mut events = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
        while let Some(event) = events.next().await {
            let Ok(run) = event else { continue };
            let pod = run.status.as_ref().and_then(|it| it.pod_uid.as_ref());
            let pod = pod.map(ToString::to_string);
            self.run(&run.uid().unwrap_or_default()).send_if_modified(|known| {
                let changed = *known != pod;
                *known = pod;
                changed
            });
        }
    }

    fn run(&self, uid: &str) -> watch::Sender<Option<String>> {
        self.runs.lock().entry(uid.to_owned()).or_default().clone()
    }

    fn ran(&self, uid: &str) -> watch::Sender<bool> {
        self.ran.lock().entry(uid.to_owned()).or_default().clone()
    }

    fn cue(&self, uid: &str) -> watch::Sender<Option<Play>> {
        self.cues.lock().entry(uid.to_owned()).or_default().clone()
    }

    async fn watch_pods(self: Arc<Self>) {
        let api: Api<Pod> = Api::all(self.client.clone());
        let ours = watcher::Config::default().labels(labels::RUN_UID);
        let mut events = watcher(api, ours).default_backoff().boxed();
        let mut lives: HashMap<String, watch::Sender<Pod>> = HashMap::new();
        let mut tasks = JoinSet::new();
        while let Some(event) = events.next().await {
            let (pod, there) = match event {
                Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => (pod, true),
                Ok(watcher::Event::Delete(pod)) => (pod, false),
                _ => continue,
            };
            let uid = pod.uid().unwrap_or_default();
            if !there {
                lives.remove(&uid);
            } else if let Some(life) = lives.get(&uid) {
                life.send_replace(pod);
            } else {
                let (life, changes) = watch::channel(pod);
                lives.insert(uid, life);
                let shared = Arc::clone(&self);
                tasks.spawn(async move {
                    // A pod that is gone ends its life early, and nothing more is to be done for it.
                    let _ = shared.live(changes).await;
                });
            }
            while tasks.try_join_next().is_some() {}
        }
    }

    /// A pod's life, from being seen to its end.
    async fn live(&self, mut changes: watch::Receiver<Pod>) -> kube::Result<()> {
        let pod = changes.borrow().clone();
        let labels = pod.labels().clone();
        let of = |label: &str| labels.get(label).cloned().unwrap_or_default();
        let run_uid = of(labels::RUN_UID);
        let is_hook = of(labels::COMPONENT) == labels::component::POST_RUN;
        let uid = pod.uid().unwrap_or_default();
        let namespace = pod.namespace().unwrap_or_default();
        let stage =
            Stage { api: Api::namespaced(self.client.clone(), &namespace), name: pod.name_any(), spec: pod.clone() };
        if !is_hook {
            self.note(&run_uid, |pods| pods.seen.insert(uid.clone()));
        }
        let run = of(labels::RUN);
        if pod.metadata.deletion_timestamp.is_none() {
            tokio::select! {
                acted = self.act(&stage, &run_uid, &run, is_hook) => acted?,
                () = deleted(&mut changes) => {}
            }
        }
        deleted(&mut changes).await;
        stage.end().await
    }

    async fn act(&self, stage: &Stage, run_uid: &str, run: &str, is_hook: bool) -> kube::Result<()> {
        stage.bind().await?;
        stage.set_status(&stage.running()).await?;
        let uid = stage.spec.uid().unwrap_or_default();
        self.note(run_uid, |pods| {
            let ran = if is_hook { &mut pods.hooks } else { &mut pods.executed };
            ran.insert(uid.clone())
        });
        if is_hook {
            return stage.set_status(&stage.ended(0)).await;
        }
        self.ran(run_uid).send_replace(true);
        let mut play = self.plays.lock().get(run).copied().unwrap_or_default();
        if play == Play::Waits {
            let mut cue = self.cue(run_uid).subscribe();
            // The sender is kept with the run, so this can only end well.
            let told = cue.wait_for(Option::is_some).await;
            play = told.ok().and_then(|it| *it).unwrap_or(Play::Works);
        }
        match play {
            Play::Answers => {
                let mut named = self.run(run_uid).subscribe();
                // The sender is kept with the run, so this can only end well.
                let _ = named.wait_for(|pod| pod.as_deref() == Some(&uid)).await;
                self.report(stage, run).await?;
                stage.set_status(&stage.ended(0)).await
            }
            Play::LosesBridge => stage.set_status(&stage.without_bridge()).await,
            Play::Works | Play::Waits => Ok(()),
            Play::Ends => stage.set_status(&stage.ended(0)).await,
        }
    }

    /// What the gateway writes.
    async fn report(&self, stage: &Stage, run: &str) -> kube::Result<()> {
        let namespace = stage.spec.namespace().unwrap_or_default();
        let api: Api<AgentRun> = Api::namespaced(self.client.clone(), &namespace);
        let report = json!({
            "reportedAt": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "reports": 1,
            "phase": "ended",
            "finished": true,
            "ending": "answered",
            "result": RESULT,
            "tokenUsage": {
                "inputTokens": 40, "outputTokens": 2, "totalTokens": 42, "toolCalls": 1, "durationMs": 5,
            },
        });
        let manager = PatchParams::apply(labels::field_manager::GATEWAY);
        let patch = Patch::Merge(json!({ "status": { "report": report } }));
        retry(|| api.patch_status(run, &manager, &patch)).await.map(|_| ())
    }

    fn note(&self, run_uid: &str, change: impl FnOnce(&mut Pods) -> bool) {
        change(self.pods.lock().entry(run_uid.to_owned()).or_default());
    }
}

/// Waits until a pod is to go, or is gone.
async fn deleted(changes: &mut watch::Receiver<Pod>) {
    let _ = changes.wait_for(|pod| pod.metadata.deletion_timestamp.is_some()).await;
}

/// One pod, and what can be said about it.
struct Stage {
    api: Api<Pod>,
    name: String,
    spec: Pod,
}

impl Stage {
    async fn bind(&self) -> kube::Result<()> {
        if self.spec.spec.as_ref().is_some_and(|it| it.node_name.is_some()) {
            return Ok(());
        }
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": self.name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": NODE },
        });
        let parameters = PostParams::default();
        let bind = || self.api.create_subresource::<Value, Value>("binding", &self.name, &parameters, &binding);
        let bound = retry(bind).await;
        // Perhaps by an earlier call, whose answer was lost.
        if bound.is_err() && self.is_bound().await? {
            return Ok(());
        }
        bound.map(|_| ())
    }

    async fn is_bound(&self) -> kube::Result<bool> {
        let now = retry(|| self.api.get_opt(&self.name)).await?;
        let now = now.filter(|it| it.uid() == self.spec.uid() && it.metadata.deletion_timestamp.is_none());
        Ok(now.and_then(|it| it.spec?.node_name).as_deref() == Some(NODE))
    }

    async fn set_status(&self, status: &Value) -> kube::Result<()> {
        let patch = json!({ "metadata": { "uid": self.spec.uid() }, "status": status });
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        retry(|| self.api.patch_status(&self.name, &parameters, &patch)).await.map(|_| ())
    }

    /// What a kubelet does when a pod is to go: its containers end, and then it is gone.
    async fn end(&self) -> kube::Result<()> {
        // It may be over already, and then stays as it ended.
        let now = retry(|| self.api.get_opt(&self.name)).await?;
        let phase = now.and_then(|pod| pod.status?.phase);
        if !matches!(phase.as_deref(), Some("Succeeded" | "Failed")) {
            self.set_status(&self.ended(143)).await?;
        }
        let at_once = DeleteParams {
            preconditions: Some(kube::api::Preconditions { uid: self.spec.uid(), resource_version: None }),
            ..DeleteParams::default().grace_period(0)
        };
        retry(|| self.api.delete(&self.name, &at_once)).await.map(|_| ())
    }

    fn running(&self) -> Value {
        let state = json!({ "running": { "startedAt": now() } });
        self.status("Running", |name, is_sidecar| match name {
            "agent" | "ipc-bridge" => state.clone(),
            _ if is_sidecar => state.clone(),
            "check-network" => terminated(0, "enforced"),
            _ => terminated(0, ""),
        })
    }

    fn ended(&self, code: i32) -> Value {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        self.status(phase, |name, _| match name {
            "check-network" => terminated(0, "enforced"),
            _ => terminated(code, ""),
        })
    }

    fn without_bridge(&self) -> Value {
        let mut status = self.running();
        for container in status["containerStatuses"].as_array_mut().into_iter().flatten() {
            if container["name"] == "ipc-bridge" {
                container["state"] = terminated(137, "");
                container["ready"] = json!(false);
            }
        }
        status
    }

    fn status(&self, phase: &str, state: impl Fn(&str, bool) -> Value) -> Value {
        let spec = self.spec.spec.clone().unwrap_or_default();
        let one = |container: &k8s_openapi::api::core::v1::Container| {
            let is_sidecar = container.restart_policy.as_deref() == Some("Always");
            let state = state(&container.name, is_sidecar);
            let runs = state.get("running").is_some();
            json!({
                "name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
                "ready": runs, "started": runs, "state": state,
            })
        };
        let before: Vec<_> = spec.init_containers.iter().flatten().map(one).collect();
        let containers: Vec<_> = spec.containers.iter().map(one).collect();
        let ready = if phase == "Running" { "True" } else { "False" };
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
        json!({
            "phase": phase,
            "startTime": now(),
            "podIP": "198.51.100.1",
            "conditions": [
                condition("PodScheduled", "True"), condition("Initialized", "True"),
                condition("ContainersReady", ready), condition("Ready", ready),
            ],
            "initContainerStatuses": before,
            "containerStatuses": containers,
        })
    }
}

/// Makes a call until the API server answers it. What it refuses stays refused.
async fn retry<T, F: Future<Output = kube::Result<T>>>(mut call: impl FnMut() -> F) -> kube::Result<T> {
    let deadline = Instant::now() + RETRY_PATIENCE;
    loop {
        let answer = call().await;
        let is_refused = matches!(&answer, Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429);
        if answer.is_ok() || is_refused || Instant::now() >= deadline {
            return answer;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn terminated(code: i32, message: &str) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    json!({ "terminated": {
        "exitCode": code, "reason": reason, "message": message, "startedAt": now(), "finishedAt": now(),
    } })
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

async fn make_node(client: &Client) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": NODE, "labels": { "kubernetes.io/os": "linux" } },
    }))
    .context("writing the node")?;
    match api.create(&PostParams::default(), &node).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error).context("making the node"),
    }
    renew(client).await.context("writing the node's Lease")?;
    let ready = json!({ "type": "Ready", "status": "True", "reason": "Played", "message": "",
        "lastHeartbeatTime": now(), "lastTransitionTime": now() });
    let runtime = json!({ "name": "", "features": { "userNamespaces": true } });
    let status = Patch::Merge(json!({ "status": { "conditions": [ready], "runtimeHandlers": [runtime] } }));
    api.patch_status(NODE, &PatchParams::default(), &status).await.context("saying that the node is ready")?;
    Ok(())
}

async fn keep_node(client: Client) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        // One that is missed is made good by the next.
        let _ = renew(&client).await;
    }
}

async fn renew(client: &Client) -> kube::Result<()> {
    let api: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": NODE },
        "spec": { "holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": time },
    });
    let manager = PatchParams::apply("played").force();
    api.patch(NODE, &manager, &Patch::Apply(lease)).await.map(|_| ())
}
