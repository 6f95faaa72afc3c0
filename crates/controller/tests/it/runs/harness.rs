//! A namespace with a controller of its own in this process, and a kubelet and a gateway that the test plays.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use sympozium_api::{AgentRun, SympoziumPolicy};
use sympozium_controller::caches::Caches;
use sympozium_controller::cluster_info::ClusterInfo;
use sympozium_controller::context::Context;
use sympozium_controller::metrics::Metrics;
use sympozium_controller::reconcile_loop::{queue, run_loop};
use sympozium_controller::run;
use sympozium_controller::settings::Settings;
use sympozium_ipc::credential::{KEY_BYTES, KeyRing};
use sympozium_plan::render::RenderSettings;
use sympozium_testkit::cluster::{Exclusivity, Namespace, Security};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::harness::cluster;

/// How long anything may take on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(180);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A namespace with its controller.
pub struct Harness {
    pub client: Client,
    pub namespace: Namespace,
    /// The system namespace of this controller: its own, so that tests do not meet.
    pub system: Namespace,
    controller: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    settings: Settings,
    /// A controller sees every namespace, and would judge the runs of another test by its own floor.
    _exclusivity: Exclusivity,
}

impl Harness {
    /// Nothing, and a recorded skip, where there is no cluster.
    pub async fn start() -> Option<Self> {
        let exclusivity = Exclusivity::exclusive();
        // Here and not on another thread: a skip is told apart by the name of the test's own.
        let found = tokio::task::block_in_place(|| {
            let cluster = cluster()?;
            let namespace = cluster.namespace("runs", Security::Restricted);
            let system = cluster.namespace("system", Security::Restricted);
            Some((cluster, namespace.expect("a namespace"), system.expect("a namespace")))
        });
        let (cluster, namespace, system) = found?;
        let client = cluster.client().await.expect("a client");
        let mut settings = Settings { system_namespace: system.name().to_owned(), ..Settings::default() };
        settings.admission.system_namespace = system.name().to_owned();
        let mut harness = Self { client, namespace, system, controller: None, settings, _exclusivity: exclusivity };
        harness.trust_packs().await;
        harness.start_controller();
        Some(harness)
    }

