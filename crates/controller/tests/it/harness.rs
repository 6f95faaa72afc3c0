//! A system namespace for one test, and controllers in it.
//!
//! Each controller acts as a ServiceAccount that has exactly the permissions of its manifests, so that a call which they forgot
//! fails here, and the audit log tells its calls from all others.

use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use sympozium_controller::permissions;
use sympozium_testkit::cluster::{Cluster, Exclusivity, Kubectl, Namespace, Security, eventually};
use sympozium_testkit::command;
use sympozium_testkit::daemon::Daemon;

/// How long a busy machine may take for anything.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Waits until something holds. Asking costs a connection or a process, so it is not asked as often as memory would be.
pub fn wait_until_true(mut condition: impl FnMut() -> bool) -> bool {
    eventually("a condition", TIMEOUT, || Ok(condition().then_some(()))).is_ok()
}

pub struct Harness {
    pub cluster: &'static Cluster,
    pub system: Namespace,
    directory: tempfile::TempDir,
    _exclusivity: Exclusivity,
}

impl Harness {
    /// `None` where this machine can have no cluster.
    pub fn new(label: &str, exclusivity: Exclusivity) -> Option<Self> {
        let cluster = cluster()?;
        let system = cluster.namespace(label, Security::Restricted).expect("a namespace");
        let directory = tempfile::tempdir().expect("a directory");
        let harness = Self { cluster, system, directory, _exclusivity: exclusivity };
        harness.grant();
        harness.write_kubeconfig();
        Some(harness)
    }

    /// The account that controllers of this test act as.
    pub fn account(&self) -> String {
        format!("system:serviceaccount:{}:sympozium-controller", self.system.name())
    }

    fn grant(&self) {
        let system = self.system.name();
        let subject = json!([{"kind": "ServiceAccount", "name": "sympozium-controller", "namespace": system}]);
        let admin = self.cluster.kubectl();
        let grants = [
            (None, "cluster", permissions::rules()),
            (Some(system), "system", permissions::system_namespace_rules()),
            (Some("default"), "default", permissions::default_namespace_rules()),
        ];
        for (namespace, word, rules) in &grants {
            let name = format!("{system}-{word}");
            let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
            let metadata = json!({"name": name, "namespace": namespace});
            let api = "rbac.authorization.k8s.io";
            let role = json!({"apiVersion": format!("{api}/v1"), "kind": kind, "metadata": metadata, "rules": rules});
            admin.create(&role).expect("a role");
            let binding = json!({
                "apiVersion": format!("{api}/v1"), "kind": format!("{kind}Binding"), "metadata": metadata,
                "roleRef": {"apiGroup": api, "kind": kind, "name": name}, "subjects": subject,
            });
            admin.create(&binding).expect("a binding");
        }
        // What the API server refuses until it knows of them would look like a permission that is missing.
        let account = admin.clone().impersonating(&self.account());
        for (namespace, _, rules) in &grants {
            let rule = rules.first().expect("a rule");
            let first = |words: &Option<Vec<String>>| words.iter().flatten().next().cloned().unwrap_or_default();
            let (group, resource, name) =
                (first(&rule.api_groups), first(&rule.resources), first(&rule.resource_names));
            let mut object = if group.is_empty() { resource } else { format!("{resource}.{group}") };
            if !name.is_empty() {
                object = format!("{object}/{name}");
            }
            let namespace = format!("--namespace={}", namespace.unwrap_or("default"));
            account.wait_for_permission(&[&rule.verbs[0], &object, &namespace]).expect("it is permitted");
        }
    }

    fn write_kubeconfig(&self) {
        let text = self.cluster.kubectl().run(&["config", "view", "--raw", "-o", "json"]);
        let mut config: Value = serde_json::from_str(&text.expect("a kubeconfig")).expect("JSON");
        let users = config["users"].as_array_mut().expect("users");
        for user in users {
            user["user"]["as"] = json!(self.account());
        }
        fs::write(self.kubeconfig(), config.to_string()).expect("a file");
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("config")
    }

