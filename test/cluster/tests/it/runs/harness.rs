//! A namespace for runs, in a cluster where controller and gateway are installed.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Actor, Event, Outcome, verify};
pub use sympozium_testkit::cluster::runs::{condition as condition_of, is_over};
use sympozium_testkit::cluster::runs::{leftovers, objects_of};
use sympozium_testkit::cluster::{
    Cluster, Exclusivity, Image, Installation, Kubectl, Namespace, Printed, Security, Tier, eventually,
};

use super::rights::HOLD;
use crate::render::manifests::{documents, send};

/// How long a run may take on a loaded machine with two processors, from its creation to the proof that nothing is left.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// An image with a shell, by the name that manifests of these tests use.
pub const IMAGE: &str = "docker.io/library/busybox:1.37";
/// The same with `kubectl`.
pub const KUBECTL_IMAGE: &str = "docker.io/alpine/kubectl:1.36.3";

/// A namespace for runs.
pub struct Harness {
    pub cluster: &'static Cluster,
    pub installation: &'static Installation<'static>,
    pub namespace: Namespace,
    exclusivity: Rc<Exclusivity>,
}

impl Harness {
    /// `None`, and a recorded skip, where there is no such cluster.
    pub fn new(label: &str, exclusivity: Exclusivity) -> Result<Option<Self>> {
        Self::secured(label, exclusivity, Security::Restricted)
    }

    /// As [`Harness::new`], in a namespace whose Pod Security lets pods have something of the node.
    pub fn privileged(label: &str, exclusivity: Exclusivity) -> Result<Option<Self>> {
        Self::secured(label, exclusivity, Security::Privileged)
    }

    fn secured(label: &str, exclusivity: Exclusivity, security: Security) -> Result<Option<Self>> {
        let Some(cluster) = Cluster::shared(Tier::Node)? else {
            return Ok(None);
        };
        let Some(installation) = Installation::shared(cluster)? else {
            return Ok(None);
        };
        cluster.import(&Image::with_shell(IMAGE))?;
        Ok(Some(Self {
            cluster,
            installation,
            namespace: cluster.namespace(label, security)?,
            exclusivity: Rc::new(exclusivity),
        }))
    }

    /// Another namespace for the same test.
    pub fn beside(&self, label: &str) -> Result<Self> {
        Ok(Self {
            cluster: self.cluster,
            installation: self.installation,
            namespace: self.installation.namespace(label)?,
            exclusivity: Rc::clone(&self.exclusivity),
        })
    }

    /// Loads the image with `kubectl`.
    pub fn load_kubectl(&self) -> Result<()> {
        let kubectl = self.cluster.kubectl().command(&[]);
        let program = std::path::Path::new(kubectl.get_program());
        let image = Image::with_shell(KUBECTL_IMAGE).with_program(program);
        ensure!(self.cluster.import(&image)?, "the image cannot be loaded");
        Ok(())
    }

    /// The cluster's administrator, in this namespace.
    pub fn kubectl(&self) -> &Kubectl {
        self.namespace.kubectl()
    }

    /// Creates objects from YAML in this namespace, and gives them as the API server has them. Runs come last: they do
    /// not wait long for what they name.
    pub fn create(&self, yaml: &str) -> Result<Vec<Value>> {
        let mut objects = documents(yaml)?;
        objects.sort_by_key(|it| it["kind"] == "AgentRun");
        for object in &mut objects {
            object["metadata"]["namespace"] = json!(self.namespace.name());
        }
        send(self.kubectl(), &["create"], &objects)
    }

