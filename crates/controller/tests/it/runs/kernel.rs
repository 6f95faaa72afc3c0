//! A kernel of the run's own: by the handler that the cluster's RuntimeClass has, whatever the class is called.

use std::time::Instant;

use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use sympozium_api::AgentRun;

use super::harness::{Harness, TIMEOUT};

/// What a run in this class is told: it is never made, because the cluster has no agent-sandbox.
async fn told(world: &Harness, name: &str, class: &str) -> String {
    let run = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": { "name": name },
        "spec": { "agentRef": "guarded", "task": "Look.", "agentSandbox": { "enabled": true, "runtimeClass": class } },
    });
    world.apply(&[run]).await;
    let has_error = |it: &AgentRun| it.status.as_ref().is_some_and(|it| it.error.is_some());
    let run = world.wait_until_run(name, "told why not", has_error).await;
    let deleted = world.runs().delete(name, &DeleteParams::default()).await;
    deleted.expect("it is deleted");
    run.status.and_then(|it| it.error).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_class_gives_the_kernel_of_its_handler() {
    let Some(world) = Harness::start().await else {
        return;
    };
    let classes: Api<RuntimeClass> = Api::all(world.client.clone());
    let named = |start: &str| format!("{start}-{}", world.namespace.name());
    let (pretended, real) = (named("kata"), named("plain"));
    for (name, handler) in [(&pretended, "runc"), (&real, "runsc")] {
        let class = json!({ "metadata": { "name": name }, "handler": handler });
        let class: RuntimeClass = serde_json::from_value(class).expect("a class");
        let made = classes.create(&PostParams::default(), &class).await;
        made.expect("it is created");
    }
    world
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
        let said = told(&world, &format!("real-{number}"), &real).await;
        if said.contains("agent-sandbox, which this cluster does not have") {
            break;
        }
        assert!(Instant::now() < deadline, "never admitted: {said}");
        number += 1;
    }
    let said = told(&world, "pretended", &pretended).await;
    assert!(said.contains("denied[isolation-kernel]"), "{said}");
    assert!(said.contains("`runc`"), "{said}");
    let said = told(&world, "absent", &named("gvisor")).await;
    assert!(said.contains("its name proves nothing"), "{said}");
    for name in [&pretended, &real] {
        let _ = classes.delete(name, &DeleteParams::default()).await;
    }
}
