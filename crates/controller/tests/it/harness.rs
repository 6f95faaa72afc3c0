//! A system namespace for one test, and controllers in it.
//!
//! Each controller acts in the place of a ServiceAccount that has exactly `rights`, so a call that they forgot fails here, and
//! the audit log tells its calls from everybody else's.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sympozium_controller::permissions;
use sympozium_testkit::cluster::{Cluster, KUBECONFIG_VARIABLE, Kubectl, Namespace, Security, Tier, eventually};
use sympozium_testkit::command;

/// How long a busy machine may take for anything.
pub const TIMEOUT: Duration = Duration::from_secs(180);

const PROGRAM: &str = env!("CARGO_BIN_EXE_sympozium-controller");

/// Held by every test: those that count all writes of a controller have it alone.
static EXCLUSIVITY_LOCK: RwLock<()> = RwLock::new(());

/// Waits until something holds. Asking costs a connection or a process, so it is not asked as often as memory would be.
pub fn wait_until_true(mut condition: impl FnMut() -> bool) -> bool {
    eventually("a condition", TIMEOUT, || Ok(condition().then_some(()))).is_ok()
}

pub enum Exclusivity {
    Shared(#[expect(dead_code, reason = "held for its drop")] RwLockReadGuard<'static, ()>),
    Exclusive(#[expect(dead_code, reason = "held for its drop")] RwLockWriteGuard<'static, ()>),
}

impl Exclusivity {
    pub fn shared() -> Self {
        Self::Shared(EXCLUSIVITY_LOCK.read())
    }

    pub fn exclusive() -> Self {
        Self::Exclusive(EXCLUSIVITY_LOCK.write())
    }
}

pub struct Harness {
    pub cluster: &'static Cluster,
    pub system: Namespace,
    kubeconfig: tempfile::TempDir,
    _exclusivity: Exclusivity,
}

impl Harness {
    /// `None` where this machine can have no cluster.
    pub fn new(label: &str, company: Exclusivity) -> Option<Self> {
        let cluster = cluster()?;
        let system = cluster.namespace(label, Security::Restricted).expect("a namespace");
        let world =
            Self { cluster, system, kubeconfig: tempfile::tempdir().expect("a directory"), _exclusivity: company };
        world.grant();
        world.write_kubeconfig();
        Some(world)
    }

    /// The account that controllers of this test act as.
    pub fn account(&self) -> String {
        format!("system:serviceaccount:{}:sympozium-controller", self.system.name())
    }

    fn grant(&self) {
        let system = self.system.name();
        let subject = json!([{"kind": "ServiceAccount", "name": "sympozium-controller", "namespace": system}]);
        let admin = self.cluster.kubectl();
        let places = [
            (None, "cluster", permissions::rules()),
            (Some(system), "system", permissions::system_namespace_rules()),
            (Some("default"), "default", permissions::default_namespace_rules()),
        ];
        for (namespace, word, rules) in &places {
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
        // The API server learns of roles and bindings a moment after they are made. What it refuses until then would look like a right
        // that is missing.
        let account = admin.clone().impersonating(&self.account());
        for (namespace, _, rules) in &places {
            let rule = rules.first().expect("a rule");
            let first = |words: &Option<Vec<String>>| words.iter().flatten().next().cloned().unwrap_or_default();
            let (group, resource, name) =
                (first(&rule.api_groups), first(&rule.resources), first(&rule.resource_names));
            let mut object = if group.is_empty() { resource } else { format!("{resource}.{group}") };
            if !name.is_empty() {
                object = format!("{object}/{name}");
            }
            let namespace = format!("--namespace={}", namespace.unwrap_or("default"));
            let ask = ["auth", "can-i", &rule.verbs[0], &object, &namespace];
            assert!(wait_until_true(|| account.attempt(&ask).is_ok_and(|it| it.success)), "it may not {ask:?}");
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
        self.kubeconfig.path().join("config")
    }

    /// Starts a controller; its probes answer.
    pub fn start(&self) -> Program {
        Program::start(&self.kubeconfig(), &["--system-namespace", self.system.name()])
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

/// A cluster that only these tests have, with our kinds in it: a controller works on a whole cluster, and does something about
/// the objects of any other test there. One that is given is used as it is.
pub fn cluster() -> Option<&'static Cluster> {
    static FOUND: OnceLock<Option<&'static Cluster>> = OnceLock::new();
    let find = || match std::env::var_os(KUBECONFIG_VARIABLE) {
        Some(_) => Cluster::shared(Tier::ControlPlane).expect("a cluster"),
        None => {
            let own = Cluster::apart(Tier::ControlPlane, "controller").expect("a cluster");
            own.map(|it| &*Box::leak(Box::new(it)))
        }
    };
    let mut is_first = false;
    let found = *FOUND.get_or_init(|| {
        is_first = true;
        find().inspect(|it| install_kinds(&it.kubectl()))
    });
    if found.is_none() && !is_first {
        // Recorded for each test, not only for the one that tried first.
        find();
    }
    found
}

fn install_kinds(kubectl: &Kubectl) {
    let kinds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/crds");
    let kinds = kinds.to_string_lossy();
    kubectl.run(&["apply", "--server-side", "--force-conflicts", "-f", &kinds]).expect("kinds");
    kubectl.run(&["wait", "--for=condition=Established", "--timeout=180s", "-f", &kinds]).expect("served kinds");
}

pub struct Program {
    child: Child,
    log: tempfile::NamedTempFile,
    address: String,
}

impl Program {
    fn start(kubeconfig: &Path, more: &[&str]) -> Self {
        let log = tempfile::NamedTempFile::new().expect("a log");
        let child = command(PROGRAM)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--probe-listen=127.0.0.1:0", "--log-format=json"])
            .args(more)
            .stdin(Stdio::null())
            .stderr(Stdio::from(log.reopen().expect("a log")))
            .spawn()
            .expect("it starts");
        let mut program = Self { child, log, address: String::new() };
        let mut address = None;
        let listens = wait_until_true(|| {
            address = program.listen_address();
            address.is_some()
        });
        assert!(listens, "it does not listen: {}", program.log());
        program.address = address.expect("an address");
        program
    }

    /// Where its probes answer, once the whole line that says so is in the log.
    fn listen_address(&self) -> Option<String> {
        self.log().lines().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "listening for probes").then_some(())?;
            Some(line["address"].as_str()?.to_owned())
        })
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log.path()).expect("a log")
    }

    pub fn wait_for_log(&self, words: &str) {
        let there = wait_until_true(|| self.log().contains(words));
        assert!(there, "no {words:?} in {}", self.log());
    }

    /// Status line and body.
    pub fn get(&self, path: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.lines().next()?.to_owned(), body.to_owned()))
    }

    pub fn wait_for(&self, path: &str, body: &str) {
        let mut last = None;
        let there = wait_until_true(|| {
            last = self.get(path);
            last.as_ref().is_some_and(|(_, found)| found == body)
        });
        assert!(there, "{path} is {last:?}, log: {}", self.log());
    }

    /// The value of a metric, with its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        let line = text.lines().find_map(|line| {
            line.strip_prefix("sympozium_controller_")?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned)
        })?;
        line.parse().ok()
    }

    pub fn wait_for_metric(&self, name: &str, is_right: impl Fn(f64) -> bool) {
        let there = wait_until_true(|| self.metric(name).is_some_and(&is_right));
        assert!(there, "{name} is {:?}, log: {}", self.metric(name), self.log());
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it lives");
    }

    pub fn wait(mut self) -> (ExitStatus, String) {
        let mut status = None;
        let ended = wait_until_true(|| {
            status = self.child.try_wait().expect("a child of ours");
            status.is_some()
        });
        assert!(ended, "it does not end: {}", self.log());
        (status.expect("it ended"), self.log())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The API server's answers are in it: what a call lacked in rights shows here.
        if !std::thread::panicking() {
            let log = fs::read_to_string(self.log.path()).unwrap_or_default();
            // Not a right: nobody may create anything in a namespace that is going, and other tests' namespaces go.
            let is_lack = |line: &str| line.contains("forbidden") && !line.contains("it is being terminated");
            assert!(!log.lines().any(is_lack), "a right is missing: {log}");
        }
    }
}
