//! What the pods of a run reach: the gateway, and the API server where a part has an identity. They have no DNS.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sympozium_api::labels::component;

use super::metadata::RenderContext;

/// The suffix of the NetworkPolicy.
const NETWORK_SUFFIX: &str = "network";
/// The label with a namespace's name, which the API server sets.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The one NetworkPolicy of a run, for all its pods. It allows no ingress.
pub fn network_policy(run: &RenderContext<'_>) -> NetworkPolicy {
    let mut egress = vec![gateway_rule(run)];
    if !run.plan.identities.is_empty() {
        let servers = run.settings.api_server.iter();
        egress.extend(servers.map(|(ip, port)| egress_rule(vec![ip_block(*ip)], *port)));
    }
    NetworkPolicy {
        metadata: run.namespaced_metadata(NETWORK_SUFFIX, component::AGENT_RUN),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector(run.selector())),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: None,
            egress: Some(egress),
        }),
    }
}

/// The pods of the gateway, and the address of its Service: network plugins differ in which of them they match. The
/// canary's port is not included.
fn gateway_rule(run: &RenderContext<'_>) -> NetworkPolicyEgressRule {
    let settings = run.settings;
    let namespace = settings.system_namespace.as_str().to_owned();
    let pods = NetworkPolicyPeer {
        namespace_selector: Some(selector(BTreeMap::from([(NAMESPACE_NAME.to_owned(), namespace)]))),
        pod_selector: Some(selector(settings.gateway.pod_labels.clone())),
        ip_block: None,
    };
    egress_rule(vec![pods, ip_block(settings.gateway.ip)], settings.gateway.port)
}

fn egress_rule(peers: Vec<NetworkPolicyPeer>, port: u16) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule {
        to: Some(peers),
        ports: Some(vec![NetworkPolicyPort {
            protocol: Some("TCP".to_owned()),
            port: Some(IntOrString::Int(port.into())),
            end_port: None,
        }]),
    }
}

fn ip_block(ip: IpAddr) -> NetworkPolicyPeer {
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    NetworkPolicyPeer {
        ip_block: Some(IPBlock { cidr: format!("{ip}/{bits}"), except: None }),
        ..NetworkPolicyPeer::default()
    }
}

fn selector(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}
