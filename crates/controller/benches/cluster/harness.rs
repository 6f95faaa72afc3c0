//! A control plane of its own, the controller beside it, and the play around it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use sympozium_api::{AgentRun, installation, labels};
use sympozium_testkit::cluster::played::Played;
use sympozium_testkit::cluster::samples::around;
use sympozium_testkit::cluster::{Cluster, Kubectl, Namespace, Security, Tier};
use sympozium_testkit::daemon::{Daemon, free_address};
use sympozium_testkit::{static_build, wait_until};
use tempfile::TempDir;

use crate::run_observer::RunObserver;

/// How long anything here may take before it counts as broken.
pub const TIMEOUT: Duration = Duration::from_secs(600);
/// More finished runs of an agent than any measurement makes: none is removed while we look.
const HISTORY_LIMIT: &str = "1000000";

/// Where it is measured.
pub struct Harness {
    pub cluster: Cluster,
    pub client: Client,
    pub played: Played,
    pub sight: RunObserver,
    pub namespace: Namespace,
    controller: Option<Daemon>,
    folder: TempDir,
    starts: usize,
}

impl Harness {
    pub async fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let cluster =
            Cluster::apart(Tier::ControlPlane, "bench").expect("a cluster").expect("this machine can have one");
        let kubectl = cluster.kubectl();
        install(&kubectl);
        let namespace = cluster.namespace("bench", Security::Restricted).expect("a namespace");
        for object in around(namespace.name()) {
            apply(&kubectl, &object);
        }
        let client = client(&cluster).await;
        let mut ground = Self {
            played: Played::begin(client.clone()).await.expect("a play"),
            sight: RunObserver::start(client.clone()),
            client,
            cluster,
            namespace,
            controller: None,
            folder: tempfile::tempdir().expect("a folder"),
            starts: 0,
        };
        let straight = ground.cluster.kubeconfig().to_owned();
        ground.start(straight).await;
        ground
    }

    pub fn runs(&self) -> Api<AgentRun> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    /// Creates a run and gives its UID.
    pub async fn create(&self, run: Value) -> String {
        let run: AgentRun = serde_json::from_value(run).expect("a run");
        let created = self.runs().create(&PostParams::default(), &run).await;
        created.expect("the run is created").uid().unwrap_or_default()
    }

    pub fn controller(&self) -> &Daemon {
        self.controller.as_ref().expect("there is one")
    }

    pub fn kill(&mut self) {
        let controller = self.controller.take().expect("there is one");
        controller.kill().expect("killed");
    }

    /// Starts the controller and gives how long it took until it was ready.
    pub async fn start(&mut self, kubeconfig: PathBuf) -> Duration {
        // The one that was killed holds it, and how long that counts is not what is measured.
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), labels::SYSTEM_NAMESPACE);
        let _ = leases.delete(installation::CONTROLLER, &DeleteParams::default()).await;
        self.starts += 1;
        let log = self.folder.path().join(format!("log-{}", self.starts));
        let probes = free_address().expect("an address");
        let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_sympozium-controller"));
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--probe-listen", &probes.to_string()])
            .args(["--gateway-address", "198.51.100.200"])
            .args(["--history", HISTORY_LIMIT]);
        let started = Instant::now();
        let daemon = Daemon::start(command, probes, &log).expect("the controller starts");
        let leads = || {
            let answer = daemon.ask("/readyz");
            answer.is_some_and(|(status, body)| status == 200 && body.contains("leader"))
        };
        let ready = tokio::task::block_in_place(|| wait_until(TIMEOUT, leads));
        let took = started.elapsed();
        assert!(ready, "it is not ready:\n{}", daemon.log_tail());
        self.controller = Some(daemon);
        took
    }
}

async fn client(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.expect("a configuration")).expect("a client")
}

/// The kinds and the system namespace.
fn install(kubectl: &Kubectl) {
    let kinds = static_build::workspace_root().join("config/crds");
    let kinds = kinds.to_str().expect("a path of letters");
    for call in [
        ["apply", "--server-side", "-f", kinds].as_slice(),
        &["wait", "--for=condition=Established", "--timeout=60s", "-f", kinds],
    ] {
        kubectl.run(call).expect("the kinds are served");
    }
    let name = labels::SYSTEM_NAMESPACE;
    apply(kubectl, &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
}

fn apply(kubectl: &Kubectl, object: &Value) {
    let call = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let printed = kubectl.feed(&call, object).expect("kubectl starts");
    assert!(printed.success, "{}", printed.stderr);
}
