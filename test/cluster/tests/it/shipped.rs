//! What is shipped, as it is shipped: `config/install` with no change but the names of images, in a cluster of its own. And a run
//! against its provider's own name, with no address of a model anywhere.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::runs::condition;
use sympozium_testkit::cluster::{Cluster, DEPLOYMENTS, Installation, Namespace, Tier, eventually};
use sympozium_testkit::model_server::{Answer, ModelServer, Settings, ToolCall};
use sympozium_testkit::static_build;

use crate::runs::seed;

const PROVIDER: &str = "api.openai.com";
const KEY: &str = "sk-test-of-the-provider";
const CONTROLLER: &str = "sympozium-controller";
/// How long a run may take on a loaded machine with two processors.
const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn what_is_shipped_serves_and_a_run_reaches_its_provider_by_name() -> Result<()> {
    let Some(cluster) = Cluster::apart(Tier::Node, "shipped")? else {
        return Ok(());
    };
    // Every Deployment is ready when this returns.
    let Some(installation) = Installation::shipped(&cluster)? else {
        return Ok(());
    };
    let system = installation.system();
    // On a busy machine a probe may be late once.
    let ready = eventually("every Deployment to be ready", PATIENCE, || {
        let deployments = system.json(&["get", "deployments"])?;
        let mut ready = Vec::new();
        for deployment in deployments["items"].as_array().into_iter().flatten() {
            let status = &deployment["status"];
            ensure!(status["readyReplicas"] == deployment["spec"]["replicas"], "{deployment}");
            let name = deployment["metadata"]["name"].as_str();
            ready.push(name.unwrap_or_default().to_owned());
        }
        Ok(Some(ready))
    })?;
    assert_eq!(ready, DEPLOYMENTS);

    let host = cluster.host_address().context("a cluster of ours")?;
    let server = Settings::new().listen((host, 0).into()).tls(PROVIDER).key(KEY).start()?;
    server.set_default(Answer::text("Asked by my own name.").usage(10, 3));
    let name = cluster.public_name(PROVIDER)?;
    let name = name.context("a cluster of ours")?;
    let namespace = installation.namespace("provider")?;
    namespace.lead("provider", 443, server.address(), Some(&name))?;
    namespace.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"},
        "stringData": {"OPENAI_API_KEY": KEY},
    }))?;
    namespace.create(&json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": {"name": "asker"},
        "spec": {"agents": {"default": {"model": "gpt-4o-mini"}}},
    }))?;

    // By default, the test's authority is not trusted.
    let run = installation.run_to_end(&namespace, &[run_of_provider("doubting")], PATIENCE)?;
    assert_eq!(run["status"]["phase"], "Failed", "{run}");
    let error = run["status"]["error"].as_str().unwrap_or_default();
    let expected = "no TLS could be agreed on with the server";
    assert!(error.contains(expected), "{run}");
    assert_eq!(server.request_count(), 0, "{run}");

    trust(&installation, server.ca_pem().context("its authority")?)?;
    let run = installation.run_to_end(&namespace, &[run_of_provider("trusting")], PATIENCE)?;
    assert_eq!(
        (&run["status"]["phase"], &run["status"]["result"]),
        (&json!("Succeeded"), &json!("Asked by my own name.")),
        "{run}"
    );
    assert_eq!(condition(&run, "NetworkEnforced")["status"], "True", "{run}");
    let requests = server.requests();
    let host = |name: &str| name == "host";
    let hosts: Vec<_> = requests
        .iter()
        .flat_map(|it| it.headers.iter().filter(|(name, _)| host(name)))
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(hosts, [PROVIDER]);
    assert_eq!(requests[0].path, "/v1/chat/completions");
    echo_as_the_guide_says(&cluster, &installation, &namespace, &server)
}

/// "Test it" of the guide for custom sidecars: its pack, its commands and its run, as they are written but for the image's name, in
/// an image with the script as it is printed there. No policy, and no address of a model.
fn echo_as_the_guide_says(
    cluster: &Cluster,
    installation: &Installation<'_>,
    namespace: &Namespace,
    server: &ModelServer,
) -> Result<()> {
    let script = static_build::workspace_root().join("crates/ipc/tests/fixtures/seed-tool-executor.sh");
    let image = seed::documented_image("sympozium.test/printed-echo-sidecar:1", &script)?;
    ensure!(cluster.import(&image)?, "the image cannot be loaded");
    let kubectl = namespace.kubectl();
    let mut pack = seed::seed("004-skillpack-echo-demo.yaml")?;
    pack["spec"]["sidecar"]["image"] = json!(image.name());
    namespace.create(&pack)?;
    namespace.create(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "my-agent-openai-key"},
        "stringData": {"OPENAI_API_KEY": KEY},
    }))?;
    namespace.create(&json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "Agent", "metadata": {"name": "my-agent"},
        "spec": {"agents": {"default": {"model": "gpt-4o-mini"}}},
    }))?;
    let patch = r#"{"spec":{"skills":[{"skillPackRef":"echo-demo"}]}}"#;
    kubectl.run(&["patch", "agent", "my-agent", "--type=merge", "-p", patch])?;
    seed::wait_until_seen(kubectl, "agent", "my-agent")?;
    let call = ToolCall::new("execute_command", &json!({ "command": seed::ECHO, "timeout": 120 }));
    server.push(Answer::tools([call]).usage(100, 20));
    server.push(Answer::text("The sidecar said: Hello from sidecar!").usage(150, 10));
    let before = server.requests().len();
    let run = seed::seed("004-agentrun-test-echo.yaml")?;
    let run = installation.run_to_end(namespace, &[run], PATIENCE)?;
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    let result = ["get", "agentrun", "test-echo", "-o", "jsonpath={.status.result}"];
    assert!(kubectl.run(&result)?.contains("Hello from sidecar!"), "{run}");
    let requests = server.requests();
    let told = seed::results(&requests[before + 1].json());
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].lines().next(), Some("Hello from sidecar!"));
    Ok(())
}

/// A run that says which provider it wants, and not where that is.
fn run_of_provider(name: &str) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "metadata": {"name": name},
        "spec": {
            "agentRef": "asker", "task": "Say how you were asked.",
            "model": {"provider": "openai", "model": "gpt-4o-mini", "authSecretRef": "key"},
        },
    })
}

/// As in `docs/install.md`, under "Your own certificate authority".
fn trust(installation: &Installation<'_>, authority: &str) -> Result<()> {
    let system = installation.system();
    system.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sympozium-certificates"},
        "data": {"certificates.pem": authority},
    }))?;
    let patch = json!({"spec": {"template": {"spec": {
        "containers": [{
            "name": CONTROLLER,
            "env": [{"name": "SYMPOZIUM_CERTIFICATES", "value": "/run/certificates/certificates.pem"}],
            "volumeMounts": [{"name": "certificates", "mountPath": "/run/certificates", "readOnly": true}],
        }],
        "volumes": [{"name": "certificates", "configMap": {"name": "sympozium-certificates"}}],
    }}}})
    .to_string();
    system.run(&["patch", "deployment", CONTROLLER, "-p", &patch])?;
    installation.wait_until_ready(CONTROLLER)?;
    // Until they are gone, one of the old ones may be at work.
    let selector = format!("--selector=app.kubernetes.io/name={CONTROLLER}");
    eventually("the former controllers to be gone", PATIENCE, || {
        let pods = system.json(&["get", "pods", &selector])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let ending = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
        Ok((!pods.iter().any(ending)).then_some(()))
    })
}
