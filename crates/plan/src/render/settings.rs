//! What a plan does not contain: facts and settings of the cluster.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use sympozium_api::labels;
use sympozium_api::names::{NamespaceName, ObjectName};

/// Seconds until Kubernetes removes a finished Job that was not removed before.
pub const TTL_SECONDS: i32 = 300;

/// Facts and settings of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderSettings {
    /// The namespace of the gateway.
    pub system_namespace: NamespaceName,
    /// How the gateway is reached.
    pub gateway: GatewayAddress,
    /// Addresses of the API server: its endpoints, and its Service. Only runs with an identity reach it.
    pub api_server: Vec<(IpAddr, u16)>,
    /// `hostUsers` of pods: `false` for a user namespace, `true` for none, left to the cluster when absent. The caller
    /// knows whether the nodes support it.
    pub host_users: Option<bool>,
    /// The version of agent-sandbox that the cluster serves, if it has it.
    pub sandbox_version: Option<SandboxVersion>,
    /// Seconds until Kubernetes removes a finished Job; never when absent.
    pub ttl_seconds_after_finished: Option<i32>,
    /// The StorageClass of workspaces that outlive their pod; the cluster's default when absent.
    pub storage_class: Option<ObjectName>,
    /// Whether the kubelets bound the processes of a pod (`podPidsLimit`). The operator sets it: nothing in a pod shows
    /// it.
    pub pod_pids_limit: bool,
    /// PEM certificates of further CAs that a run's bridge trusts for the model's endpoint and for pages, in addition
    /// to the public ones. Only the operator sets them: nothing of a run can name one.
    pub certificates: Option<String>,
}

/// How the gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    /// The address of its Service.
    pub ip: IpAddr,
    /// The port that runs may reach, of Service and pods.
    pub port: u16,
    /// The port that no run may reach: where it answers, NetworkPolicies are not enforced.
    pub canary_port: u16,
    /// The name in its certificate. Runs have no DNS: the pod maps the name to the address.
    pub name: String,
    /// The labels of its pods.
    pub pod_labels: BTreeMap<String, String>,
}

/// A version of agent-sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxVersion {
    /// Up to 0.5.
    V1Alpha1,
    /// From 0.5 on.
    V1Beta1,
}

/// For use without a cluster: addresses for documentation (RFC 5737), at which nothing answers.
impl Default for RenderSettings {
    fn default() -> Self {
        Self {
            system_namespace: NamespaceName::new(labels::SYSTEM_NAMESPACE),
            gateway: GatewayAddress::default(),
            api_server: vec![
                (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443),
                (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 6443),
            ],
            host_users: None,
            // The only one that agent-sandbox serves since 1.0. Tests on a real server use the older one.
            sandbox_version: Some(SandboxVersion::V1Beta1),
            ttl_seconds_after_finished: Some(TTL_SECONDS),
            storage_class: None,
            pod_pids_limit: false,
            certificates: None,
        }
    }
}

impl Default for GatewayAddress {
    fn default() -> Self {
        let name = "sympozium-gateway";
        Self {
            ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)),
            port: 8443,
            canary_port: 8444,
            name: format!("{name}.{}.svc", labels::SYSTEM_NAMESPACE),
            pod_labels: BTreeMap::from([("app.kubernetes.io/name".to_owned(), name.to_owned())]),
        }
    }
}

impl SandboxVersion {
    /// Group and version, as in objects.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "agents.x-k8s.io/v1alpha1",
            Self::V1Beta1 => "agents.x-k8s.io/v1beta1",
        }
    }
}
