//! Extraction of cluster facts from objects.

use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_plan::render::SandboxVersion;

use super::*;
use crate::settings::UserNamespaces;

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_gateway_is_its_service_or_the_override() {
    let service = |ip: &str, ports: &[i32]| -> Service {
        let ports: Vec<_> = ports.iter().map(|port| json!({"port": port})).collect();
        object(json!({"spec": {"clusterIP": ip, "ports": ports}}))
    };
    let found = |overrides: &Overrides, service: Option<&Service>| {
        extract::gateway(overrides, service, "elsewhere").map(|gateway| (gateway.ip, gateway.port, gateway.name))
    };
    let name = "sympozium-gateway.elsewhere.svc".to_owned();
    let none = Overrides::default();
    let whole = service("203.0.113.9", &[8443, 8444]);
    assert_eq!(found(&none, Some(&whole)), Some((ip("203.0.113.9"), 8443, name.clone())));
    assert_eq!(found(&none, None), None);
    assert_eq!(found(&none, Some(&service("None", &[8443, 8444]))), None);
    assert_eq!(found(&none, Some(&service("203.0.113.9", &[8443]))), None);
    let with_gateway = Overrides { gateway: Some(ip("198.51.100.1")), ..none };
    assert_eq!(found(&with_gateway, Some(&whole)), Some((ip("198.51.100.1"), 8443, name)));
}

fn slice(namespace: &str, name: &str, addresses: &[&str]) -> EndpointSlice {
    object(json!({
        "metadata": {
            "namespace": namespace, "name": name, "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": addresses}],
        "ports": [{"port": 6443}],
    }))
}

#[test]
fn a_slice_of_another_name_or_namespace_is_not_the_api_server_s() {
    let many: Vec<String> = (0..=u8::MAX).map(|number| format!("203.0.113.{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let slices = [
        slice("default", "a-kubernetes", &many),
        slice("default", "kubernetes-x7f2k", &["192.0.2.66"]),
        slice("elsewhere", "kubernetes", &["192.0.2.67"]),
        slice("default", "kubernetes", &["198.18.0.2", "2001:db8::2"]),
    ];
    assert_eq!(
        extract::api_server(Some(&service()), slices.iter()),
        [(ip("198.18.0.2"), 6443), (ip("203.0.113.1"), 443), (ip("2001:db8::1"), 443), (ip("2001:db8::2"), 6443)]
    );
}

fn service() -> Service {
    object(json!({"spec": {
        "clusterIP": "203.0.113.1", "clusterIPs": ["203.0.113.1", "2001:db8::1"],
        "ports": [{"name": "https", "port": 443, "targetPort": 6443}],
    }}))
}

#[test]
fn the_api_server_is_its_service_and_its_endpoints() {
    let own = slice("default", "kubernetes", &["198.18.0.2", "a.example"]);
    let slices = [own];
    assert_eq!(
        extract::api_server(Some(&service()), slices.iter()),
        [(ip("198.18.0.2"), 6443), (ip("203.0.113.1"), 443), (ip("2001:db8::1"), 443)]
    );
    // With one source alone the addresses are not known yet.
    assert_eq!(extract::api_server(Some(&service()), [].into_iter()), []);
    assert_eq!(extract::api_server(None, slices.iter()), []);
}

#[test]
fn certificates_are_there_or_not() {
    let map = |value: &str| -> ConfigMap { object(json!({"data": {"ca.crt": value}})) };
    assert_eq!(extract::certificates(&map("pem")), Some("pem".to_owned()));
    assert_eq!(extract::certificates(&map("")), None);
    assert_eq!(extract::certificates(&object(json!({}))), None);
}

#[test]
fn pods_get_a_user_namespace_where_every_node_that_takes_them_can() {
    let node = |can: bool, rest: Value| -> Node {
        let mut node = json!({"status": {"runtimeHandlers": [
            {"name": "runsc", "features": {"userNamespaces": !can}},
            {"name": "", "features": {"userNamespaces": can}},
        ]}});
        node.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object(node)
    };
    let able = node(true, json!({}));
    let unable = node(false, json!({}));
    let cordoned = node(false, json!({"spec": {"unschedulable": true}}));
    let windows = node(false, json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}}));
    let auto = |nodes: &[&Node]| extract::host_users(UserNamespaces::Auto, nodes.iter().copied());
    assert_eq!(auto(&[]), None);
    assert_eq!(auto(&[&able]), Some(false));
    assert_eq!(auto(&[&able, &unable]), None);
    assert_eq!(auto(&[&able, &cordoned, &windows]), Some(false));
    assert_eq!(auto(&[&cordoned]), None);
    assert_eq!(auto(&[&object(json!({}))]), None);
    let set = |setting| extract::host_users(setting, [&unable].into_iter());
    assert_eq!(set(UserNamespaces::Always), Some(false));
    assert_eq!(set(UserNamespaces::Never), Some(true));
}

#[test]
fn the_newest_served_version_of_agent_sandbox() {
    let definition = |established: &str, versions: &[(&str, bool)]| -> CustomResourceDefinition {
        let versions: Vec<_> =
            versions.iter().map(|(name, served)| json!({"name": name, "served": served, "storage": false})).collect();
        object(json!({
            "spec": {"group": "agents.x-k8s.io", "scope": "Namespaced", "versions": versions,
                "names": {"kind": "Sandbox", "plural": "sandboxes"}},
            "status": {"conditions": [{"type": "Established", "status": established}]},
        }))
    };
    let version =
        |established: &str, versions: &[(&str, bool)]| extract::sandbox_version(&definition(established, versions));
    let both = [("v1alpha1", true), ("v1beta1", true)];
    assert_eq!(version("True", &both), Some(SandboxVersion::V1Beta1));
    let older = [("v1alpha1", true), ("v1beta1", false)];
    assert_eq!(version("True", &older), Some(SandboxVersion::V1Alpha1));
    assert_eq!(version("False", &both), None);
    assert_eq!(version("True", &[("v2", true)]), None);
}
