//! Extracts cluster facts from objects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use sympozium_api::installation::{CANARY_PORT, GATEWAY, GATEWAY_PORT, NAME_LABEL, gateway_host};
use sympozium_plan::render::{GatewayAddress, SandboxVersion};

use super::{API_SERVER_SERVICE, Overrides};
use crate::settings::UserNamespaces;

/// Addresses of the API server in a NetworkPolicy; no control plane has more.
const MAX_ADDRESSES: usize = 64;
/// Limit for the API server's CA certificates, in bytes.
const MAX_CERTIFICATES: usize = 256 * 1024;
/// The label with a node's operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// The address of the gateway. Ports of Service and pods must be the same: a NetworkPolicy applies to both.
pub fn gateway(overrides: &Overrides, service: Option<&Service>, system_namespace: &str) -> Option<GatewayAddress> {
    let ip = match overrides.gateway {
        Some(ip) => ip,
        None => {
            let spec = service?.spec.as_ref()?;
            let ports = spec.ports.as_deref().unwrap_or_default();
            let has = |wanted: u16| ports.iter().any(|port| port.port == i32::from(wanted));
            (has(GATEWAY_PORT) && has(CANARY_PORT)).then_some(())?;
            // A headless Service has the cluster IP `None`.
            spec.cluster_ip.as_deref()?.parse().ok()?
        }
    };
    Some(GatewayAddress {
        ip,
        port: GATEWAY_PORT,
        canary_port: CANARY_PORT,
        name: gateway_host(system_namespace),
        pod_labels: BTreeMap::from([(NAME_LABEL.to_owned(), GATEWAY.to_owned())]),
    })
}

/// The addresses of the API server: those of its Service and of the endpoints behind it. Only the slice that API
/// servers maintain themselves is trusted, see [`API_SERVER_SERVICE`]. Empty until both are known: a NetworkPolicy that
/// was rendered with one of them alone would differ from the one that is rendered after a restart.
pub fn api_server<'a>(
    service: Option<&Service>,
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> Vec<(IpAddr, u16)> {
    let mut of_service = BTreeSet::new();
    if let Some(spec) = service.and_then(|service| service.spec.as_ref()) {
        let ips = spec.cluster_ips.iter().flatten();
        for ip in ips.chain(&spec.cluster_ip) {
            for port in spec.ports.iter().flatten() {
                of_service.extend(parse_address(ip, port.port));
            }
        }
    }
    let is_its_own = |slice: &&EndpointSlice| {
        let metadata = &slice.metadata;
        (metadata.namespace.as_deref(), metadata.name.as_deref())
            == (Some(API_SERVER_SERVICE.0), Some(API_SERVER_SERVICE.1))
    };
    let mut endpoints = BTreeSet::new();
    for slice in slices.filter(is_its_own) {
        for endpoint in &slice.endpoints {
            for ip in &endpoint.addresses {
                for port in slice.ports.iter().flatten().filter_map(|port| port.port) {
                    endpoints.extend(parse_address(ip, port));
                }
            }
        }
    }
    if of_service.is_empty() || endpoints.is_empty() {
        return Vec::new();
    }
    of_service.append(&mut endpoints);
    of_service.into_iter().take(MAX_ADDRESSES).collect()
}

fn parse_address(ip: &str, port: i32) -> Option<(IpAddr, u16)> {
    Some((ip.parse().ok()?, u16::try_from(port).ok()?))
}

pub fn certificates(map: &ConfigMap) -> Option<String> {
    let text = map.data.as_ref()?.get("ca.crt")?;
    (!text.is_empty() && text.len() <= MAX_CERTIFICATES).then(|| text.clone())
}

/// `hostUsers` of pods. With `Auto`, pods get a user namespace if every schedulable Linux node supports it: a node
/// without support rejects a pod that asks for one.
pub fn host_users<'a>(setting: UserNamespaces, nodes: impl Iterator<Item = &'a Node>) -> Option<bool> {
    match setting {
        UserNamespaces::Always => Some(false),
        UserNamespaces::Never => Some(true),
        UserNamespaces::Auto => {
            let mut nodes = nodes.filter(|node| is_schedulable(node)).peekable();
            (nodes.peek().is_some() && nodes.all(has_user_namespaces)).then_some(false)
        }
    }
}

fn is_schedulable(node: &Node) -> bool {
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    let labels = node.metadata.labels.as_ref();
    let system = labels.and_then(|labels| labels.get(OS_LABEL));
    unschedulable != Some(true) && system.is_none_or(|system| system == "linux")
}

/// Whether the default handler, which has no name, supports user namespaces.
fn has_user_namespaces(node: &Node) -> bool {
    let status = node.status.as_ref();
    let handlers = status.and_then(|status| status.runtime_handlers.as_deref());
    let is_default = |name: Option<&str>| name.is_none_or(str::is_empty);
    handlers.unwrap_or_default().iter().any(|handler| {
        let features = handler.features.as_ref();
        is_default(handler.name.as_deref()) && features.and_then(|features| features.user_namespaces) == Some(true)
    })
}

/// The served version of agent-sandbox; the newer one is preferred.
pub fn sandbox_version(definition: &CustomResourceDefinition) -> Option<SandboxVersion> {
    let conditions = definition.status.as_ref()?.conditions.as_deref()?;
    let established = |condition: &&k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionCondition| {
        condition.type_ == "Established" && condition.status == "True"
    };
    conditions.iter().find(established)?;
    let versions = &definition.spec.versions;
    let serves = |name: &str| versions.iter().any(|version| version.served && version.name == name);
    if serves("v1beta1") {
        Some(SandboxVersion::V1Beta1)
    } else if serves("v1alpha1") {
        Some(SandboxVersion::V1Alpha1)
    } else {
        None
    }
}
