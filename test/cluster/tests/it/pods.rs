//! Pods of the suite.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Cluster, Image, Namespace};
use sympozium_testkit::{probe, static_build};

/// How long a pod may take on a loaded two-core machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The image with the shell, `cluster-probe` and the `probe` that tries to break out; `None` (and a recorded skip) where none can be loaded.
pub fn image(cluster: &Cluster) -> Result<Option<String>> {
    let cluster_probe = static_build::program("cluster-probe")?;
    let image = Image::with_shell("sympozium.test/probe:2").with_program(&cluster_probe).with_program(probe::path());
    Ok(cluster.import(&image)?.then(|| image.name().to_owned()))
}

/// A container that the `restricted` level admits.
pub fn container(name: &str, image: &str, script: &str) -> Value {
    json!({
        "name": name, "image": image, "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

/// The pod-wide half of `restricted`, with what every pod of the suite has.
pub fn spec(containers: &[Value]) -> Value {
    json!({
        "restartPolicy": "Never",
        // So that a removed pod is gone at once; the shell as first process ignores the polite signal.
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
    })
}

pub fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}

/// Starts a pod that only waits, for commands to be run in it.
pub fn start_idle(namespace: &Namespace, name: &str, image: &str) -> Result<()> {
    namespace.create(&pod(name, spec(&[container("main", image, "sleep 3600")])))?;
    namespace.wait_for_pod(name, "Running", PATIENCE).map(drop)
}

/// Starts a pod that greets on a port, and gives its address.
pub fn start_server(namespace: &Namespace, name: &str, image: &str, port: u16) -> Result<String> {
    let script = format!("exec cluster-probe listen {port}");
    let mut server = container("main", image, &script);
    // Ready means that it listens, not only that it was started.
    server["readinessProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    namespace.create(&pod(name, spec(&[server])))?;
    let running = namespace.wait_for_pod(name, "Running", PATIENCE)?;
    Ok(running["status"]["podIP"].as_str().unwrap_or_default().to_owned())
}

/// What a pod was told when it connected, or why it could not. Not being able to ask is an error, not a "no".
pub fn connect(namespace: &Namespace, from: &str, address: &str) -> Result<Result<String, String>> {
    let ask = ["exec", from, "--", "cluster-probe", "connect", address];
    let printed = namespace.kubectl().attempt(&ask)?;
    let said = printed.stdout.trim().to_owned();
    if printed.success {
        return Ok(Ok(said));
    }
    anyhow::ensure!(said.starts_with("failed: "), "no answer from pod {from}: {}", printed.stderr);
    Ok(Err(said))
}

/// How often the kubelet may start a sidecar again that ends with its pod: at once, and ten seconds later once more,
/// where it has not seen the end of the other containers by then.
pub const MOST_RESTARTS: u64 = 2;

/// Whether a container ended with 0, from its status.
///
/// The kubelet may start a sidecar again, if it saw the sidecar's end before that of the other containers, and
/// terminate the last instance before its program runs: `runc init`, a Go program, exits with 2 then, and on a busy
/// machine it is killed (137) when its time to end is over. Or the sidecar still waits to be started again when its pod
/// ends. The end before must be 0 all the same.
pub fn ended_well(status: &Value) -> bool {
    let exit_code = |state: &str| status[state]["terminated"]["exitCode"].as_i64();
    match status["restartCount"].as_u64() {
        Some(0) => exit_code("state") == Some(0),
        Some(1..=MOST_RESTARTS) => {
            let is_terminated = matches!(exit_code("state"), Some(0 | 2 | 137));
            let is_waiting = !status["state"]["waiting"].is_null();
            exit_code("lastState") == Some(0) && (is_terminated || is_waiting)
        }
        _ => false,
    }
}
