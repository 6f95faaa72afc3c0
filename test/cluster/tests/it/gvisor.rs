//! The gVisor tier: another kernel, and containers of a pod that still see each other.

use anyhow::Result;
use serde_json::json;
use sympozium_testkit::cluster::{Cluster, Namespace, Security, Tier};

use crate::pods::{self, PATIENCE};

fn restricted(label: &str) -> Result<Option<(Namespace, String)>> {
    let Some(cluster) = Cluster::shared(Tier::Gvisor)? else {
        return Ok(None);
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(None);
    };
    Ok(Some((cluster.namespace(label, Security::Restricted)?, image)))
}

#[test]
fn a_gvisor_pod_says_so() -> Result<()> {
    let Some((namespace, image)) = restricted("gvisor")? else {
        return Ok(());
    };
    let mut spec = pods::spec(&[pods::container("main", &image, "cat /proc/version")]);
    spec["runtimeClassName"] = json!("gvisor");
    namespace.create(&pods::pod("other-kernel", spec))?;
    namespace.wait_for_pod("other-kernel", "Succeeded", PATIENCE)?;
    let version = namespace.kubectl().run(&["logs", "other-kernel"])?;
    assert!(version.to_lowercase().contains("gvisor"), "{version}");
    Ok(())
}

/// Both kinds of emptyDir, because gVisor serves them in different ways.
#[test]
fn containers_of_a_gvisor_pod_share_a_socket_and_events() -> Result<()> {
    for (medium, kind) in [("Memory", "tmpfs"), ("", "bind")] {
        share(medium, kind)?;
    }
    Ok(())
}

fn share(medium: &str, kind: &str) -> Result<()> {
    let Some((namespace, image)) = restricted("share")? else {
        return Ok(());
    };
    let with_volume = |name: &str, script: &str| {
        let mut container = pods::container(name, &image, script);
        container["volumeMounts"] = json!([{"name": "ipc", "mountPath": "/ipc"}]);
        container
    };
    let server =
        with_volume("server", "cluster-probe serve-socket /ipc/door && cluster-probe await-event /ipc request");
    let client = with_volume(
        "client",
        "cluster-probe call-socket /ipc/door word && until [ -e /ipc/watching ]; do sleep 0.1; done && \
         touch /ipc/draft && mv /ipc/draft /ipc/request",
    );
    let mut spec = pods::spec(&[server, client]);
    spec["runtimeClassName"] = json!("gvisor");
    spec["volumes"] = json!([{"name": "ipc", "emptyDir": {"medium": medium}}]);
    let mut pod = pods::pod("pair", spec);
    pod["metadata"]["annotations"] = json!({
        "dev.gvisor.spec.mount.ipc.type": kind,
        "dev.gvisor.spec.mount.ipc.share": "pod",
        "dev.gvisor.spec.mount.ipc.options": "rw",
    });
    namespace.create(&pod)?;
    namespace.wait_for_pod("pair", "Succeeded", PATIENCE)?;
    let kubectl = namespace.kubectl();
    assert_eq!(kubectl.run(&["logs", "pair", "-c", "client"])?.trim(), "echo word", "medium {medium:?}");
    let served = kubectl.run(&["logs", "pair", "-c", "server"])?;
    assert_eq!(served.lines().collect::<Vec<_>>(), ["served word", "event for request"], "medium {medium:?}");
    Ok(())
}
