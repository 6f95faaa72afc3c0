//! The node tier's network: addresses that must be reachable are, and policies cut and open for real.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Cluster, Exclusivity, Namespace, Security, Tier, eventually};

use crate::pods::{self, connect};

const PORT: u16 = 8080;
/// How long a policy may take to be in force.
const POLICY_PATIENCE: Duration = Duration::from_secs(180);

struct Scene {
    namespace: Namespace,
    /// `address:port` of a server pod.
    pod: String,
    /// The same by the address of a Service.
    service: String,
    /// The API server by the address of its Service.
    api: String,
    _exclusivity: Exclusivity,
}

/// A server behind a Service and a client, all in one namespace.
fn scene(label: &str) -> Result<Option<Scene>> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(None);
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(None);
    };
    let exclusivity = Exclusivity::shared();
    let namespace = cluster.namespace(label, Security::Restricted)?;
    let service = namespace.create(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": PORT}]},
    }))?;
    let address = pods::start_server(&namespace, "server", &image, PORT)?;
    pods::start_idle(&namespace, "client", &image)?;
    let api = cluster.kubectl().json(&["get", "service", "kubernetes", "-n", "default"])?;
    let ip = |service: &Value| service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    Ok(Some(Scene {
        namespace,
        pod: format!("{address}:{PORT}"),
        service: format!("{}:80", ip(&service)),
        api: format!("{}:443", ip(&api)),
        _exclusivity: exclusivity,
    }))
}

impl Scene {
    fn reaches(&self, address: &str) -> Result<bool> {
        Ok(connect(&self.namespace, "client", address)?.is_ok())
    }

    /// Waits until all of the three addresses answer, or none does.
    fn wait_until_all(&self, what: &str, reachable: bool) -> Result<()> {
        eventually(what, POLICY_PATIENCE, || {
            for address in [&self.pod, &self.service, &self.api] {
                if self.reaches(address)? != reachable {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }

    fn policy(&self, name: &str, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name}, "spec": spec,
        });
        self.namespace.create(&object).map(drop)
    }
}

#[test]
fn services_and_the_api_server_are_reachable_by_service_address() -> Result<()> {
    let Some(scene) = scene("services")? else {
        return Ok(());
    };
    eventually("the Service to lead to its pod", POLICY_PATIENCE, || {
        Ok(connect(&scene.namespace, "client", &scene.service)?.ok().filter(|said| said.contains("hello")))
    })?;
    scene.wait_until_all("pod, Service and API server to answer", true)
}

#[test]
fn a_policy_that_denies_all_cuts_and_one_that_allows_opens() -> Result<()> {
    let Some(scene) = scene("policy")? else {
        return Ok(());
    };
    scene.wait_until_all("everything to be reachable without a policy", true)?;

    scene.policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))?;
    scene.wait_until_all("nothing to be reachable under deny-all", false)?;

    // Opens one way only: from the client to the server's port. The API server stays cut.
    let client = json!({"matchLabels": {"app": "client"}});
    let server = json!({"matchLabels": {"app": "server"}});
    let port = json!([{"port": PORT, "protocol": "TCP"}]);
    scene.policy("allow-out", json!({
        "podSelector": client, "policyTypes": ["Egress"], "egress": [{"to": [{"podSelector": server}], "ports": port}],
    }))?;
    scene.policy("allow-in", json!({
        "podSelector": server, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": client}], "ports": port}],
    }))?;
    eventually("the server to be reachable again", POLICY_PATIENCE, || {
        Ok((scene.reaches(&scene.pod)? && scene.reaches(&scene.service)?).then_some(()))
    })?;
    assert!(!scene.reaches(&scene.api)?, "the API server is reachable although only the server was allowed");
    Ok(())
}

/// What a webhook or a model server of a test needs.
#[test]
fn pods_reach_a_server_of_the_test() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(());
    };
    let Some(host) = cluster.host_address() else {
        return Ok(());
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(());
    };
    let namespace = cluster.namespace("host", Security::Restricted)?;
    let listener = TcpListener::bind((host, 0)).context("listening on the machine's end of the link")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        while let Ok((mut connection, _)) = listener.accept() {
            let _ = writeln!(connection, "hello from the test");
        }
    });
    pods::start_idle(&namespace, "client", &image)?;
    // A pod that has just started may be asked before its network is there, and a busy machine may be late with the greeting.
    eventually("the greeting of the test", POLICY_PATIENCE, || {
        let said = connect(&namespace, "client", &address)?;
        Ok((said.as_deref() == Ok("connected: hello from the test")).then_some(()))
    })
}
