//! The node tier's name server: pods look names up as in any cluster, and a test can have names of the public network.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use sympozium_testkit::cluster::{Cluster, Namespace, Security, Tier, eventually};

use crate::pods::{self, connect};

/// How long the name server may take to know of a Service, and kube-proxy to lead to it.
const PATIENCE: Duration = Duration::from_secs(180);

/// The addresses that a pod finds, or `None` where there are none.
fn resolve(namespace: &Namespace, pod: &str, name: &str) -> Result<Option<String>> {
    let ask = ["exec", pod, "--", "cluster-probe", "resolve", name];
    let printed = namespace.kubectl().attempt(&ask)?;
    let said = printed.stdout.trim().to_owned();
    anyhow::ensure!(printed.success || said.starts_with("failed: "), "no answer from pod {pod}: {}", printed.stderr);
    Ok(printed.success.then_some(said))
}

/// Waits until a pod finds exactly this: on a busy machine the answer to one question may come too late.
fn wait_until_resolved(namespace: &Namespace, pod: &str, name: &str, address: &str) -> Result<()> {
    eventually(&format!("{name} to be resolved to {address}"), PATIENCE, || {
        let found = resolve(namespace, pod, name)?;
        Ok((found.as_deref() == Some(address)).then_some(()))
    })
}

#[test]
fn pods_find_services_by_every_form_of_their_names() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(());
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(());
    };
    let namespace = cluster.namespace("dns", Security::Restricted)?;
    let service = namespace.create(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }))?;
    let address = service["spec"]["clusterIP"].as_str().context("an address")?;
    pods::start_server(&namespace, "server", &image, 8080)?;
    pods::start_idle(&namespace, "client", &image)?;
    let own = namespace.name();
    for name in [
        "server".to_owned(),
        format!("server.{own}"),
        format!("server.{own}.svc"),
        format!("server.{own}.svc.cluster.local"),
        format!("server.{own}.svc.cluster.local."),
    ] {
        wait_until_resolved(&namespace, "client", &name, address)?;
    }
    // Of other namespaces too; and what is not there is not found.
    eventually("a Service of another namespace to be found", PATIENCE, || {
        resolve(&namespace, "client", "kubernetes.default")
    })?;
    for name in ["nobody", "server.default", "example.org", "api.anthropic.com"] {
        assert_eq!(resolve(&namespace, "client", name)?, None, "{name}");
    }
    let said = eventually("the Service to lead to its pod", PATIENCE, || {
        let said = connect(&namespace, "client", &format!("server.{own}.svc:80"))?;
        Ok(said.ok().filter(|it| it.contains("hello")))
    });
    said.map(drop)
}

/// What a test needs that stands in for a provider: its name, at a public address, and a server of the test behind it.
#[test]
fn a_public_name_leads_where_a_test_says_and_is_one_tests_at_a_time() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(());
    };
    let (Some(host), Some(image)) = (cluster.host_address(), pods::image(cluster)?) else {
        return Ok(());
    };
    let namespace = cluster.namespace("public", Security::Restricted)?;
    pods::start_idle(&namespace, "client", &image)?;
    let listener = TcpListener::bind((host, 0)).context("listening on the machine's end")?;
    let server = listener.local_addr()?;
    std::thread::spawn(move || {
        while let Ok((mut connection, _)) = listener.accept() {
            let _ = writeln!(connection, "hello from the test");
        }
    });
    let name = "provider.example.com";
    let Some(held) = cluster.public_name(name)? else {
        return Ok(());
    };
    let other = cluster.public_name("other.example.com")?;
    let other = other.context("a cluster of ours")?;
    assert_ne!(held.address(), other.address());
    namespace.lead("provider", 443, server, Some(&held))?;
    wait_until_resolved(&namespace, "client", name, &held.address().to_string())?;
    eventually("the name to lead to the test", PATIENCE, || {
        let said = connect(&namespace, "client", &format!("{name}:443"))?;
        Ok((said.as_deref() == Ok("connected: hello from the test")).then_some(()))
    })?;

    // Another test gets the name when this one releases it, and not before.
    let (sender, taken) = std::sync::mpsc::channel();
    std::thread::scope(|scope| -> Result<()> {
        let waiting = scope.spawn(|| -> Result<()> {
            let name = cluster.public_name(name)?;
            let _ = sender.send(());
            drop(name);
            Ok(())
        });
        assert!(taken.try_recv().is_err());
        drop(held);
        waiting.join().unwrap_or_else(|_| anyhow::bail!("the thread panicked"))
    })?;
    taken.recv_timeout(PATIENCE).context("the name was free")?;
    eventually("the name to be gone", PATIENCE, || Ok(resolve(&namespace, "client", name)?.is_none().then_some(())))
}
