//! The commands on a real API server. No controller and no gateway run there: the test writes their objects and status.

mod answered;
mod explained;
mod followed;
mod stored;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use sympozium_api::names::Digest;
use sympozium_ipc::receipt::{Chain, Event, Outcome};
use sympozium_testkit::cluster::{Cluster, Kubectl, Namespace, Security, Tier, eventually};
use sympozium_testkit::command;
use sympozium_testkit::terminal::Terminal;
use tempfile::TempDir;

/// The timeout of waits.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A choice below each question.
const PROMPT: &str = "[s]how again";

/// The agent and the run of every test.
const MANIFESTS: &str = r"
apiVersion: sympozium.ai/v1alpha1
kind: SympoziumPolicy
metadata: {name: asking}
spec:
  approvalPolicy: {allowRunScope: true}
  toolGating: {defaultAction: allow, rules: [{tool: execute_command, action: ask}]}
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: worker}
spec:
  agents: {default: {model: unused}}
  policyRef: asking
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {OPENAI_API_KEY: very-secret}
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: nightly}
spec:
  agentRef: worker
  task: Look around.
  model: {provider: openai, model: gpt-4o, authSecretRef: key}
";

/// A namespace of a cluster, and a directory with only a kubeconfig and manifests.
struct Harness {
    namespace: Namespace,
    kubectl: Kubectl,
    directory: TempDir,
}

/// A run whose controller and gateway are the test.
struct SimulatedRun {
    name: String,
    uid: String,
    kubectl: Kubectl,
    plan: Digest,
    chain: Chain,
    segments: [usize; 2],
}

/// A command that was started.
struct Running {
    child: Child,
}

