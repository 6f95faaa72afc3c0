//! What a plan does not know: the cluster around the run.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use sympozium_api::labels;
use sympozium_api::names::{NamespaceName, ObjectName};

/// Seconds that a finished Job stays where nobody removes it.
pub const TTL_SECONDS: i32 = 300;

/// The cluster around a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderSettings {
    /// Where the gateway is.
    pub system_namespace: NamespaceName,
    /// How the gateway is reached.
    pub gateway: GatewayAddress,
    /// Where the API server answers: its endpoints, and the address of its Service. Only runs with an identity reach it.
    pub api_server: Vec<(IpAddr, u16)>,
    /// `hostUsers` of pods: `false` for a user namespace, `true` for none, left to the cluster when absent. Who calls knows
    /// whether the nodes can.
    pub host_users: Option<bool>,
    /// The version of agent-sandbox that the cluster serves, if it has it.
    pub sandbox_version: Option<SandboxVersion>,
    /// Seconds that a finished Job stays where nobody removes it; for ever when absent.
    pub ttl_seconds_after_finished: Option<i32>,
    /// The StorageClass of workspaces that outlive their pod; the cluster's default when absent.
    pub storage_class: Option<ObjectName>,
    /// Whether the kubelets bound the processes of a pod (`podPidsLimit`). The operator says so: nothing in a pod shows it.
    pub pod_pids_limit: bool,
    /// PEM certificates of authorities that a run's bridge trusts for the model's endpoint and for pages, besides the public ones.
    /// Set by the operator alone: nothing of a run can name one.
    pub certificates: Option<String>,
}

/// How the gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    /// The address of its Service.
    pub ip: IpAddr,
    /// The port that runs may reach, of Service and pods.
    pub port: u16,
    /// The port that nobody may reach: where it answers, nothing enforces NetworkPolicies.
    pub canary_port: u16,
    /// The name in its certificate. Runs look up no names: they are told the address.
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

/// Without a cluster: addresses for documentation (RFC 5737), at which nothing answers.
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
            // The only one that agent-sandbox serves since 1.0. What is tried on a real server is the older one.
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
    /// As objects write it, with the group.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "agents.x-k8s.io/v1alpha1",
            Self::V1Beta1 => "agents.x-k8s.io/v1beta1",
        }
    }
}
