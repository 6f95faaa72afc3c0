//! The commands on a real API server. Nothing else runs there: the test is the controller and the gateway, and writes what
//! they would write.

mod answered;
mod explained;
mod followed;
mod kept;

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

/// How long something may take to be seen.
const PATIENCE: Duration = Duration::from_secs(120);
/// What stands below a question.
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

/// A namespace of a cluster, and a machine with nothing on it but a kubeconfig.
struct World {
    namespace: Namespace,
    kubectl: Kubectl,
    directory: TempDir,
}

/// A run, as the controller and the gateway have it.
struct Played {
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

impl World {
    /// None, and a recorded skip, where there can be no cluster.
    fn new(label: &str) -> Option<Self> {
        static KINDS: OnceLock<()> = OnceLock::new();
        let cluster = Cluster::shared(Tier::ControlPlane).unwrap()?;
        KINDS.get_or_init(|| install(cluster));
        let namespace = cluster.namespace(label, Security::Restricted).unwrap();
        let kubectl = namespace.kubectl().clone();
        let directory = tempfile::tempdir().unwrap();
        let world = Self { namespace, kubectl, directory };
        fs::write(world.path("files.yaml"), MANIFESTS).unwrap();
        world.write_kubeconfig("kubeconfig", |_| {});
        Some(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A kubeconfig for this namespace, with something changed.
    fn write_kubeconfig(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let view = ["config", "view", "--raw", "--flatten"];
        let mut config = self.kubectl.json(&view).unwrap();
        config["contexts"][0]["context"]["namespace"] = json!(self.namespace.name());
        change(&mut config);
        fs::write(self.path(name), config.to_string()).unwrap();
    }

    /// The same for another person, with these rules in the namespace.
    fn write_person(&self, person: &str, rules: Value) {
        let metadata = json!({"name": person});
        let role =
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules});
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
            "subjects": [{"kind": "User", "name": person, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "Role", "name": person, "apiGroup": "rbac.authorization.k8s.io"},
        });
        self.namespace.create(&role).unwrap();
        self.namespace.create(&binding).unwrap();
        // The API server learns of roles and bindings a moment after they are made.
        if let Some(rule) = rules.get(0) {
            let word = |field: &str| rule[field][0].as_str().unwrap().to_owned();
            let object = format!("{}.{}", word("resources"), word("apiGroups"));
            let (verb, kubectl) = (word("verbs"), self.kubectl.clone().impersonating(person));
            eventually("the rights of the person", PATIENCE, || {
                Ok(kubectl.attempt(&["auth", "can-i", &verb, &object])?.success.then_some(()))
            })
            .unwrap();
        }
        self.write_kubeconfig(person, |config| {
            config["users"][0]["user"]["as"] = json!(person);
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

    /// What a command says to the end.
    fn says(&self, arguments: &[&str]) -> Output {
        let mut program = command(env!("CARGO_BIN_EXE_sympozium"));
        self.prepare(&mut program, arguments);
        program.stdin(Stdio::null()).output().unwrap()
    }

    /// The same for a snapshot, without what is another every time.
    fn shown(&self, arguments: &[&str], played: &Played) -> String {
        self.plain(&crate::shown(&self.says(arguments)), played)
    }

    fn plain(&self, text: &str, played: &Played) -> String {
        text.replace(&played.uid, "UID")
            .replace(&played.uid[..8], "SHORT-UID")
            .replace(self.namespace.name(), "NAMESPACE")
    }

    /// With files in place of a terminal.
    fn piped(&self, arguments: &[&str]) -> Running {
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

    /// On a terminal, as a shell would start it.
    fn on(&self, terminal: &Terminal, arguments: &[&str]) -> Running {
        let mut program = terminal.command(env!("CARGO_BIN_EXE_sympozium")).unwrap();
        self.prepare(&mut program, arguments);
        let child = program.spawn().unwrap();
        Running { child }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The run that was created, once it is there.
    fn created(&self, name: &str) -> Played {
        let run = eventually("the run", PATIENCE, || Ok(Some(self.kubectl.json(&["get", "agentrun", name])?)));
        self.played(&run.unwrap())
    }

    fn played(&self, run: &Value) -> Played {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Played {
            name: text(&run["metadata"]["name"]),
            uid: text(&run["metadata"]["uid"]),
            kubectl: self.kubectl.clone(),
            plan: Digest::from(""),
            chain: Chain::new(Digest::from("")),
            segments: [0, 0],
        }
    }

    /// A run with its agent, applied as anybody would, and planned.
    fn planned(&self) -> Played {
        let file = self.path("files.yaml");
        self.kubectl.run(&["apply", "-f", file.to_str().unwrap()]).unwrap();
        let mut played = self.created("nightly");
        self.plan(&mut played);
        played
    }

    /// What the controller does first: the plan is made and stored, and the run's pod is there.
    fn plan(&self, played: &mut Played) {
        let rendered = self.says(&[
            "render",
            "files.yaml",
            "--run",
            &played.name,
            "--uid",
            &played.uid,
            "-n",
            self.namespace.name(),
            "-o",
            "json",
        ]);
        let objects: Value =
            serde_json::from_slice(&rendered.stdout).unwrap_or_else(|_| panic!("{}", crate::shown(&rendered)));
        let items = objects["items"].as_array().unwrap();
        let is_plan =
            |it: &&Value| it["kind"] == "ConfigMap" && it["metadata"]["labels"]["sympozium.ai/component"] == "plan";
        let plan = items.iter().find(is_plan).unwrap();
        self.namespace.create(plan).unwrap();
        let bytes = plan["data"]["plan.json"].as_str().unwrap();
        played.plan = sympozium_api::RunPlan::digest_of(bytes.as_bytes());
        played.chain = Chain::new(played.plan.clone());
        played.set(json!({
            "phase": "Running", "planDigest": played.plan, "podName": format!("{}-pod", played.name), "podUID": "pod-uid",
            "startedAt": "2027-01-15T08:00:00Z",
        }));
    }
}

impl Played {
    /// Writes status.
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

    /// What the gateway writes of a report: a record of each kind, and the report.
    fn report(&mut self, transcript: &[Value], receipts: Vec<Event>, phase: &str) {
        let said: Vec<String> = transcript.iter().map(Value::to_string).collect();
        if !said.is_empty() {
            self.record("transcript", 1, &said, None, None);
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

    fn record(&mut self, kind: &str, place: usize, lines: &[String], previous: Option<Digest>, first: Option<u64>) {
        let segment = self.segments[place];
        self.segments[place] += 1;
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

    /// A question, as the gateway puts it.
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

    /// What was decided, once something was.
    fn decided(&self, approval: &str) -> Value {
        let name = format!("toolapproval/{}", self.object(approval));
        let decided = eventually("a decision", PATIENCE, || {
            let status = self.kubectl.json(&["get", &name])?["status"].take();
            Ok((!status["decision"].is_null()).then_some(status))
        });
        decided.unwrap()
    }

    /// The end, with nothing left.
    fn end(&self, mut status: Value) {
        status["completedAt"] = json!("2027-01-15T08:05:00Z");
        status["revocation"] = json!({"checkedAt": "2027-01-15T08:05:01Z"});
        self.set(status);
    }
}

impl Running {
    fn ended(&mut self) -> i32 {
        let ended = eventually("the command to end", PATIENCE, || Ok(self.child.try_wait()?));
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

/// Our kinds, as the program prints them.
fn install(cluster: &Cluster) {
    let kinds = crate::sympozium(&["crds", "-o", "json"]);
    let kinds: Value = serde_json::from_slice(&kinds.stdout).unwrap();
    let kubectl = cluster.kubectl();
    let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let applied = kubectl.feed(&arguments, &kinds).unwrap();
    assert!(applied.success, "{}", applied.stderr);
    // Ours, by name: kinds of other tests come and go.
    let served = kubectl.feed(&["wait", "--for=condition=Established", "--timeout=180s", "-f", "-"], &kinds).unwrap();
    assert!(served.success, "{}", served.stderr);
}

fn digest(letter: char) -> Digest {
    Digest::from(format!("sha256:{}", letter.to_string().repeat(64)).as_str())
}

/// A command that a skill ran.
fn acted(call: u64) -> Vec<Event> {
    let arguments = digest('a');
    let called = json!({"kind": "called", "call": call, "tool": "execute_command", "pack": "shell",
        "arguments": arguments, "gate": "allow", "decided": "allowed"});
    let acted = json!({"kind": "acted", "call": call, "by": "skill", "action": digest('b'),
        "outcome": {"is": "exited", "code": 0}, "output": {"bytes": 3, "truncated": false}, "durationMs": 12});
    [called, acted].into_iter().map(|it| serde_json::from_value(it).unwrap()).collect()
}

/// A request to the model.
fn modelled(request: u64) -> Event {
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

fn over() -> Event {
    Event::Ended { outcome: Outcome::Done, result: None }
}
