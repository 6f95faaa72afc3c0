//! Controller and gateway: how they are started, reached and held in.

use serde_json::{Value, json};
use sympozium_api::installation::{
    CANARY_PORT, CONTROLLER, GATEWAY, GATEWAY_KEYS_SECRET, GATEWAY_PORT, GATEWAY_TLS_SECRET, KEYS, NAME_LABEL,
    PROBE_PORT,
};
use sympozium_api::labels::{PART_OF, ROLE};

use super::{Document, PRODUCT, in_system};

/// What comes before the names of our images.
const REGISTRY: &str = "ghcr.io/sympozium-ai/sympozium";
/// Of each program: one works, or serves while the other is replaced.
const REPLICAS: u32 = 2;
/// Everything runs as this user, also in runs.
const USER: u32 = 1000;
/// The value of [`ROLE`] on pods of runs.
const AGENT_ROLE: &str = "agent";
/// Seconds that a program has to end what is under way.
const GRACE: u32 = 30;

/// Where the gateway's files are mounted.
const TLS_DIRECTORY: &str = "/run/sympozium/tls";
const KEYS_DIRECTORY: &str = "/run/sympozium/keys";

pub fn gateway() -> Vec<Document> {
    let arguments = [
        "serve".to_owned(),
        "--kubernetes".to_owned(),
        format!("--listen=0.0.0.0:{GATEWAY_PORT}"),
        format!("--canary={CANARY_PORT}"),
        format!("--probe-listen=0.0.0.0:{PROBE_PORT}"),
        format!("--tls-cert={TLS_DIRECTORY}/tls.crt"),
        format!("--tls-key={TLS_DIRECTORY}/tls.key"),
        // Programs of skills reach their hosts by it.
        "--plain-proxy".to_owned(),
        format!("--key-file={KEYS_DIRECTORY}/{KEYS}"),
    ];
    let mut container = container(GATEWAY, &arguments, &resources("100m", "64Mi", "256Mi"));
    container["ports"] = json!([
        { "name": "runs", "containerPort": GATEWAY_PORT },
        { "name": "canary", "containerPort": CANARY_PORT },
        { "name": "probes", "containerPort": PROBE_PORT },
    ]);
    container["volumeMounts"] = json!([
        { "name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": true },
        { "name": "keys", "mountPath": KEYS_DIRECTORY, "readOnly": true },
    ]);
    let volume =
        |name: &str, secret: &str| json!({ "name": name, "secret": { "secretName": secret, "defaultMode": 0o440 } });
    let volumes = json!([volume("tls", GATEWAY_TLS_SECRET), volume("keys", GATEWAY_KEYS_SECRET),]);
    vec![
        Document::new(
            "The address that runs are given. A run's reports find the replica that knows it, as long as it lives; any other can\n\
             take over.",
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": in_system(GATEWAY),
                "spec": {
                    "selector": { (NAME_LABEL): GATEWAY },
                    "sessionAffinity": "ClientIP",
                    "ports": [
                        { "name": "runs", "port": GATEWAY_PORT, "targetPort": "runs" },
                        { "name": "canary", "port": CANARY_PORT, "targetPort": "canary" },
                    ],
                },
            }),
        ),
        Document::new(
            "The pods wait for their Secrets, which the controller makes.",
            deployment(
                GATEWAY,
                &container,
                &volumes,
                // A run's connections are cut with the pod that they lead to, so no pod ends before its successor serves.
                &json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } }),
            ),
        ),
        Document::new(
            "Without a gateway no run can do anything.",
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": in_system(GATEWAY),
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { (NAME_LABEL): GATEWAY } } },
            }),
        ),
        Document::new(
            "Only pods of runs reach the gateway.\n\
             \n\
             The canary port is open to them here on purpose. That they cannot reach it must come from their own policy: a run\n\
             takes the canary's silence as the proof that its policy is enforced, and a policy at this end would be silent too.\n\
             The gateway itself may reach everything, because it is the way out; what a run may reach is in the run's plan.",
            network_policy(
                GATEWAY,
                &json!([
                    {
                        "from": [{
                            "namespaceSelector": {},
                            "podSelector": { "matchLabels": { (ROLE): AGENT_ROLE } },
                        }],
                        "ports": [port(GATEWAY_PORT), port(CANARY_PORT)],
                    },
                    { "ports": [port(PROBE_PORT)] },
                ]),
            ),
        ),
    ]
}

pub fn controller() -> Vec<Document> {
    let arguments = [
        format!("--agent-image={}", image("agent-runner")),
        format!("--bridge-image={}", image("ipc-bridge")),
        format!("--sidecar-image={}", image("skill-sidecar")),
        format!("--probe-listen=0.0.0.0:{PROBE_PORT}"),
    ];
    let mut container = container(CONTROLLER, &arguments, &resources("100m", "64Mi", "512Mi"));
    container["ports"] = json!([{ "name": "probes", "containerPort": PROBE_PORT }]);
    vec![
        Document::new(
            "Two, of which one works: the other takes the Lease over when it is released or runs out.",
            deployment(CONTROLLER, &container, &json!([]), &json!({ "type": "RollingUpdate" })),
        ),
        Document::new(
            "Nothing has to reach the controller but what asks for its health and numbers. It reaches the API server, whose address\n\
             no policy can name.",
            network_policy(CONTROLLER, &json!([{ "ports": [port(PROBE_PORT)] }])),
        ),
    ]
}

fn image(name: &str) -> String {
    format!("{REGISTRY}/{name}:{}", env!("CARGO_PKG_VERSION"))
}

fn resources(cpu: &str, memory: &str, most_memory: &str) -> Value {
    // No limit of the processor: it would delay the end of runs when there are many.
    json!({ "requests": { "cpu": cpu, "memory": memory }, "limits": { "memory": most_memory } })
}

fn container(name: &str, arguments: &[String], resources: &Value) -> Value {
    let probe = |path: &str, period: u32, failures: u32| {
        json!({
            "httpGet": { "path": path, "port": "probes" },
            "periodSeconds": period, "timeoutSeconds": 3, "failureThreshold": failures,
        })
    };
    json!({
        "name": name,
        "image": image(name),
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "resources": resources,
        "startupProbe": probe("/healthz", 1, 60),
        "livenessProbe": probe("/healthz", 10, 3),
        "readinessProbe": probe("/readyz", 2, 3),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
    })
}

fn deployment(name: &str, container: &Value, volumes: &Value, strategy: &Value) -> Value {
    let labels = json!({ (NAME_LABEL): name, (PART_OF): PRODUCT });
    let mut metadata = in_system(name);
    metadata["labels"] = labels.clone();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": REPLICAS,
            "selector": { "matchLabels": { (NAME_LABEL): name } },
            "strategy": strategy,
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": name,
                    // Variables about Services begin like those that our programs read.
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": GRACE,
                    "nodeSelector": { "kubernetes.io/os": "linux" },
                    "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": { "matchLabels": { (NAME_LABEL): name } },
                        },
                    }] } },
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    })
}

fn port(number: u16) -> Value {
    json!({ "protocol": "TCP", "port": number })
}

fn network_policy(name: &str, ingress: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": in_system(name),
        "spec": {
            "podSelector": { "matchLabels": { (NAME_LABEL): name } },
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    })
}
