//! The program in a real cluster, with the rights of its manifests and no more. The test plays the controller, which writes a
//! run's status, the bridge, which has the token of a real pod, and the people who decide.

mod approvals;
mod program;
mod reports;
mod tokens;

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::names::{NamespaceName, RunName};
use sympozium_gateway::rbac;
use sympozium_harness::credential::KEY_FILE;
use sympozium_ipc::receipt::Chain;
use sympozium_ipc::run_api::Report;
use sympozium_plan::render::names::object_name;
use sympozium_testkit::cluster::{Cluster, Kubectl, Namespace, Security, Tier};
use sympozium_testkit::daemon::Daemon;
use sympozium_testkit::{command, wait_until};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::harness::TIMEOUT;
use crate::run_api::{Client, Reporting, code, plan};
use crate::tls::certificate;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sympozium-gateway");
const AUDIENCE: &str = "sympozium-gateway";
const HOST: &str = "sympozium-gateway.sympozium-system.svc";

/// A namespace with an account for the gateway, and its files.
pub struct ClusterHarness {
    admin: Kubectl,
    namespace: Namespace,
    directory: tempfile::TempDir,
    root: CertificateDer<'static>,
}

/// A run, as the controller has it.
pub struct Run {
    pub plan: RunPlan,
    /// The service account of its pod.
    pub account: String,
    pub pod: String,
    pub pod_uid: String,
}

/// Whether an answer is one that another may follow, and there is time for that.
fn is_passing(code: &str, deadline: Instant) -> bool {
    code == "failed" && Instant::now() < deadline
}

/// How a report is answered once it was stored or refused: on a busy machine the gateway does not wait for the API server
/// as long as it takes, and a bridge sends such a report again.
pub async fn reported(bridge: &Client, report: &Report) -> Result<u64, String> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match bridge.report(report).await {
            Err(code) if is_passing(&code, deadline) => {}
            answer => return answer,
        }
    }
}

/// Waits for other programs, and lets the rest of the test go on meanwhile.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

impl ClusterHarness {
    /// `None`, and a recorded skip, where there can be no cluster.
    pub fn open(label: &str) -> Option<Self> {
        blocking(|| Self::find(label))
    }

