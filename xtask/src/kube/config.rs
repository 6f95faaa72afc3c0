//! The configuration files of a cluster: pure functions from a plan to text.
//!
//! Everything inside the cluster's mount namespace is below `/run/kube`, whatever the folder outside is called.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::dns::DOMAIN;
use super::network::{DNS_SERVICE, PODS};
use super::pki::Identity;

/// The cluster's state folder, as seen from inside.
pub const STATE: &str = "/run/kube/state";
/// The built parts, as seen from inside.
pub const PARTS: &str = "/run/kube/parts";
pub const NODE: &str = "node1";
pub const API_PORT: u16 = 6443;
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
pub const PAUSE_IMAGE: &str = "sympozium.test/pause:1";
/// NetworkPolicy decisions are made for packets of this queue; the number is the deciding program's own default.
pub const POLICY_QUEUE: &str = "100";

/// A kubeconfig with everything inline, so that one file is enough.
pub fn kubeconfig(server: &str, authority: &str, identity: &Identity) -> String {
    // JSON is YAML, and needs no indentation rules for certificates.
    let pem = |text: &str| Value::from(base64(text.as_bytes()));
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": server, "certificate-authority-data": pem(authority)}}],
        "users": [{"name": "test", "user": {
            "client-certificate-data": pem(&identity.certificate), "client-key-data": pem(&identity.key)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

/// Every call, with who made it and how it ended. Bodies are left out: they hold tokens.
pub fn audit_policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": true,
        "rules": [
            // A node renews its lease every few seconds; no test asserts on that.
            {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
             "namespaces": ["kube-node-lease"]},
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/openapi/*"]},
            {"level": "Metadata"},
        ],
    })
    .to_string()
}

pub fn kubelet(cgroup_root: &str) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": format!("{STATE}/pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        // Containers go below a folder named after the cluster, which is how clean-up knows them.
        "cgroupRoot": cgroup_root,
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": format!("{STATE}/config/resolv.conf"),
        // The default is a folder below /usr, which is the machine's.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "clusterDomain": DOMAIN,
        "clusterDNS": [DNS_SERVICE],
        // The defaults of a large cluster make a test wait; one node can afford more.
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
        "kubeAPIQPS": 100, "kubeAPIBurst": 200,
        "registryPullQPS": 0,
    })
    .to_string()
}

pub fn kube_proxy() -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": PODS,
        "hostnameOverride": NODE,
        "clientConnection": {"kubeconfig": format!("{STATE}/config/kube-proxy.kubeconfig")},
        // The table of connections is the machine's; its size is not ours to set.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "nftables": {"minSyncPeriod": "100ms"},
    })
    .to_string()
}

/// Point-to-point links, no bridge; the addresses are pods' own, so that a NetworkPolicy sees who speaks.
pub fn cni() -> String {
    json!({
        "cniVersion": "0.4.0", "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": false, "ipam": {
                "type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": "/var/lib/cni/networks"}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
    .to_string()
}

/// The configuration of containerd; the parts are given by their folders inside.
pub fn containerd(snapshotter: &str, runc: &str, gvisor: Gvisor) -> String {
    let runtime = "plugins.\"io.containerd.cri.v1.runtime\"";
    let mut text = format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
# This one makes folders below /opt, which is the machine's.
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[{runtime}]
# Lowering the score needs CAP_SYS_RESOURCE, which some machines withhold even from root.
restrict_oom_score_adj = true

[{runtime}.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{STATE}/config/cni"

[{runtime}.containerd]
default_runtime_name = "runc"

[{runtime}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{runtime}.containerd.runtimes.runc.options]
BinaryName = "{runc}/runc"
SystemdCgroup = false
"#
    );
    if gvisor == Gvisor::Installed {
        text.push_str(&format!(
            r#"
[{runtime}.containerd.runtimes.runsc]
runtime_type = "io.containerd.runsc.v1"
# A pod says with these how its volumes are shared between its containers.
pod_annotations = ["dev.gvisor.*"]

[{runtime}.containerd.runtimes.runsc.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = "{STATE}/config/runsc.toml"
"#
        ));
    }
    text
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gvisor {
    Installed,
    Absent,
}

pub fn runsc() -> &'static str {
    "[runsc_config]\nignore-cgroups = \"true\"\nplatform = \"systrap\"\nhost-uds = \"open\"\n"
}

/// What makes the tier's extras usable, applied once the API server answers.
pub fn gvisor_runtime_class() -> String {
    json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"})
        .to_string()
}

pub fn api_server_url(address: Ipv4Addr) -> String {
    format!("https://{address}:{API_PORT}")
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_usize, |group, &byte| group << 8 | usize::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[group >> (18 - 6 * place) & 63];
            text.push(if place > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, encoded) in cases {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }

    #[test]
    fn only_a_gvisor_cluster_knows_its_runtime() {
        assert!(containerd("overlayfs", "/r", Gvisor::Installed).contains("runtimes.runsc"));
        assert!(!containerd("overlayfs", "/r", Gvisor::Absent).contains("runsc"));
    }
}
