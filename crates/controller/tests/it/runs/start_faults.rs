//! What the platform has against a run, in plain words.

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;

use super::harness::{Harness, a_run, has_pod, objects};

/// The status of a container that waits.
fn waiting(name: &str, reason: &str, message: &str, restarts: i32) -> Value {
    json!({ "name": name, "image": "example.org/reader:1", "imageID": "", "ready": false, "restartCount": restarts,
        "state": { "waiting": { "reason": reason, "message": message } },
        "lastState": { "terminated": { "exitCode": 3, "message": "no such thing\n" } } })
}

fn started(run: &AgentRun) -> Option<(String, String)> {
    Harness::conditions(run).get("Started").cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_and_a_crash_loop() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("pull")).await;
    let run = harness.wait_until_run("pull", "granted", |it| Harness::conditions(it).contains_key("Granted")).await;
    let pod = harness.pod(&run, "agent-run").await;
    let status = waiting("skill-reader", "ImagePullBackOff", "Back-off pulling image", 0);
    harness.set_pod_status(&pod, json!({ "phase": "Pending", "initContainerStatuses": [status] })).await;
    let said = ("False".to_owned(), "ImagePull".to_owned());
    harness.wait_until_run("pull", "hindered", |it| started(it).as_ref() == Some(&said)).await;

    let status = waiting("skill-reader", "CrashLoopBackOff", "back-off", 4);
    harness.set_pod_status(&pod, json!({ "initContainerStatuses": [status] })).await;
    harness.wait_until_run("pull", "without rights", without_rights).await;
    harness.force_delete_pod(&pod).await;
    let run = harness.wait_until_run("pull", "failed", failed).await;
    assert_eq!(
        run.status.and_then(|it| it.error).as_deref(),
        Some("container `skill-reader` has crashed 4 times: exit code 3: no such thing")
    );
}

/// What a kubelet says of an agent that took more memory than it has, and of a pod whose node has none left.
#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_and_evicted() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let ended = |name: &str, state: Value| json!({ "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    let killed = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
    let running = json!({ "running": { "startedAt": "2026-11-16T00:00:00Z" } });
    // The agent alone has ended: the bridge says that it left without a word, and only the kubelet knows why.
    let too_much = json!({ "phase": "Running",
        "containerStatuses": [ended("agent", killed), ended("ipc-bridge", running)] });
    let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
        "containerStatuses": [] });
    harness.apply(&objects("greedy")[..2]).await;
    let crashed = json!({ "finished": true, "ending": "crashed", "reports": 1 });
    for (name, says, report, expected) in [
        ("greedy", too_much, Some(crashed), "container `agent` failed: it ran out of memory"),
        ("evicted", evicted, None, "the run's pod was evicted from its node: The node was low on resource: memory."),
    ] {
        harness.apply(&[a_run(name)]).await;
        let run = harness.wait_until_run(name, "a pod", has_pod).await;
        let account = Harness::account(&run);
        harness.wait_for_access(&account, "list", "pods").await;
        let pod = harness.pod(&run, "agent-run").await;
        harness.start_pod(&pod).await;
        let runs = |run: &AgentRun| run.status.as_ref().and_then(|status| status.phase) == Some(Phase::Running);
        harness.wait_until_run(name, "running", runs).await;
        // The bridge is faster than the kubelet. Rights do not wait for either.
        if let Some(mut report) = report {
            // Not long ago, however slow the machine is: the controller waits for the kubelet's word for seconds only.
            let later = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_mins(10);
            report["reportedAt"] = json!(later);
            harness.report(name, report).await;
            let taken = || async { (!harness.has_access(&account, "list", "pods").await).then_some(()) };
            harness.eventually("rights are taken", taken).await;
            let run = harness.runs().get(name).await.expect("it is there");
            assert!(runs(&run), "nobody has said yet why: {run:#?}");
        }
        harness.set_pod_status(&pod, says).await;
        let run = harness.wait_until_run(name, "without rights", without_rights).await;
        harness.assert_access_lost(&run, &account, "list", "pods").await;
        harness.force_delete_pod(&pod).await;
        let run = harness.wait_until_run(name, "failed", failed).await;
        assert_eq!(run.status.and_then(|it| it.error).as_deref(), Some(expected));
    }
}

fn without_rights(run: &AgentRun) -> bool {
    Harness::conditions(run).get("Granted").is_some_and(|(status, _)| status == "False")
}

fn failed(run: &AgentRun) -> bool {
    run.status.as_ref().and_then(|it| it.phase) == Some(Phase::Failed)
}