    fn find(label: &str) -> Option<Self> {
        let cluster = Cluster::shared(Tier::ControlPlane).expect("a cluster, or a reason")?;
        let admin = cluster.kubectl();
        admin.install_kinds().expect("our kinds");

        let namespace = cluster.namespace(label, Security::Privileged).expect("a namespace");
        let name = namespace.name();
        for object in [
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "gateway" } }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": { "name": name }, "rules": rbac::rules(),
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
                "subjects": [{ "kind": "ServiceAccount", "name": "gateway", "namespace": name }],
            }),
        ] {
            namespace.create(&object).expect("created");
        }
        let directory = tempfile::tempdir().expect("a directory");
        let token = namespace.kubectl().run(&["create", "token", "gateway"]).expect("a token");
        let ways = admin.json(&["config", "view", "--raw"]).expect("a kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": ways["clusters"][0]["cluster"] }],
            "users": [{ "name": "c", "user": { "token": token.trim() } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let at = |name: &str| directory.path().join(name);
        fs::write(at("kubeconfig"), config.to_string()).expect("written");
        fs::write(at("keys"), KEY_FILE).expect("written");
        let (root, _, certificate, key) = certificate(&[HOST]);
        fs::write(at("tls.crt"), certificate).expect("written");
        fs::write(at("tls.key"), key).expect("written");
        Some(Self { admin, namespace, directory, root })
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let kubectl = self.namespace.kubectl();
        blocking(|| kubectl.run(arguments)).expect("kubectl")
    }

    pub fn get(&self, kind: &str, name: &str) -> Value {
        let kubectl = self.namespace.kubectl();
        blocking(|| kubectl.json(&["get", kind, name])).expect("an object")
    }

    /// What there is of a kind, by name.
    pub fn list(&self, kind: &str) -> Vec<Value> {
        let kubectl = self.namespace.kubectl();
        let list = blocking(|| kubectl.json(&["get", kind])).expect("a list");
        list["items"].as_array().expect("a list").clone()
    }

    pub fn create(&self, object: &Value) -> Value {
        blocking(|| self.namespace.create(object)).expect("created")
    }

    /// Changes a status, as a user with the right to.
    pub fn set_status(&self, kind: &str, name: &str, status: &Value) {
        let patch = json!({ "status": status }).to_string();
        self.kubectl(&["patch", kind, name, "--subresource=status", "--type=merge", "-p", &patch]);
    }

    /// A run with a plan and a pod that the status does not name yet.
    pub fn run_without_pod(&self, name: &str, change: impl FnOnce(&mut RunPlan)) -> Run {
        let made = self.create(&json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": name }, "spec": { "agentRef": "a", "task": "t" },
        }));
        let uid = made["metadata"]["uid"].as_str().expect("a UID");
        let plan = plan(uid, |plan| {
            plan.run.name = RunName::new(name);
            plan.run.namespace = NamespaceName::new(self.namespace.name());
            change(plan);
        });
        let bytes = String::from_utf8(plan.to_bytes().expect("JSON")).expect("text");
        self.create(&json!({
            "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
            "metadata": { "name": object_name(&plan.run, "plan") }, "data": { "plan.json": bytes },
        }));
        let account = object_name(&plan.run, "pod");
        self.create(&json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account },
        }));
        let (pod, pod_uid) = self.pod_as(name, &account);
        let digest = RunPlan::digest_of(bytes.as_bytes());
        let status = json!({ "phase": "Pending", "planDigest": digest });
        self.set_status("agentrun", name, &status);
        Run { plan, account, pod, pod_uid }
    }

    /// A run that is to be served.
    pub fn run(&self, name: &str, change: impl FnOnce(&mut RunPlan)) -> Run {
        let run = self.run_without_pod(name, change);
        self.has_pod(&run);
        run
    }

    pub fn has_pod(&self, run: &Run) {
        let status = json!({
            "phase": "Running", "podName": run.pod, "podUID": run.pod_uid,
            "startedAt": "2026-01-01T00:00:00Z",
        });
        self.set_status("agentrun", run.plan.run.name.as_str(), &status);
    }

    /// A pod that no node runs, and that is no run's. It has a UID, and tokens can be bound to it.
    pub fn pod(&self, name: &str) -> (String, String) {
        self.pod_as(name, "default")
    }

    fn pod_as(&self, name: &str, account: &str) -> (String, String) {
        let made = self.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "serviceAccountName": account,
                "containers": [{ "name": "c", "image": "example.test/i:1" }],
            },
        }));
        let uid = made["metadata"]["uid"].as_str().expect("a UID");
        (name.to_owned(), uid.to_owned())
    }

    /// A token of a pod with this service account, as the kubelet would ask for it.
    pub fn token(&self, account: &str, pod: (&str, &str), audience: &str) -> String {
        let (pod, uid) = pod;
        let token = self.kubectl(&[
            "create",
            "token",
            account,
            "--bound-object-kind=Pod",
            "--duration=600s",
            &format!("--bound-object-name={pod}"),
            &format!("--bound-object-uid={uid}"),
            &format!("--audience={audience}"),
        ]);
        token.trim().to_owned()
    }

    /// The token of a run's pod.
    pub fn token_of(&self, run: &Run) -> String {
        self.token(&run.account, (&run.pod, &run.pod_uid), AUDIENCE)
    }

    pub fn gateway(&self, label: &str) -> Daemon {
        let gateway = self.unready_gateway(label);
        blocking(|| gateway.wait_for_log("were listed"));
        gateway
    }

    pub fn unready_gateway(&self, label: &str) -> Daemon {
        let at = |name: &str| self.directory.path().join(name);
        let mut program = command(PROGRAM);
        program
            .args(["serve", "--kubernetes", "--dns=127.0.0.1:9"])
            .args(["--listen=127.0.0.1:0", "--probe-listen=127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(at("kubeconfig"))
            .arg("--key-file")
            .arg(at("keys"))
            .arg("--tls-cert")
            .arg(at("tls.crt"))
            .arg("--tls-key")
            .arg(at("tls.key"));
        let gateway = Daemon::start(program, &at(label)).expect("it starts");
        blocking(|| gateway.wait_for_log("listening for probes"));
        gateway
    }

    /// A bridge with this token.
    pub async fn bridge(&self, gateway: &Daemon, token: &str) -> Client {
        let client = self.connect(gateway, &self.root).await.expect("TLS");
        Client::from_stream(client, token).await
    }

    async fn connect(
        &self,
        gateway: &Daemon,
        root: &CertificateDer<'static>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(gateway.address("listening").expect("it listens")).await?;
        let name = ServerName::try_from(HOST).expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// A bridge whose run is served: waits until the gateway knows it. The connection is the run's from the start, so that it
    /// is not cut while the test does something else.
    pub async fn served(&self, gateway: &Daemon, run: &Run) -> Client {
        self.known(gateway, run);
        let token = self.token_of(run);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let bridge = self.bridge(gateway, &token).await;
            let (status, body) = bridge.post("/nothing", &json!({})).await;
            if status == 400 {
                return bridge;
            }
            assert!(is_passing(&code(&body), deadline), "{status} {body}");
        }
    }

    /// How a report is answered once the API server has said whose the token is: on a busy machine the gateway does not wait
    /// for that as long as it takes. Each time with a connection of its own, because one without a credential is cut.
    pub async fn post_report(&self, gateway: &Daemon, token: &str, report: &Report) -> Result<u64, String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.bridge(gateway, token).await.report(report).await {
                Err(code) if is_passing(&code, deadline) => {}
                answer => return answer,
            }
        }
    }

    /// Waits until the gateway serves the run.
    pub fn known(&self, gateway: &Daemon, run: &Run) {
        let uid = run.plan.run.uid.as_str();
        let known = |line: &str| line.contains("a run is served") && line.contains(uid);
        let found = || gateway.log().lines().any(known);
        assert!(blocking(|| wait_until(TIMEOUT, found)), "{}", gateway.log());
    }
}

impl Drop for ClusterHarness {
    fn drop(&mut self) {
        let name = self.namespace.name();
        for kind in ["clusterrolebinding", "clusterrole"] {
            let _ = self.admin.attempt(&["delete", kind, name, "--wait=false"]);
        }
    }
}

impl Run {
    pub fn reports(&self) -> Reporting {
        let bytes = self.plan.to_bytes().expect("JSON");
        Reporting { chain: Chain::new(RunPlan::digest_of(&bytes)), number: 0 }
    }

    /// The name of an object of the run.
    pub fn name(&self, word: &str) -> String {
        object_name(&self.plan.run, word)
    }
}

/// The status and body of a gateway's answer to a probe.
fn probe(gateway: &Daemon, path: &str) -> (u16, String) {
    blocking(|| gateway.ask(path)).expect("it answers")
}