    /// Creates a pack in the system namespace, under a name of this test's own, and gives that name. Packs there may ask for
    /// rights: every user with write access may grant them.
    pub fn create_system_pack(&self, spec: &Value) -> Result<SystemPack> {
        let name = self.namespace.name().to_owned();
        let kubectl = self.cluster.kubectl().in_namespace(SYSTEM_NAMESPACE);
        kubectl.create(&json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "SkillPack",
            "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}, "spec": spec,
        }))?;
        Ok(SystemPack { name, kubectl })
    }

    /// A run as it is.
    pub fn run(&self, name: &str) -> Result<Value> {
        self.kubectl().json(&["get", "agentrun", name])
    }

    /// Waits until something holds of a run, and gives the run.
    pub fn wait(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let waited = self.kubectl().until("agentrun", name, PATIENCE, holds);
        waited.or_else(|error| {
            let pods = self.kubectl().attempt(&["get", "pods", "-o", "wide"])?;
            let said = self.installation.logs();
            bail!("{name}: {what}: {error:#}\n{}\n{said}", pods.stdout)
        })
    }

    /// Waits until a run is over and its rights are taken back.
    pub fn ended(&self, name: &str) -> Result<Value> {
        self.wait(name, "it to be over and revoked", is_over)
    }

    /// Waits for the pod of a run with this container and all that are beside the agent running, and gives the pod. Only for runs that
    /// wait for the test meanwhile.
    pub fn pod_with(&self, run: &str, container: &str) -> Result<Value> {
        let run = self.wait(run, "its pod", |run| run["status"]["podName"].is_string())?;
        let pod = run["status"]["podName"].as_str().unwrap_or_default();
        eventually(&format!("container {container} of {pod}"), PATIENCE, || {
            let pod = self.kubectl().json(&["get", "pod", pod])?;
            let running = running_containers(&pod);
            let is_running = |name: &Value| running.iter().any(|it| name == it.as_str());
            let mut ordinary = pod["spec"]["containers"].as_array().into_iter().flatten();
            let all = ordinary.all(|it| is_running(&it["name"])) && is_running(&json!(container));
            Ok(all.then_some(pod))
        })
    }

    /// A command in a container.
    pub fn exec(&self, pod: &Value, container: &str, command: &[&str]) -> Result<Printed> {
        let name = pod["metadata"]["name"].as_str().context("a pod's name")?;
        let all = [&["exec", name, "-c", container, "--"], command].concat();
        self.kubectl().attempt(&all)
    }

    /// What is there that bears the run's UID, but what is kept: kinds and names.
    pub fn left_of(&self, run: &Value) -> Result<Vec<String>> {
        Ok(leftovers(&objects_of(&self.cluster.kubectl(), run, &[])?))
    }

    /// Everything that was done in a run, by its receipts: one after the other, from the digest of its plan to the head
    /// that was reported.
    pub fn acts(&self, run: &Value) -> Result<Vec<(Actor, Outcome)>> {
        let mut records = objects_of(&self.cluster.kubectl(), run, &[])?;
        records.retain(|it| it["kind"] == "RunRecord" && it["spec"]["kind"] == "receipts");
        records.sort_by_key(|it| it["spec"]["segment"].as_i64());
        let lines = records.iter().flat_map(|it| it["spec"]["lines"].as_array().into_iter().flatten());
        let lines: Vec<&str> = lines.filter_map(Value::as_str).collect();
        let digest = |value: &Value| -> Result<Digest> {
            serde_json::from_value(value.clone()).with_context(|| format!("no digest: {run}"))
        };
        let plan = digest(&run["status"]["planDigest"])?;
        let head = digest(&run["status"]["report"]["receiptsHead"])?;
        let verified = verify(lines, &plan, Some(&head)).context("the receipts are broken")?;
        let receipts = verified.receipts.into_iter();
        let acts = receipts.filter_map(|it| match it.event {
            Event::Acted { by, outcome, .. } => Some((by, outcome)),
            _ => None,
        });
        Ok(acts.collect())
    }

    /// SIGKILL for the first process of a container, from outside of it.
    pub fn kill(&self, pod: &Value, container: &str) -> Result<()> {
        let id = container_id(pod, container)?;
        let killed = self.cluster.on_node(&["ctr", "task", "kill", "--signal", "SIGKILL", &id])?;
        let killed = killed.context("a node of ours")?;
        ensure!(killed.success, "{container}: {}", killed.stderr);
        Ok(())
    }
}

