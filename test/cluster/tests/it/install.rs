//! An installation as people make it: the manifests are taken, the programs serve, and they are held in.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use sympozium_testkit::cluster::{Cluster, Exclusivity, Installation, Tier, eventually};

/// How long the other controller may take to notice.
const PATIENCE: Duration = Duration::from_secs(180);

#[test]
fn both_programs_serve_and_one_controller_leads() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(());
    };
    let Some(installation) = Installation::shared(cluster)? else {
        return Ok(());
    };
    let _exclusivity = Exclusivity::shared();
    let system = installation.system();
    let is_ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    // On a busy machine a probe may be late once.
    eventually("four pods to be ready", PATIENCE, || {
        let pods = system.json(&["get", "pods"])?;
        let ready = pods["items"].as_array().into_iter().flatten().filter(is_ready).count();
        ensure!(ready == 4, "{ready} pods are ready");
        Ok(Some(()))
    })
    .with_context(|| installation.logs())?;
    let holder = eventually("a leader", PATIENCE, || {
        let lease = system.json(&["get", "lease", "sympozium-controller"])?;
        Ok(lease["spec"]["holderIdentity"].as_str().map(str::to_owned))
    })?;
    ensure!(!holder.is_empty(), "the Lease has no holder");
    let packs = system.json(&["get", "skillpacks"])?;
    ensure!(packs["items"].as_array().map_or(0, Vec::len) >= 7, "{packs}");
    system.run(&["get", "sympoziumpolicy", "floor"])?;
    Ok(())
}

/// Tools in images of packs start as the user of pods, on a read-only root.
#[test]
fn images_of_packs_have_tools_that_start() -> Result<()> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(());
    };
    let namespace = cluster.namespace("tools", sympozium_testkit::cluster::Security::Restricted)?;
    let image = sympozium_testkit::cluster::Image::of_ours("skill-sre-observability");
    if !cluster.import(&image)? {
        return Ok(());
    }
    let script = "HOME=/tmp/home; export HOME; kubectl version --client >/dev/null && echo '[1,2]' | jq -c 'map(.+1)' \
                  && curl --version | cut -d' ' -f1 | head -n1 && id -u && ls /usr/local/bin; touch /x 2>/dev/null || echo closed";
    namespace.create(&serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "tools" },
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": false,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "c", "image": image.name(), "command": ["/bin/sh", "-c", script],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
                },
                "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
            }],
            "volumes": [{ "name": "tmp", "emptyDir": {} }],
        },
    }))?;
    namespace.wait_for_pod("tools", "Succeeded", PATIENCE)?;
    let printed = namespace.kubectl().run(&["logs", "tools"])?;
    assert_eq!(printed, "[2,3]\ncurl\n1000\nclosed\n");
    Ok(())
}
