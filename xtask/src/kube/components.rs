//! The programs of a cluster and their arguments: pure functions from a plan.

use anyhow::Result;

use super::config::{API_PORT, NODE, STATE};
use super::network::{PODS, SERVICES};
use super::state::Plan;

/// A program that runs as long as the cluster.
#[derive(Debug)]
pub struct Component {
    /// Also the name of its log.
    pub name: &'static str,
    pub program: String,
    pub arguments: Vec<String>,
}

fn component(name: &'static str, folder: &str, arguments: &[&str]) -> Component {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Component { name, program: format!("{folder}/{name}"), arguments }
}

fn kubeconfig(component: &str) -> String {
    format!("--kubeconfig={STATE}/config/{component}.kubeconfig")
}

pub fn etcd() -> Component {
    let data = format!("--data-dir={STATE}/etcd");
    let arguments = [
        data.as_str(),
        // The data ends with the cluster: waiting for the disk would buy nothing.
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--logger=zap",
        "--log-level=warn",
    ];
    Component { program: "etcd".to_owned(), ..component("etcd", "", &arguments) }
}

pub fn api_server(plan: &Plan) -> Result<Component> {
    let pki = |flag: &str, file: &str| format!("--{flag}={STATE}/pki/{file}");
    let mut kube = component(
        "kube-apiserver",
        &plan.part("kubernetes")?,
        &[
            "--etcd-servers=http://127.0.0.1:2379",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            // A call is in the log before its caller goes on, so that a test can read it right after.
            "--audit-log-mode=blocking",
            // One file for the life of the cluster: tests remember places in it. In megabytes.
            "--audit-log-maxsize=100000",
            "--profiling=false",
        ],
    );
    kube.arguments.extend([
        format!("--secure-port={API_PORT}"),
        format!("--advertise-address={}", plan.link.cluster()),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--audit-policy-file={STATE}/config/audit-policy.json"),
        format!("--audit-log-path={STATE}/audit/audit.log"),
        pki("client-ca-file", "ca.crt"),
        pki("tls-cert-file", "kube-apiserver.crt"),
        pki("tls-private-key-file", "kube-apiserver.key"),
        pki("kubelet-client-certificate", "kubelet-client.crt"),
        pki("kubelet-client-key", "kubelet-client.key"),
        pki("service-account-key-file", "service-account.pub"),
        pki("service-account-signing-key-file", "service-account.key"),
    ]);
    Ok(kube)
}

pub fn controller_manager(plan: &Plan) -> Result<Component> {
    let mut kube = component(
        "kube-controller-manager",
        &plan.part("kubernetes")?,
        &[
            "--use-service-account-credentials",
            "--allocate-node-cidrs",
            "--leader-elect=false",
            "--profiling=false",
            // Its default pace is that of a shared cluster; at it, forty controllers take seconds to start.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            // The default is a folder below /usr, which is the machine's.
            "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
        ],
    );
    kube.arguments.extend([
        kubeconfig("kube-controller-manager"),
        format!("--root-ca-file={STATE}/pki/ca.crt"),
        format!("--service-account-private-key-file={STATE}/pki/service-account.key"),
        format!("--cluster-cidr={PODS}"),
        format!("--service-cluster-ip-range={SERVICES}"),
    ]);
    Ok(kube)
}

pub fn scheduler(plan: &Plan) -> Result<Component> {
    let arguments = [kubeconfig("kube-scheduler")];
    let mut kube = component("kube-scheduler", &plan.part("kubernetes")?, &["--leader-elect=false"]);
    kube.arguments.extend(arguments);
    Ok(kube)
}

pub fn kubelet(plan: &Plan) -> Result<Component> {
    let mut kube = component("kubelet", &plan.part("kubernetes")?, &["--cert-dir=/var/lib/kubelet/pki"]);
    kube.arguments.extend([
        kubeconfig("kubelet"),
        format!("--config={STATE}/config/kubelet.json"),
        format!("--hostname-override={NODE}"),
        format!("--node-ip={}", plan.link.cluster()),
        // The default of 1 removes the log of a sidecar's first instance when the kubelet has started a second one at the end of its pod.
        // There is no field for it in the configuration file.
        "--maximum-dead-containers-per-container=5".to_owned(),
    ]);
    Ok(kube)
}

pub fn kube_proxy(plan: &Plan) -> Result<Component> {
    let config = format!("--config={STATE}/config/kube-proxy.json");
    Ok(component("kube-proxy", &plan.part("kubernetes")?, &[&config]))
}

pub fn containerd(plan: &Plan) -> Result<Component> {
    let config = format!("{STATE}/config/containerd.toml");
    Ok(component("containerd", &plan.part("containerd")?, &["--config", &config]))
}

pub fn network_policies(plan: &Plan) -> Result<Component> {
    let arguments = [
        &kubeconfig("kube-network-policies"),
        "--disable-nri",
        // A test of a policy must not pass because nothing decided.
        "--fail-open=false",
        "--hostname-override",
        NODE,
    ];
    Ok(component("kube-network-policies", &plan.part("network-policies")?, &arguments))
}

pub fn coredns(plan: &Plan) -> Result<Component> {
    let config = format!("{STATE}/config/Corefile");
    Ok(component("coredns", &plan.part("coredns")?, &["-conf", &config]))
}

pub fn agent_sandbox(plan: &Plan) -> Result<Component> {
    let arguments = [
        &kubeconfig("agent-sandbox-controller"),
        "--extensions",
        "--leader-elect=false",
        // Its default ports are those of other things in here.
        "--metrics-bind-address=127.0.0.1:18080",
        "--health-probe-bind-address=127.0.0.1:18081",
    ];
    Ok(component("agent-sandbox-controller", &plan.part("agent-sandbox")?, &arguments))
}

/// Who the components are to the API server: (name, user, group).
pub const IDENTITIES: [(&str, &str, Option<&str>); 8] = [
    ("admin", "admin", Some("system:masters")),
    ("kube-controller-manager", "system:kube-controller-manager", None),
    ("kube-scheduler", "system:kube-scheduler", None),
    ("kubelet", "system:node:node1", Some("system:nodes")),
    ("kube-proxy", "system:kube-proxy", None),
    ("kube-network-policies", "kube-network-policies", Some("system:masters")),
    ("coredns", "coredns", Some("system:masters")),
    ("agent-sandbox-controller", "agent-sandbox-controller", Some("system:masters")),
];