/// A run that may use the host's network by our policies, where the namespace's own level does not let it.
#[tokio::test(flavor = "multi_thread")]
async fn pod_security() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let kubectl = harness.namespace.kubectl().clone();
    let level = "pod-security.kubernetes.io/enforce=baseline";
    let words = ["label", "namespace", harness.namespace.name(), level, "--overwrite"];
    kubectl.run(&words).expect("a level");
    let own = harness.namespace.name();
    let allowed = json!({ "packs": [format!("{own}/reader")], "namespaces": [own], "hostNetwork": true });
    let allowed = json!({ "spec": { "hostAccessPolicy": allowed } });
    harness.patch_floor(&harness.floor(), allowed.clone()).await;
    let mut objects = objects("bold");
    objects[0]["spec"]["policyRef"] = json!("bold");
    objects[1]["spec"]["sidecar"]["hostAccess"] = json!({ "enabled": true, "hostNetwork": true });
    let policy = json!({ "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy",
        "metadata": { "name": "bold" }, "spec": allowed["spec"] });
    objects.insert(0, policy);
    harness.apply(&objects).await;
    let revoked = |run: &AgentRun| {
        let conditions = Harness::conditions(run);
        failed(run) && conditions.get("Revoked").is_some_and(|it| it.0 == "True")
    };
    let run = harness.wait_until_run("bold", "failed and revoked", revoked).await;
    let error = run.status.as_ref().and_then(|it| it.error.clone());
    let error = error.unwrap_or_default();
    assert!(
        error.starts_with("the Pod Security level of the namespace forbids the run's pod")
            && error.contains("hostNetwork"),
        "{error}"
    );
    let left = harness.remaining_objects(&run).await;
    assert!(left.iter().all(|it| it.ends_with("-plan")), "only the plan stays: {left:?}");
}

/// Nobody on a node that is lost can take rights back; the API server can.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness.apply(&objects("far")).await;
    let run = harness.wait_until_run("far", "granted", |it| Harness::conditions(it).contains_key("Granted")).await;
    let pod = harness.pod(&run, "agent-run").await;
    let account = Harness::account(&run);
    harness.wait_for_access(&account, "list", "pods").await;
    // A node that sends no heartbeat counts as lost after a while: nothing is waited for from here on.
    let node = Node::start(&harness).await;
    node.takes(&pod).await;
    harness.start_pod(&pod).await;

    node.is("Unknown").await;
    let run = harness.wait_until_run("far", "without rights", without_rights).await;
    harness.assert_access_lost(&run, &account, "list", "pods").await;
    harness.force_delete_pod(&pod).await;
    let run = harness.wait_until_run("far", "failed", failed).await;
    let said = run.status.and_then(|it| it.error).unwrap_or_default();
    let name = &node.name;
    assert_eq!(said, format!("node `{name}` is not ready; the permissions of the run are revoked"));
    node.remove().await;
}

/// A node that there is by name alone.
struct Node {
    name: String,
    harness: Client,
    namespace: String,
}

impl Node {
    async fn start(harness: &Harness) -> Self {
        let node = Self {
            name: format!("node-{}", harness.namespace.name()),
            harness: harness.client.clone(),
            namespace: harness.namespace.name().to_owned(),
        };
        let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node.name },
            "spec": { "unschedulable": true } });
        let object = serde_json::from_value(object).expect("a node");
        let made = node.api().create(&PostParams::default(), &object).await;
        made.expect("a node");
        node.is("True").await;
        node
    }

    fn api(&self) -> Api<k8s_openapi::api::core::v1::Node> {
        Api::all(self.harness.clone())
    }

    /// Says whether it is ready.
    async fn is(&self, ready: &str) {
        let now = jiff::Timestamp::now().to_string();
        let condition = json!({ "type": "Ready", "status": ready, "reason": "Said", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now });
        let patch = json!({ "status": { "conditions": [condition] } });
        let patch = Patch::Strategic(&patch);
        let parameters = PatchParams::default();
        let said = self.api().patch_status(&self.name, &parameters, &patch).await;
        said.expect("its status");
    }

    /// Has a pod placed on it, as the scheduler does.
    async fn takes(&self, pod: &Pod) {
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod.name_any() },
            "target": { "apiVersion": "v1", "kind": "Node", "name": self.name } });
        let pods: Api<Pod> = Api::namespaced(self.harness.clone(), &self.namespace);
        let bound: Result<k8s_openapi::apimachinery::pkg::apis::meta::v1::Status, _> =
            pods.create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding).await;
        bound.expect("it is placed");
    }

    async fn remove(self) {
        let parameters = DeleteParams::default();
        let removed = self.api().delete(&self.name, &parameters).await;
        removed.expect("it is removed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    harness
        .apply(&[json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" },
            "spec": { "hard": { "pods": "0" } } })])
        .await;
    // It counts once the controller manager has looked at it.
    let quotas: Api<ResourceQuota> = Api::namespaced(harness.client.clone(), harness.namespace.name());
    harness
        .eventually("the quota is known", || async {
            let quota = quotas.get("none").await.ok()?;
            quota.status?.hard?.contains_key("pods").then_some(())
        })
        .await;
    harness.apply(&objects("much")).await;
    let said = ("False".to_owned(), "Quota".to_owned());
    let run = harness.wait_until_run("much", "hindered", |it| started(it).as_ref() == Some(&said)).await;
    let conditions = run.status.map(|it| it.conditions).unwrap_or_default();
    let message =
        conditions.iter().find(|condition| condition.type_ == "Started").map(|condition| condition.message.clone());
    let message = message.unwrap_or_default();
    assert!(message.starts_with("the ResourceQuota of the namespace is exhausted"), "{message}");
}