    /// The floor trusts the packs of the test's namespace.
    async fn trust_packs(&self) {
        self.create(
            self.system.name(),
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy",
                "metadata": { "name": "floor" },
                "spec": { "rbacPolicy": { "clusterRBACNamespaces": [self.namespace.name()] } },
            }),
        )
        .await;
    }

    /// The policies of the system namespace.
    pub fn floor(&self) -> Api<SympoziumPolicy> {
        Api::namespaced(self.client.clone(), self.system.name())
    }

    /// Changes the floor, and waits until the controller has seen it: watches of different kinds do not wait for each other.
    ///
    /// It is seen by the error of a run that is denied in any case, having no task: the floor denies to hooks a resource that does
    /// not exist, of a new name, and an error has all reasons at once.
    pub async fn patch_floor(&self, floor: &Api<SympoziumPolicy>, mut patch: Value) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("floors-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        patch["spec"]["lifecyclePolicy"] = json!({ "deniedResources": [mark] });
        let patched = floor.patch("floor", &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.expect("the floor");
        let agent = json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": { "name": "asks" },
            "spec": { "agents": { "default": { "model": "m" } } } });
        self.apply(&[agent]).await;
        let rule = json!({ "apiGroups": [""], "resources": [mark], "verbs": ["get"] });
        let deadline = Instant::now() + TIMEOUT;
        for number in 0.. {
            let name = format!("asks-{number}");
            let run = json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": { "name": name },
                "spec": { "agentRef": "asks", "lifecycle": { "rbac": [rule] } } });
            self.apply(&[run]).await;
            let denied = |run: &AgentRun| run.status.as_ref().is_some_and(|status| status.error.is_some());
            let run = self.wait_until_run(&name, "denied", denied).await;
            let error = run.status.and_then(|status| status.error).unwrap_or_default();
            let deleted = self.runs().delete(&name, &DeleteParams::default()).await;
            deleted.expect("it is deleted");
            if error.contains("denied[hook-resource]") && error.contains(&mark) {
                return;
            }
            assert!(Instant::now() < deadline, "the floor is not seen: {error}");
        }
    }

    /// Starts a controller.
    pub fn start_controller(&mut self) {
        let cluster_info = ClusterInfo {
            // As in a cluster without agent-sandbox.
            render: RenderSettings { sandbox_version: None, ..RenderSettings::default() },
            gateway_authority: "the gateway's".to_owned(),
            api_server_authority: "the API server's".to_owned(),
            keys: Arc::new(KeyRing::single("k1", [7; KEY_BYTES]).expect("a key")),
        };
        let (client, settings) = (self.client.clone(), self.settings.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let working = tokio::spawn(async move {
            let (caches, watch_events, watching) = Caches::watch(&client);
            let watching = tokio::spawn(watching);
            let (_sender, cluster_info) = watch::channel(Some(Arc::new(cluster_info)));
            let metrics = Arc::new(Metrics::new());
            let context = Context::new(client, settings, caches, cluster_info, metrics);
            assert!(context.caches.wait_until_ready().await, "watches");
            let context = Arc::new(context);
            let (queue, queued) = queue();
            let requeueing = tokio::spawn({
                let (context, mut watch_events) = (Arc::clone(&context), watch_events);
                async move {
                    loop {
                        let runs = tokio::select! {
                            event = watch_events.recv() => match event {
                                Some(event) => run::runs_to_requeue(&event, &context),
                                None => return,
                            },
                            () = context.index.wait_turns_changed() => context.index.take_runnable(),
                        };
                        for run in runs {
                            queue.add(run);
                        }
                    }
                }
            });
            let (stop_loop, stop) = watch::channel(false);
            let runs = context.caches.runs.clone();
            let working = run_loop("AgentRun", context, runs, queued, stop, run::reconcile);
            let stopping = async {
                let _ = stopped.await;
                stop_loop.send_replace(true);
            };
            tokio::join!(working, stopping);
            requeueing.abort();
            watching.abort();
        });
        self.controller = Some((stop, working));
    }

    /// Changes how the next controller is set up, and starts it.
    pub async fn restart(&mut self, change: impl FnOnce(&mut Settings)) {
        if let Some((stop, working)) = self.controller.take() {
            let _ = stop.send(());
            working.await.expect("the controller ends");
        }
        change(&mut self.settings);
        self.start_controller();
    }

    /// Creates an object in a namespace.
    pub async fn create(&self, namespace: &str, mut object: Value) -> Value {
        object["metadata"]["namespace"] = json!(namespace);
        let kind: kube::api::DynamicObject = serde_json::from_value(object).expect("an object");
        let types = kind.types.clone().expect("a kind");
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let gvk = kube::api::GroupVersionKind::gvk(group, version, &types.kind);
        let resource = match types.kind.as_str() {
            "SympoziumPolicy" => kube::api::ApiResource::from_gvk_with_plural(&gvk, "sympoziumpolicies"),
            _ => kube::api::ApiResource::from_gvk(&gvk),
        };
        let api: Api<kube::api::DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let made = api.create(&PostParams::default(), &kind).await;
        serde_json::to_value(made.expect("it is created")).expect("JSON")
    }

    /// Creates objects in the test's namespace.
    pub async fn apply(&self, objects: &[Value]) {
        for object in objects {
            self.create(self.namespace.name(), object.clone()).await;
        }
    }

    pub fn runs(&self) -> Api<AgentRun> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    /// Waits until a run is as it should be.
    pub async fn wait_until_run(&self, name: &str, what: &str, is: impl Fn(&AgentRun) -> bool) -> AgentRun {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let run = self.runs().get_opt(name).await.ok().flatten();
            if let Some(run) = run.as_ref().filter(|it| is(it)) {
                return run.clone();
            }
            assert!(Instant::now() < deadline, "never {what}: {run:#?}");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits for a pod of the run.
    pub async fn pod(&self, run: &AgentRun, component: &str) -> Pod {
        let selector =
            format!("sympozium.ai/run-uid={},sympozium.ai/component={component}", run.uid().unwrap_or_default());
        let parameters = ListParams::default().labels(&selector);
        self.eventually("a pod", || async {
            let pods = self.pods().list(&parameters).await.ok()?;
            pods.items.into_iter().next()
        })
        .await
    }

    /// Waits until there is something.
    pub async fn eventually<T, F: Future<Output = Option<T>>>(&self, what: &str, mut ask: impl FnMut() -> F) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            assert!(Instant::now() < deadline, "never: {what}");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// What a kubelet would say about a pod.
    pub async fn set_pod_status(&self, pod: &Pod, status: Value) {
        let patch = json!({ "status": status });
        let patched = self.pods().patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.expect("the pod's status");
    }

    /// Every container has begun.
    pub async fn start_pod(&self, pod: &Pod) {
        let running = |name: &str| {
            json!({ "name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "running": { "startedAt": "2026-11-16T00:00:00Z" } } })
        };
        let checked = json!({ "name": "check-network", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "terminated": { "exitCode": 0, "message": "enforced\n" } } });
        let status = json!({ "phase": "Running", "initContainerStatuses": [checked],
            "containerStatuses": [running("agent"), running("ipc-bridge")] });
        self.set_pod_status(pod, status).await;
    }

    /// Every container has ended.
    pub async fn end_pod(&self, pod: &Pod, code: i32) {
        let ended = |name: &str| {
            json!({ "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": code } } })
        };
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let status = json!({ "phase": phase, "containerStatuses": [ended("agent"), ended("ipc-bridge")] });
        self.set_pod_status(pod, status).await;
    }

    /// Every container that the pod has, of whatever names, has ended well.
    pub async fn complete_pod(&self, pod: &Pod) {
        let ended = |container: &k8s_openapi::api::core::v1::Container| {
            json!({ "name": container.name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 0 } } })
        };
        let spec = pod.spec.as_ref().expect("a spec");
        let before: Vec<_> = spec.init_containers.iter().flatten().map(ended).collect();
        let containers: Vec<_> = spec.containers.iter().map(ended).collect();
        let status = json!({ "phase": "Succeeded", "initContainerStatuses": before,
            "containerStatuses": containers });
        self.set_pod_status(pod, status).await;
    }

    /// What the gateway would write when a run has ended.
    pub async fn report(&self, name: &str, report: Value) {
        let mut report = report;
        // Long ago, unless the test has another time.
        if report["reportedAt"].is_null() {
            report["reportedAt"] = json!("2026-11-16T00:00:00Z");
        }
        let patch = json!({ "status": { "report": report } });
        let patched = self.runs().patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.expect("the report");
    }

    /// Whether the hooks after the run have not been let begin.
    pub async fn hooks_are_suspended(&self, run: &AgentRun) -> bool {
        let status = run.status.as_ref().expect("a status");
        let name = status.post_run_job_name.as_ref().expect("hooks").as_str();
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), self.namespace.name());
        let job = jobs.get(name).await.expect("the Job of the hooks");
        job.spec.and_then(|it| it.suspend) == Some(true)
    }

    /// Changes a pod.
    pub async fn patch_pod(&self, name: &str, patch: Value) {
        let parameters = PatchParams::default();
        let _ = self.pods().patch(name, &parameters, &Patch::Merge(&patch)).await;
    }

    /// Removes a pod as a kubelet does whose containers have ended.
    pub async fn force_delete_pod(&self, pod: &Pod) {
        self.eventually("the pod is told to go", || async {
            let found = self.pods().get_opt(&pod.name_any()).await.ok()?;
            let going = found.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
            going.then_some(())
        })
        .await;
        let now = DeleteParams::default().grace_period(0);
        let _ = self.pods().delete(&pod.name_any(), &now).await;
    }

    /// The service account of a run's skill.
    pub fn account(run: &AgentRun) -> String {
        let mut grants = run.status.iter().flat_map(|it| &it.grants);
        let account = grants.find(|it| it.kind == "ServiceAccount" && it.skill.is_some());
        account.expect("an account").name.clone()
    }

    /// Whether a service account of the test's namespace may do something in it.
    pub async fn has_access(&self, account: &str, verb: &str, resource: &str) -> bool {
        let namespace = self.namespace.name();
        let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
            "spec": { "user": format!("system:serviceaccount:{namespace}:{account}"),
                "groups": ["system:serviceaccounts"],
                "resourceAttributes": { "namespace": namespace, "verb": verb, "resource": resource } } });
        let review: SubjectAccessReview = serde_json::from_value(review).expect("a review");
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        answer.expect("an answer").status.is_some_and(|it| it.allowed)
    }

    /// Waits until the API server knows that an account may do something.
    pub async fn wait_for_access(&self, account: &str, verb: &str, resource: &str) {
        let may = || async { self.has_access(account, verb, resource).await.then_some(()) };
        self.eventually(&format!("{account} may {verb} {resource}"), may).await;
    }

    /// Asserts that no binding of a run is there, and waits until the API server knows that its account may not do something: it learns
    /// of a binding that is gone a moment later.
    pub async fn assert_access_lost(&self, run: &AgentRun, account: &str, verb: &str, resource: &str) {
        let left = self.remaining_objects(run).await;
        assert!(!left.iter().any(|it| it.contains("rolebinding")), "{left:?}");
        let may_not = || async { (!self.has_access(account, verb, resource).await).then_some(()) };
        self.eventually(&format!("{account} may not {verb} {resource}"), may_not).await;
    }

    /// What there is of a run, by kind and name, without its pods and what stays.
    pub async fn remaining_objects(&self, run: &AgentRun) -> Vec<String> {
        let uid = run.uid().unwrap_or_default();
        let kubectl = self.namespace.kubectl().clone();
        let listing = tokio::task::spawn_blocking(move || {
            let kinds = "jobs,pods,secrets,configmaps,serviceaccounts,roles,rolebindings,clusterroles,\
                clusterrolebindings,networkpolicies,persistentvolumeclaims";
            let selector = format!("--selector=sympozium.ai/run-uid={uid}");
            let words = ["get", kinds, &selector, "--ignore-not-found", "-o", "name"];
            kubectl.run(&words).expect("a listing")
        });
        let listing = listing.await.expect("a listing");
        listing.lines().map(str::to_owned).collect()
    }

    /// The conditions of a run, by type.
    pub fn conditions(run: &AgentRun) -> BTreeMap<String, (String, String)> {
        let conditions = run.status.iter().flat_map(|it| &it.conditions);
        conditions.map(|it| (it.type_.clone(), (it.status.clone(), it.reason.clone()))).collect()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if let Some((_, working)) = self.controller.take() {
            working.abort();
        }
    }
}

/// Whether the status of a run has a pod.
pub fn has_pod(run: &AgentRun) -> bool {
    run.status.as_ref().is_some_and(|status| status.pod_uid.is_some())
}

/// An agent, a pack with rights, and a run of it.
pub fn objects(run: &str) -> Vec<Value> {
    vec![
        json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": { "name": "helper" },
            "spec": { "agents": { "default": { "model": "m" } }, "skills": [{ "skillPackRef": "reader" }],
                "authRefs": [{ "provider": "openai", "secret": "key" }] } }),
        json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": "SkillPack", "metadata": { "name": "reader" },
            "spec": { "skills": [{ "name": "read", "content": "Read." }],
                "sidecar": { "image": "example.org/reader:1",
                    "rbac": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] }],
                    "clusterRBAC": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["list"] }] } } }),
        a_run(run),
    ]
}

/// A run of that agent.
pub fn a_run(name: &str) -> Value {
    json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": { "name": name },
        "spec": { "agentRef": "helper", "task": "Look around." } })
}
