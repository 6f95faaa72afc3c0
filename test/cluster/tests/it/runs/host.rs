//! Access to the node: what a policy gives is there inside, and nothing is there without one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sympozium_testkit::cluster::Exclusivity;

use super::harness::{Harness, IMAGE, SystemPack, commands, condition, scripted};

/// A directory of the node, removed when it is dropped.
struct NodeDirectory {
    here: PathBuf,
    there: String,
}

impl NodeDirectory {
    /// With `in/word` to be read, and `out` to be written to.
    fn new(harness: &Harness) -> Result<Option<Self>> {
        let Some(folder) = harness.cluster.node_folder() else {
            return Ok(None);
        };
        let name = harness.namespace.name();
        let directory = Self { here: folder.join(name), there: format!("/var/lib/{name}") };
        for part in ["in", "out"] {
            let path = directory.here.join(part);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(0o777))?;
        }
        fs::write(directory.here.join("in/word"), "of the node\n")?;
        Ok(Some(directory))
    }

    /// What a run wrote.
    fn written(&self, name: &str) -> Result<String> {
        let path = self.here.join("out").join(name);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }
}

impl Drop for NodeDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.here);
    }
}

/// A run of a pack of the system namespace that asks for root, two directories of the node and this besides, with an agent of this
/// policy. The pack is there as long as what is given back.
fn create(
    harness: &Harness,
    directory: &NodeDirectory,
    run: &str,
    policy: &str,
    more: Option<&str>,
) -> Result<SystemPack> {
    let there = &directory.there;
    let turns =
        commands(&["cp /host/in/word /host/out/word", "id -u > /host/out/user", "echo changed > /host/in/word"]);
    let mut access = json!({
        "enabled": true, "runAsRoot": true,
        "mounts": [
            {"hostPath": format!("{there}/in"), "mountPath": "/host/in"},
            {"hostPath": format!("{there}/out"), "mountPath": "/host/out", "readOnly": false},
        ],
    });
    if let Some(more) = more {
        access[more] = json!(true);
    }
    let pack = harness.create_system_pack(&json!({
        "skills": [{"name": "look", "description": "Looks at the node.", "content": "Look."}],
        "sidecar": {"image": IMAGE, "executor": "injected", "hostAccess": access},
    }))?;
    let agent = format!("  skills: [{{skillPackRef: {}}}]\n{policy}", pack.name);
    harness.create(&scripted(run, &turns, &agent, ""))?;
    Ok(pack)
}

/// The policy that gives it, and what else there is, to this pack of the system namespace.
fn create_policy(harness: &Harness, directory: &NodeDirectory, pack: &str) -> Result<()> {
    let there = &directory.there;
    let spec = json!({
        "sandboxPolicy": {"allowHostMounts": true},
        "hostAccessPolicy": {
            "packs": [pack], "runAsRoot": true, "hostPID": true, "hostNetwork": true,
            "allowedHostPaths": [
                {"pathPrefix": format!("{there}/in")},
                {"pathPrefix": format!("{there}/out"), "readOnly": false},
            ],
        },
    });
    harness.create(&format!(
        "apiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {{name: open}}\nspec: {spec}\n"
    ))?;
    Ok(())
}

#[test]
fn what_a_policy_gives_of_the_node_is_there_inside_and_no_more() -> Result<()> {
    let Some(harness) = Harness::privileged("host", Exclusivity::shared())? else {
        return Ok(());
    };
    let Some(directory) = NodeDirectory::new(&harness)? else {
        return Ok(());
    };
    create_policy(&harness, &directory, harness.namespace.name())?;
    let _pack = create(&harness, &directory, "given", "  policyRef: open", None)?;
    let run = harness.ended("given")?;
    assert_eq!((&run["status"]["phase"], &run["status"]["result"]), (&json!("Succeeded"), &json!("Done.")), "{run}");
    assert_eq!(directory.written("word")?, "of the node\n");
    assert_eq!(directory.written("user")?, "0\n");
    // What is given to be read stays as it is.
    let word = fs::read_to_string(directory.here.join("in/word"))?;
    assert_eq!(word, "of the node\n");
    assert_eq!(harness.left_of(&run)?, Vec::<String>::new());
    Ok(())
}

/// Processes and network of the node are not those of a user namespace, and this installation has one for every pod.
#[test]
fn what_a_user_namespace_keeps_apart_is_refused_whatever_the_policy_gives() -> Result<()> {
    let Some(harness) = Harness::privileged("apart", Exclusivity::shared())? else {
        return Ok(());
    };
    let Some(directory) = NodeDirectory::new(&harness)? else {
        return Ok(());
    };
    create_policy(&harness, &directory, harness.namespace.name())?;
    for (run, power) in [("processes", "hostPID"), ("network", "hostNetwork")] {
        let _pack = create(&harness, &directory, run, "  policyRef: open", Some(power))?;
        let refused = harness.ended(run)?;
        let error = refused["status"]["error"].as_str().unwrap_or_default();
        assert_eq!(refused["status"]["phase"], "Failed", "{refused}");
        assert!(error.contains("has the node's network or processes"), "{power}: {error}");
        assert_eq!(refused["status"]["podName"], Value::Null);
        assert_eq!(harness.left_of(&refused)?, Vec::<String>::new());
    }
    Ok(())
}

#[test]
fn without_a_policy_that_allows_it_no_part_has_anything_of_the_node() -> Result<()> {
    let Some(harness) = Harness::privileged("nohost", Exclusivity::shared())? else {
        return Ok(());
    };
    let Some(directory) = NodeDirectory::new(&harness)? else {
        return Ok(());
    };
    // One that gives it to another pack.
    create_policy(&harness, &directory, "other")?;
    for (run, policy) in [("unnamed", ""), ("another", "  policyRef: open")] {
        let _pack = create(&harness, &directory, run, policy, None)?;
        let denied = harness.ended(run)?;
        let error = denied["status"]["error"].as_str().unwrap_or_default();
        assert_eq!(denied["status"]["phase"], "Failed", "{denied}");
        assert_eq!(condition(&denied, "Admitted"), "False", "{denied}");
        assert!(error.contains("denied[host-access]"), "{error}");
        assert_eq!(denied["status"]["podName"], Value::Null);
        assert_eq!(harness.left_of(&denied)?, Vec::<String>::new());
    }
    assert_eq!(fs::read_dir(directory.here.join("out"))?.count(), 0);
    Ok(())
}