    /// Starts a controller; its probes answer.
    pub fn start(&self) -> Program {
        let mut controller = command(env!("CARGO_BIN_EXE_sympozium-controller"));
        controller
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["--probe-listen=127.0.0.1:0", "--log-format=json"])
            .args(["--system-namespace", self.system.name()]);
        let log = tempfile::NamedTempFile::new().expect("a log");
        let daemon = Daemon::start(controller, log.path()).expect("it starts");
        daemon.wait_for_log("listening for probes");
        Program { daemon, _log: log }
    }

    /// Starts one, and waits until it leads.
    pub fn start_leader(&self) -> Program {
        let program = self.start();
        program.wait_for("/readyz", "ok: leader\n");
        program
    }

    pub fn holder(&self) -> Option<String> {
        let lease = self.system.kubectl().json(&["get", "lease", "sympozium-controller"]);
        let lease = lease.expect("a Lease");
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    /// Asks `kubectl get` for an object until it is as it should be.
    pub fn wait_for(&self, kubectl: &Kubectl, object: &[&str], is_right: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = eventually("an object to be right", TIMEOUT, || {
            last = kubectl.json(&[&["get"], object].concat())?;
            Ok(is_right(&last).then(|| last.clone()))
        });
        found.unwrap_or_else(|error| panic!("{object:?}: {error:#}\nlast: {last:#}"))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // What is not in the namespace of the test.
        let system = self.system.name();
        let admin = self.cluster.kubectl();
        let cluster = format!("{system}-cluster");
        let default = format!("{system}-default");
        let _ = admin.attempt(&["delete", "clusterrole,clusterrolebinding", &cluster]);
        let _ = admin.attempt(&["delete", "role,rolebinding", &default, "--namespace=default"]);
    }
}

/// A cluster that only these tests have, with our kinds in it. One that is given is used as it is.
pub fn cluster() -> Option<&'static Cluster> {
    Cluster::with_kinds("controller").expect("a cluster")
}

/// A controller that runs.
pub struct Program {
    daemon: Daemon,
    _log: tempfile::NamedTempFile,
}

impl Program {
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    pub fn wait_for_log(&self, text: &str) {
        self.daemon.wait_for_log(text);
    }

    /// Waits until a probe answers with this body.
    pub fn wait_for(&self, path: &str, body: &str) {
        let mut last = None;
        let answered = wait_until_true(|| {
            last = self.daemon.ask(path);
            last.as_ref().is_some_and(|(_, found)| found == body)
        });
        assert!(answered, "{path} is {last:?}, log: {}", self.log());
    }

    /// The value of a metric, with its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.daemon.ask("/metrics")?;
        let line = text.lines().find_map(|line| {
            line.strip_prefix("sympozium_controller_")?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned)
        })?;
        line.parse().ok()
    }

    pub fn wait_for_metric(&self, name: &str, is_right: impl Fn(f64) -> bool) {
        let is_there = wait_until_true(|| self.metric(name).is_some_and(&is_right));
        assert!(is_there, "{name} is {:?}, log: {}", self.metric(name), self.log());
    }

    pub fn signal(&self, signal: Signal) {
        self.daemon.signal(signal).expect("it lives");
    }

    /// Waits until it ends by itself, and returns its log as well.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = self.daemon.wait();
        (status.unwrap_or_else(|| panic!("it does not end: {}", self.log())), self.log())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The API server's answers are in it: what a call lacked in permissions shows here.
        if !std::thread::panicking() {
            let log = self.log();
            // No object can be created in a namespace that is being deleted, and those of other tests are.
            let is_lack = |line: &str| line.contains("forbidden") && !line.contains("it is being terminated");
            assert!(!log.lines().any(is_lack), "a permission is missing: {log}");
        }
    }
}
