//! A kernel of the run's own: by the handler that the cluster's RuntimeClass has, whatever the class is called.

use std::time::Instant;

use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use sympozium_api::AgentRun;

use super::harness::{Harness, TIMEOUT};

/// The error of a run in this class: it is never made, because the cluster has no agent-sandbox.
async fn error_of(harness: &Harness, name: &str, class: &str) -> String {
    let run = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": { "name": name },
        "spec": { "agentRef": "guarded", "task": "Look.", "agentSandbox": { "enabled": true, "runtimeClass": class } },
    });
    harness.apply(&[run]).await;
    let has_error = |run: &AgentRun| run.status.as_ref().is_some_and(|status| status.error.is_some());
    let run = harness.wait_until_run(name, "refused", has_error).await;
    let deleted = harness.runs().delete(name, &DeleteParams::default()).await;
    deleted.expect("it is deleted");
    run.status.and_then(|status| status.error).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_class_gives_the_kernel_of_its_handler() {
    let Some(harness) = Harness::start().await else {
        return;
    };
    let classes: Api<RuntimeClass> = Api::all(harness.client.clone());
    let named = |start: &str| format!("{start}-{}", harness.namespace.name());
    let (pretended, real) = (named("kata"), named("plain"));
    for (name, handler) in [(&pretended, "runc"), (&real, "runsc")] {
        let class = json!({ "metadata": { "name": name }, "handler": handler });
        let class: RuntimeClass = serde_json::from_value(class).expect("a class");
        let made = classes.create(&PostParams::default(), &class).await;
        made.expect("it is created");
    }
    harness
        .apply(&[
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": { "name": "own-kernel" },
                "spec": { "sandboxPolicy": { "minimumIsolation": ["kernel"] } },
            }),
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": { "name": "guarded" },
                "spec": {
                    "policyRef": "own-kernel", "agents": { "default": { "model": "gpt-4o-mini" } },
                    "authRefs": [{ "provider": "openai", "secret": "key" }],
                },
            }),
        ])
        .await;
    // Watches of different kinds do not wait for each other: the classes may be seen after a run.
    let deadline = Instant::now() + TIMEOUT;
    let mut number = 0;
    loop {
        let error = error_of(&harness, &format!("real-{number}"), &real).await;
        if error.contains("agent-sandbox, which this cluster does not have") {
            break;
        }
        assert!(Instant::now() < deadline, "never admitted: {error}");
        number += 1;
    }
    let error = error_of(&harness, "pretended", &pretended).await;
    assert!(error.contains("denied[isolation-kernel]"), "{error}");
    assert!(error.contains("`runc`"), "{error}");
    let error = error_of(&harness, "absent", &named("gvisor")).await;
    assert!(error.contains("its name proves nothing"), "{error}");
    for name in [&pretended, &real] {
        let _ = classes.delete(name, &DeleteParams::default()).await;
    }
}
