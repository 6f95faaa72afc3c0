//! What may be reached over the network.

use serde::Serialize;
use sympozium_api::run_plan::{AllowedHosts, Destination, Part, Role, RunPlan};

/// What is reachable in the node's network.
const NODE_NETWORK: &str = "whatever the node reaches";

/// What may be reached, by each part and by the whole pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// By each part, through the gateway.
    pub parts: Vec<PartNetwork>,
    /// By the pod as a whole: a NetworkPolicy cannot distinguish containers.
    pub pod: PodNetwork,
}

/// What one part may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartNetwork {
    /// The name of the part.
    pub part: String,
    /// Whether it may reach every public host.
    pub any_public_host: bool,
    /// Hosts with their ports, public or not; `*` is any port.
    pub hosts: Vec<String>,
    /// Whether it has a token for the Kubernetes API.
    pub kubernetes_api: bool,
    /// Whether it has the node's network instead of the pod's: either all parts of a pod have it, or none.
    pub node_network: bool,
}

/// What the pod may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNetwork {
    /// Destinations that the NetworkPolicy allows.
    pub egress: Vec<&'static str>,
    /// Peers that may connect to the pod: none.
    pub ingress: Vec<&'static str>,
    /// Whether the pod has DNS: it does not, the gateway resolves names.
    pub dns: bool,
    /// Whether the run is refused where this is not enforced.
    pub enforced_or_refused: bool,
}

pub fn explain_network(plan: &RunPlan) -> Network {
    let mut egress = vec!["the gateway"];
    if !plan.identities.is_empty() {
        egress.push("the Kubernetes API server");
    }
    if has_node_network(plan) {
        // NetworkPolicies do not apply to it.
        egress = vec![NODE_NETWORK];
    }
    let floor = &plan.isolation.floor;
    Network {
        parts: plan.parts.iter().map(|part| explain_part(plan, part)).collect(),
        pod: PodNetwork {
            egress,
            ingress: Vec::new(),
            dns: false,
            enforced_or_refused: floor.contains(&sympozium_api::guarantee::Guarantee::Network),
        },
    }
}

fn explain_part(plan: &RunPlan, part: &Part) -> PartNetwork {
    let mut hosts: Vec<String> =
        part_hosts(plan, part).flat_map(|reach| reach.destinations.iter().map(format_destination)).collect();
    hosts.sort();
    hosts.dedup();
    PartNetwork {
        part: part.name.to_string(),
        any_public_host: part_hosts(plan, part).any(|reach| reach.public),
        hosts,
        kubernetes_api: part.identity.is_some(),
        node_network: has_node_network(plan) && !matches!(part.role, Role::PostRun { .. }),
    }
}

fn part_hosts<'a>(plan: &'a RunPlan, part: &'a Part) -> impl Iterator<Item = &'a AllowedHosts> {
    let credentials = plan.credentials.iter().filter(|credential| credential.part == part.name);
    credentials.map(|credential| &credential.reach)
}

/// `host:port`, with brackets around an IPv6 address.
pub fn format_destination(destination: &Destination) -> String {
    let Destination { host, port } = destination;
    let port = port.map_or_else(|| "*".to_owned(), |port| port.to_string());
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether the run's pod has the node's network. One part that requests it is enough: Kubernetes gives it to a whole
/// pod.
pub fn has_node_network(plan: &RunPlan) -> bool {
    let mut access = plan.parts.iter().filter_map(|part| part.host_access.as_ref());
    access.any(|access| access.enabled && access.host_network)
}

/// What a part may reach, in words; empty when nothing.
pub fn describe_part(plan: &RunPlan, part: &Part) -> Vec<String> {
    let network = explain_part(plan, part);
    let mut words = Vec::new();
    if network.node_network {
        words.push(NODE_NETWORK.to_owned());
    }
    if network.any_public_host {
        words.push("any public host".to_owned());
    }
    words.extend(network.hosts);
    if network.kubernetes_api {
        words.push("Kubernetes API".to_owned());
    }
    words
}