impl Harness {
    /// `None`, with a recorded skip, where there can be no cluster.
    fn new(label: &str) -> Option<Self> {
        static KINDS: OnceLock<()> = OnceLock::new();
        let cluster = Cluster::shared(Tier::ControlPlane).unwrap()?;
        KINDS.get_or_init(|| install(cluster));
        let namespace = cluster.namespace(label, Security::Restricted).unwrap();
        let kubectl = namespace.kubectl().clone();
        let directory = tempfile::tempdir().unwrap();
        let harness = Self { namespace, kubectl, directory };
        fs::write(harness.path("files.yaml"), MANIFESTS).unwrap();
        harness.write_kubeconfig("kubeconfig", |_| {});
        Some(harness)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A kubeconfig for this namespace, after a change.
    fn write_kubeconfig(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let view = ["config", "view", "--raw", "--flatten"];
        let mut config = self.kubectl.json(&view).unwrap();
        config["contexts"][0]["context"]["namespace"] = json!(self.namespace.name());
        change(&mut config);
        fs::write(self.path(name), config.to_string()).unwrap();
    }

    /// A kubeconfig for another user, with these RBAC rules in the namespace.
    fn write_user(&self, user: &str, rules: Value) {
        let metadata = json!({"name": user});
        let role =
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules});
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "Role", "name": user, "apiGroup": "rbac.authorization.k8s.io"},
        });
        self.namespace.create(&role).unwrap();
        self.namespace.create(&binding).unwrap();
        // The API server uses new Roles and RoleBindings after a delay.
        if let Some(rule) = rules.get(0) {
            let word = |field: &str| rule[field][0].as_str().unwrap().to_owned();
            let object = format!("{}.{}", word("resources"), word("apiGroups"));
            let (verb, kubectl) = (word("verbs"), self.kubectl.clone().impersonating(user));
            eventually("the permissions of the user", TIMEOUT, || {
                Ok(kubectl.attempt(&["auth", "can-i", &verb, &object])?.success.then_some(()))
            })
            .unwrap();
        }
        self.write_kubeconfig(user, |config| {
            config["users"][0]["user"]["as"] = json!(user);
        });
    }

    fn prepare(&self, program: &mut Command, arguments: &[&str]) {
        program
            .args(arguments)
            .current_dir(self.directory.path())
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env("SYMPOZIUM_STATE", self.path("state"))
            .env("SYMPOZIUM_CONFIG", self.path("config"))
            .env_remove("SYMPOZIUM_CONTEXT")
            .env_remove("SYMPOZIUM_NAMESPACE");
    }

    /// Runs a command to its end.
    fn sympozium(&self, arguments: &[&str]) -> Output {
        let mut program = command(env!("CARGO_BIN_EXE_sympozium"));
        self.prepare(&mut program, arguments);
        program.stdin(Stdio::null()).output().unwrap()
    }

    /// The same as text for a comparison, with varying parts replaced.
    fn snapshot(&self, arguments: &[&str], simulated: &SimulatedRun) -> String {
        self.redact(&crate::format_output(&self.sympozium(arguments)), simulated)
    }

    fn redact(&self, text: &str, simulated: &SimulatedRun) -> String {
        text.replace(&simulated.uid, "UID")
            .replace(&simulated.uid[..8], "SHORT-UID")
            .replace(self.namespace.name(), "NAMESPACE")
    }

    /// Starts a command with files instead of a terminal.
    fn spawn_piped(&self, arguments: &[&str]) -> Running {
        let mut program = command(env!("CARGO_BIN_EXE_sympozium"));
        self.prepare(&mut program, arguments);
        let child = program
            .stdin(Stdio::null())
            .stdout(File::create(self.path("stdout")).unwrap())
            .stderr(File::create(self.path("stderr")).unwrap())
            .spawn()
            .unwrap();
        Running { child }
    }

    /// Starts a command on a terminal, as a shell would.
    fn spawn_on(&self, terminal: &Terminal, arguments: &[&str]) -> Running {
        let mut program = terminal.command(env!("CARGO_BIN_EXE_sympozium")).unwrap();
        self.prepare(&mut program, arguments);
        let child = program.spawn().unwrap();
        Running { child }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Waits for a run to be created.
    fn created(&self, name: &str) -> SimulatedRun {
        let run = eventually("the run", TIMEOUT, || Ok(Some(self.kubectl.json(&["get", "agentrun", name])?)));
        self.simulate(&run.unwrap())
    }

    fn simulate(&self, run: &Value) -> SimulatedRun {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        SimulatedRun {
            name: text(&run["metadata"]["name"]),
            uid: text(&run["metadata"]["uid"]),
            kubectl: self.kubectl.clone(),
            plan: Digest::from(""),
            chain: Chain::new(Digest::from("")),
            segments: [0, 0],
        }
    }

    /// Applies a run with its agent, and plans it.
    fn planned(&self) -> SimulatedRun {
        let file = self.path("files.yaml");
        self.kubectl.run(&["apply", "-f", file.to_str().unwrap()]).unwrap();
        let mut simulated = self.created("nightly");
        self.plan(&mut simulated);
        simulated
    }

    /// Plays the controller up to the start of the pod: stores the plan, and sets the status.
    fn plan(&self, simulated: &mut SimulatedRun) {
        let rendered = self.sympozium(&[
            "render",
            "files.yaml",
            "--run",
            &simulated.name,
            "--uid",
            &simulated.uid,
            "-n",
            self.namespace.name(),
            "-o",
            "json",
        ]);
        let objects: Value =
            serde_json::from_slice(&rendered.stdout).unwrap_or_else(|_| panic!("{}", crate::format_output(&rendered)));
        let items = objects["items"].as_array().unwrap();
        let is_plan =
            |it: &&Value| it["kind"] == "ConfigMap" && it["metadata"]["labels"]["sympozium.ai/component"] == "plan";
        let plan = items.iter().find(is_plan).unwrap();
        self.namespace.create(plan).unwrap();
        let bytes = plan["data"]["plan.json"].as_str().unwrap();
        simulated.plan = sympozium_api::RunPlan::digest_of(bytes.as_bytes());
        simulated.chain = Chain::new(simulated.plan.clone());
        simulated.set(json!({
            "phase": "Running", "planDigest": simulated.plan, "podName": format!("{}-pod", simulated.name), "podUID": "pod-uid",
            "startedAt": "2027-01-15T08:00:00Z",
        }));
    }
}

impl SimulatedRun {
    /// Writes the status.
    fn set(&self, status: Value) {
        let patch = json!({"status": status}).to_string();
        let name = format!("agentrun/{}", self.name);
        let arguments = ["patch", &name, "--subresource=status", "--type=merge", "-p", &patch];
        self.kubectl.run(&arguments).unwrap();
    }

    fn object(&self, word: &str) -> String {
        format!("{}-{}-{word}", self.name, self.uid.replace('-', ""))
    }

    fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "labels": {"sympozium.ai/run-uid": self.uid, "sympozium.ai/agent-run": self.name}})
    }

    /// Plays the gateway for one report: writes a record of each kind, and the report.
    fn report(&mut self, transcript: &[Value], receipts: Vec<Event>, phase: &str) {
        let transcript: Vec<String> = transcript.iter().map(Value::to_string).collect();
        if !transcript.is_empty() {
            self.record("transcript", 1, &transcript, None, None);
        }
        let previous = (!self.chain.is_empty()).then(|| self.chain.head().clone());
        let first = self.chain.len();
        let lines = receipts.into_iter();
        let lines: Vec<String> = lines.map(|it| self.chain.add(1, it).unwrap().text).collect();
        if !lines.is_empty() {
            self.record("receipts", 0, &lines, previous, Some(first));
        }
        self.set(json!({"report": {
            "reportedAt": "2027-01-15T08:00:00Z", "phase": phase, "receipts": self.chain.len(),
            "receiptsHead": self.chain.head(), "receiptSegments": self.segments[0],
            "transcriptSegments": self.segments[1],
            "tokenUsage": {"inputTokens": 30, "outputTokens": 4, "totalTokens": 34, "toolCalls": 1, "durationMs": 5},
        }}));
    }

    fn record(&mut self, kind: &str, index: usize, lines: &[String], previous: Option<Digest>, first: Option<u64>) {
        let segment = self.segments[index];
        self.segments[index] += 1;
        let previous = match (kind, segment) {
            (_, 0) => None,
            ("transcript", _) => Some(self.plan.clone()),
            _ => previous,
        };
        let head = match kind {
            "transcript" => self.plan.clone(),
            _ => self.chain.head().clone(),
        };
        let name = self.object(&format!("{}{segment}", &kind[..1]));
        let mut record = json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "RunRecord", "metadata": self.metadata(&name),
            "spec": {
                "run": {"name": self.name, "uid": self.uid}, "kind": kind, "segment": segment,
                "firstLine": first.unwrap_or(segment as u64), "lines": lines, "head": head,
            },
        });
        if let Some(previous) = previous {
            record["spec"]["previousHead"] = json!(previous);
        }
        self.kubectl.create(&record).unwrap();
    }

    /// Creates a question as the gateway does.
    fn ask(&self, approval: &str, action: &Digest, summary: &str) {
        self.kubectl
            .create(&json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "ToolApproval",
                "metadata": self.metadata(&self.object(approval)),
                "spec": {
                    "run": {"name": self.name, "uid": self.uid}, "tool": "execute_command", "pack": "shell",
                    "actionHash": action, "summary": summary, "requestedAt": "2026-01-01T00:00:00Z",
                    "expiresAt": "2126-01-01T00:00:00Z",
                },
            }))
            .unwrap();
    }

    /// Waits for the decision of a question.
    fn decided(&self, approval: &str) -> Value {
        let name = format!("toolapproval/{}", self.object(approval));
        let decided = eventually("a decision", TIMEOUT, || {
            let status = self.kubectl.json(&["get", &name])?["status"].take();
            Ok((!status["decision"].is_null()).then_some(status))
        });
        decided.unwrap()
    }

    /// Ends the run, with a verified teardown.
    fn end(&self, mut status: Value) {
        status["completedAt"] = json!("2027-01-15T08:05:00Z");
        status["revocation"] = json!({"checkedAt": "2027-01-15T08:05:01Z"});
        self.set(status);
    }
}

impl Running {
    fn wait(&mut self) -> i32 {
        let ended = eventually("the command to end", TIMEOUT, || Ok(self.child.try_wait()?));
        match ended {
            Ok(status) => status.code().unwrap(),
            Err(error) => {
                let _ = self.child.kill();
                panic!("{error:#}");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Installs the CustomResourceDefinitions that the program prints.
fn install(cluster: &Cluster) {
    let kinds = crate::sympozium(&["crds", "-o", "json"]);
    let kinds: Value = serde_json::from_slice(&kinds.stdout).unwrap();
    let kubectl = cluster.kubectl();
    let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let applied = kubectl.feed(&arguments, &kinds).unwrap();
    assert!(applied.success, "{}", applied.stderr);
    // By name: other tests create and delete other kinds.
    let served = kubectl.feed(&["wait", "--for=condition=Established", "--timeout=180s", "-f", "-"], &kinds).unwrap();
    assert!(served.success, "{}", served.stderr);
}

fn digest(letter: char) -> Digest {
    Digest::from(format!("sha256:{}", letter.to_string().repeat(64)).as_str())
}

/// The receipts of a command that a skill ran.
fn command_receipts(call: u64) -> Vec<Event> {
    let arguments = digest('a');
    let called = json!({"kind": "called", "call": call, "tool": "execute_command", "pack": "shell",
        "arguments": arguments, "gate": "allow", "decided": "allowed"});
    let acted = json!({"kind": "acted", "call": call, "by": "skill", "action": digest('b'),
        "outcome": {"is": "exited", "code": 0}, "output": {"bytes": 3, "truncated": false}, "durationMs": 12});
    [called, acted].into_iter().map(|it| serde_json::from_value(it).unwrap()).collect()
}

/// The receipt of a request to the model.
fn model_receipt(request: u64) -> Event {
    Event::Model {
        request,
        status: Some(200),
        sent_bytes: 10,
        received_bytes: 10,
        input_tokens: Some(30),
        output_tokens: Some(4),
        duration_ms: 100,
        error: None,
    }
}

fn end_receipt() -> Event {
    Event::Ended { outcome: Outcome::Done, result: None }
}