/// A pack in the system namespace, removed when it is dropped.
pub struct SystemPack {
    pub name: String,
    kubectl: Kubectl,
}

impl Drop for SystemPack {
    fn drop(&mut self) {
        let _ = self.kubectl.attempt(&["delete", "skillpack", &self.name, "--wait=false"]);
    }
}

/// The status of a condition: `True`, `False`, `Unknown`, or nothing.
pub fn condition(run: &Value, kind: &str) -> String {
    let found = condition_of(run, kind);
    found["status"].as_str().unwrap_or_default().to_owned()
}

/// The status of a container of a pod.
pub fn container_status<'p>(pod: &'p Value, name: &str) -> Option<&'p Value> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists.iter().flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
    all.find(|it| it["name"] == name)
}

/// What the runtime calls a container of a pod.
pub fn container_id(pod: &Value, name: &str) -> Result<String> {
    let id = container_status(pod, name).and_then(|it| it["containerID"].as_str());
    let id = id.with_context(|| format!("there is no container {name}"))?;
    Ok(id.trim_start_matches("containerd://").to_owned())
}

/// Names of the containers of a pod that run.
pub fn running_containers(pod: &Value) -> Vec<String> {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let all = lists.iter().flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
    all.filter(|container| !container["state"]["running"].is_null())
        .filter_map(|container| container["name"].as_str().map(str::to_owned))
        .collect()
}

/// A policy by which a run begins only when its network is held in. Without one it waits ten seconds for that, which
/// may be too short for a busy node.
pub const STRICT: &str = "\n---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: strict}\n\
    spec: {sandboxPolicy: {minimumIsolation: [network]}}\n";

/// Manifests of a run whose model is written down: `turns` is the list of turns in YAML, each line indented by six spaces.
pub fn scripted(run: &str, turns: &str, agent_more: &str, run_more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: script-{run}}}\ndata:\n  turns.yaml: |\n    turns:\n{turns}\n---\n\
         apiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {{name: agent-{run}}}\nspec:\n  agents: {{default: {{model: m}}}}\n{agent_more}\n---\n\
         apiVersion: sympozium.ai/v1alpha1\nkind: AgentRun\nmetadata: {{name: {run}}}\nspec:\n  agentRef: agent-{run}\n  task: Do what the script says.\n  \
         model: {{provider: scripted, model: script-{run}}}\n{run_more}\n"
    )
}

/// Seconds that a command may take at most.
pub const LONGEST: u32 = 120;
/// Commands that wait, one after the other.
const HOLDS: usize = 4;

/// Turns of a run that waits until [`super::rights::let_go`], however slow the machine is: when the time of one command is over, the
/// next waits.
pub fn hold() -> String {
    let all = holds();
    commands(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The commands of [`hold`]. Told apart, so that they do not count as one call that is repeated.
pub fn holds() -> Vec<String> {
    (0..HOLDS).map(|number| format!(": {number}; {HOLD}")).collect()
}

/// Turns that run commands in a skill, one after the other, and then say that all is done.
pub fn commands(commands: &[&str]) -> String {
    let mut turns = String::new();
    for command in commands {
        let arguments = json!({ "command": command, "timeout": LONGEST });
        turns.push_str(&format!("      - call: [{{tool: execute_command, arguments: {arguments}}}]\n"));
    }
    turns.push_str("      - {say: Done., then: end}");
    turns
}

/// A pack with a shell.
pub fn shell_pack(name: &str) -> String {
    format!(
        "\n---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {{name: {name}}}\nspec:\n  \
         skills: [{{name: use, description: Runs commands., content: Use it.}}]\n  \
         sidecar: {{image: \"{IMAGE}\", executor: injected, mountWorkspace: true}}\n"
    )
}
