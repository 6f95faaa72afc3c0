//! The node under a run: files of its workspace, volumes for its claims, and the death of a container.
//!
//! The node of a test cluster is this machine, so what a pod keeps on disk can be read while it is there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sympozium_testkit::cluster::Cluster;
use sympozium_testkit::cluster::api::Api;

/// Files of a workspace, by their path in it.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Where claims of cases are records, below the node's `/var/lib`.
const CLAIMS: &str = "conformance-claims";
/// More than any case writes.
const CLAIM_SIZE: &str = "1Gi";

/// The node, as a case needs it.
pub struct Node {
    cluster: &'static Cluster,
    api: Api,
    /// Its `/var/lib`, on this machine.
    folder: PathBuf,
}

impl Node {
    pub fn new(cluster: &'static Cluster) -> anyhow::Result<Self> {
        let folder = cluster.node_folder().context("the node is not ours")?;
        let api = cluster.api()?;
        Ok(Self { cluster, api, folder })
    }

    /// The workspace of a pod, where it is the pod's own.
    pub fn workspace(&self, pod_uid: &str) -> PathBuf {
        let volume = "volumes/kubernetes.io~empty-dir/workspace";
        self.folder.join("kubelet/pods").join(pod_uid).join(volume)
    }

    /// Makes the volume that a claim will be bound to, and gives its directory. Nothing provides storage in a test cluster.
    pub fn provide(&self, namespace: &str, claim: &str) -> anyhow::Result<PathBuf> {
        let name = format!("{namespace}-{claim}");
        let directory = self.folder.join(CLAIMS).join(&name);
        fs::create_dir_all(&directory)?;
        // A path of the node gets no group of the pod's.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        self.api.create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": CLAIM_SIZE},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": claim},
                "hostPath": {"path": format!("/var/lib/{CLAIMS}/{name}"), "type": "Directory"},
            },
        }))?;
        Ok(directory)
    }

    /// Removes what was provided for a claim.
    pub fn withdraw(&self, namespace: &str, claim: &str) {
        let name = format!("{namespace}-{claim}");
        // Best effort: the cluster goes as a whole.
        let _ = (self.api).delete(&format!("/api/v1/persistentvolumes/{name}"));
        let _ = fs::remove_dir_all(self.folder.join(CLAIMS).join(name));
    }

    /// SIGKILL for the first process of a container, from outside of it: from inside the kernel would not let it through.
    pub fn kill(&self, namespace: &str, pod: &str, container: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
        let pod = self.api.get(&path)?;
        let id =
            container_id(&pod["status"], container).with_context(|| format!("there is no process of {container}"))?;
        let kill = ["ctr", "task", "kill", "--signal", "SIGKILL", &id];
        let printed = self.cluster.on_node(&kill)?;
        match printed {
            Some(printed) if printed.success => Ok(()),
            Some(printed) => bail!("{container} cannot be killed: {}", printed.stderr),
            None => bail!("the node is not ours"),
        }
    }
}

fn container_id(status: &Value, name: &str) -> Option<String> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists.iter().flat_map(|list| status[list].as_array().into_iter().flatten());
    let id = all.find(|it| it["name"] == name)?["containerID"].as_str()?;
    Some(id.trim_start_matches("containerd://").to_owned())
}

/// The files below a directory; nothing when it is gone, or goes meanwhile.
pub fn files(directory: &Path) -> Option<Files> {
    let mut files = Files::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).ok()? {
            let entry = entry.ok()?;
            let kind = entry.file_type().ok()?;
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let name = path.strip_prefix(directory).ok()?.to_string_lossy();
                files.insert(name.into_owned(), fs::read(&path).ok()?);
            }
        }
    }
    directory.is_dir().then_some(files)
}