/// Somebody's webhook is down, and no binding can be made: the run says so, and does not wait for ever with half of its rights.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_does_not_answer() {
    let Some(mut harness) = Harness::start().await else {
        return;
    };
    harness.restart(|it| it.resolve_timeout = std::time::Duration::from_secs(15)).await;
    let namespace = harness.namespace.name().to_owned();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": namespace },
        "webhooks": [{ "name": "down.example.org", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 1, "clientConfig": { "url": "https://127.0.0.1:1/" },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "rules": [{ "apiGroups": ["rbac.authorization.k8s.io"], "apiVersions": ["v1"],
                "resources": ["rolebindings"], "operations": ["CREATE"] }] }],
    });
    let kubectl = harness.namespace.kubectl().clone();
    let applied = kubectl.feed(&["apply", "-f", "-"], &webhook).expect("kubectl starts");
    assert!(applied.success, "{}", applied.stderr);
    // The API server asks it from a moment on which nobody is told.
    let probe = ["create", "rolebinding", "probe", "--clusterrole=view", "--user=nobody", "--dry-run=server"];
    harness
        .eventually("the webhook is asked", || async {
            let refused = kubectl.attempt(&probe).ok()?;
            refused.stderr.contains("down.example.org").then_some(())
        })
        .await;
    harness.apply(&objects("stuck")).await;
    let said = ("False".to_owned(), "NotMade".to_owned());
    harness.wait_until_run("stuck", "told", |it| started(it).as_ref() == Some(&said) || failed(it)).await;
    let run = harness.wait_until_run("stuck", "failed", failed).await;
    let error = run.status.as_ref().and_then(|it| it.error.clone());
    let error = error.unwrap_or_default();
    assert!(
        error.starts_with("the objects of the run cannot be created: cannot create RoleBinding")
            && error.contains("down.example.org"),
        "{error}"
    );
    harness
        .eventually("nothing but the plan is left", || async {
            let left = harness.remaining_objects(&run).await;
            left.iter().all(|it| it.ends_with("-plan")).then_some(())
        })
        .await;
    let words = ["delete", "validatingwebhookconfiguration", &namespace];
    kubectl.run(&words).expect("it is removed");
}

/// Who wrote an agent, nobody knows: where the floor does not trust its namespace, its hooks have no rights.
#[tokio::test(flavor = "multi_thread")]
async fn hooks_of_an_agent_of_an_unknown_author() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let nobody = json!({ "spec": { "rbacPolicy": { "clusterRBACNamespaces": [] } } });
    harness.patch_floor(&harness.floor(), nobody).await;
    let mut objects = objects("hooked");
    objects.remove(1);
    objects[0]["spec"]["skills"] = json!([]);
    objects[0]["spec"]["agents"]["default"]["lifecycle"] = json!({
        "preRun": [{ "name": "first", "image": "example.org/first:1" }],
        "rbac": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }],
    });
    harness.apply(&objects).await;
    let run = harness.wait_until_run("hooked", "failed", failed).await;
    let error = run.status.as_ref().and_then(|it| it.error.clone());
    let error = error.unwrap_or_default();
    assert!(
        error.contains("denied[rbac-author]") && error.contains("the agent's author may not do `get configmaps`"),
        "{error}"
    );
    assert_eq!(harness.remaining_objects(&run).await, Vec::<String>::new());
}

/// The floor lists the namespace and excepts a write. That write is for packs of the system namespace: neither a run's own hook
/// nor a pack of the namespace gets it, and reading goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_floor_excepts_is_not_for_users_of_a_listed_namespace() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let write = json!({ "apiGroups": [""], "resources": ["services"], "verbs": ["create"] });
    let floor = json!({ "spec": { "rbacPolicy": {
        "clusterRBACNamespaces": [harness.namespace.name()], "exceptions": [write],
    } } });
    harness.patch_floor(&harness.floor(), floor).await;
    let mut objects = objects("hooked");
    objects[2]["spec"]["lifecycle"] = json!({
        "preRun": [{ "name": "first", "image": "example.org/first:1" }], "rbac": [write],
    });
    let mut writer = objects[1].clone();
    writer["metadata"]["name"] = json!("writer");
    writer["spec"]["sidecar"]["rbac"] = json!([write]);
    let mut writes = a_run("writes");
    writes["spec"]["skills"] = json!([{ "skillPackRef": "writer" }]);
    objects.extend([writer, writes, a_run("reads")]);
    harness.apply(&objects).await;
    for (run, author) in [("hooked", "the run's author"), ("writes", "the pack's author")] {
        let run = harness.wait_until_run(run, "failed", failed).await;
        let error = run.status.as_ref().and_then(|it| it.error.clone());
        let error = error.unwrap_or_default();
        let expected = format!("{author} may not do `create services`");
        assert!(error.contains("denied[rbac-author]") && error.contains(&expected), "{error}");
        assert_eq!(harness.remaining_objects(&run).await, Vec::<String>::new());
    }
    let is_granted = |run: &AgentRun| Harness::conditions(run).contains_key("Granted");
    harness.wait_until_run("reads", "granted", is_granted).await;
}
