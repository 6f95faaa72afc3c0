//! A control plane of its own, the proxy before it, the controller behind that, and the play around it.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use sympozium_api::{AgentRun, installation, labels};
use sympozium_testkit::cluster::faults::{Caller, FaultProxy, Write as Written};
use sympozium_testkit::cluster::played::Played;
use sympozium_testkit::cluster::samples::around;
use sympozium_testkit::cluster::{Cluster, Kubectl, Namespace, Security, Tier};
use sympozium_testkit::daemon::{Daemon, free_address};
use sympozium_testkit::{static_build, wait_until};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use super::run::{self, TestRun};

/// How long the controller may take to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// Between two looks whether the controller is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(200);
/// The last words of a controller that could not renew its Lease in time, and has to end then: the proxy has stopped it
/// for long, or it got no processor.
const LEASE_LOST: &str = "error: the Lease is lost: the Lease could not be renewed";

/// A controller works on a whole cluster: one test at a time.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// The cluster of these tests, held for the life of the process.
static CLUSTER: LazyLock<Option<Cluster>> = LazyLock::new(|| {
    let cluster = Cluster::apart(Tier::ControlPlane, "crash").expect("a cluster");
    if let Some(cluster) = &cluster {
        install(&cluster.kubectl());
    }
    cluster
});

/// Where a test happens.
pub struct Harness {
    pub client: Client,
    pub played: Played,
    pub proxy: FaultProxy,
    pub namespace: Namespace,
    folder: TempDir,
    controller: parking_lot::Mutex<Option<Daemon>>,
    starts: AtomicUsize,
    _exclusive: MutexGuard<'static, ()>,
}

impl Harness {
    /// Waits for its turn, and starts everything. `None` and a recorded skip where there can be no cluster.
    pub async fn new(label: &str) -> Option<Self> {
        let alone = EXCLUSIVE.lock().await;
        // rustls in the test's own client.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Some(cluster) = CLUSTER.as_ref() else {
            // Recorded for each test, not only for the one that tried first.
            Cluster::apart(Tier::ControlPlane, "crash").expect("none");
            return None;
        };
        let client = client(cluster.kubeconfig()).await;
        let namespace = cluster.namespace(label, Security::Restricted).expect("a namespace");
        for object in around(namespace.name()) {
            apply(&cluster.kubectl(), &object);
        }
        let played = Played::begin(client.clone()).await.expect("a play");
        let proxy = FaultProxy::start(cluster, Caller::Administrator).expect("a proxy");
        let ground = Self {
            client,
            played,
            proxy,
            namespace,
            folder: tempfile::tempdir().expect("a folder"),
            controller: parking_lot::Mutex::new(None),
            starts: AtomicUsize::new(0),
            _exclusive: alone,
        };
        ground.start().await;
        Some(ground)
    }

    /// The runs of this test.
    pub fn runs(&self) -> Api<AgentRun> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    /// Begins to count what the controller writes for runs: whatever is in the namespace of the test, and roles of the cluster.
    /// The statuses of packs and agents are written beside, whenever it suits.
    pub fn start_counting(&self) {
        let here = format!("/namespaces/{}/", self.namespace.name());
        self.proxy.begin(move |_, path| {
            let beside = ["/skillpacks/", "/agents/", "/sympoziuminstances/"];
            (path.contains(&here) || path.contains("/clusterrole")) && !beside.iter().any(|kind| path.contains(kind))
        });
    }

    /// The writes that count, so far.
    pub fn take_counted(&self) -> Vec<Written> {
        let all = self.proxy.writes();
        all.into_iter().filter(|it| it.number.is_some()).collect()
    }

    /// Starts the controller, and waits until it works. One that was killed before holds the Lease, which nobody will renew:
    /// it is taken away, so that nobody has to wait until it is old.
    pub async fn start(&self) {
        assert!(self.controller.lock().is_none(), "one at a time");
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), labels::SYSTEM_NAMESPACE);
        let _ = leases.delete(installation::CONTROLLER, &DeleteParams::default()).await;
        self.starts.fetch_add(1, Ordering::Relaxed);
        let log = self.last_log();
        let probes = free_address().expect("an address");
        let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_sympozium-controller"));
        command
            .arg("--kubeconfig")
            .arg(self.proxy.kubeconfig())
            .args(["--probe-listen", &probes.to_string()])
            .args(["--gateway-address", "198.51.100.200"]);
        let daemon = Daemon::start(command, probes, &log).expect("the controller starts");
        let works = || {
            let answer = daemon.ask("/readyz");
            let leads = answer.is_some_and(|(status, body)| status == 200 && body.contains("leader"));
            // One that the proxy has stopped at a write already cannot say so.
            leads || self.proxy.has_stopped()
        };
        let ready = tokio::task::block_in_place(|| wait_until(START_TIMEOUT, works));
        assert!(ready, "it is not ready:\n{}", daemon.log_tail());
        *self.controller.lock() = Some(daemon);
    }

    /// The log of the controller that was started last.
    fn last_log(&self) -> PathBuf {
        self.folder.path().join(format!("log-{}", self.starts.load(Ordering::Relaxed)))
    }

    /// Asserts that a controller which has ended by itself had to.
    fn assert_lost_lease(&self) {
        let log = std::fs::read_to_string(self.last_log()).expect("a log");
        assert!(log.contains(LEASE_LOST), "it had ended by itself:\n{log}");
    }

    /// Kills the controller, as a node that loses its power does.
    pub fn kill(&self) {
        let controller = self.controller.lock().take().expect("there is one");
        let status = controller.kill().expect("waited for");
        if status.signal() != Some(9) {
            self.assert_lost_lease();
        }
    }

    /// Kills the controller where the proxy has stopped it, and starts another.
    pub async fn crash(&self) {
        self.kill();
        self.proxy.resume();
        self.start().await;
    }

    /// Starts the controller again where it has lost its Lease, as a kubelet does. One that was killed stays so.
    pub async fn revive(&self) {
        let has_ended = self.controller.lock().as_mut().is_some_and(Daemon::has_ended);
        if has_ended {
            self.assert_lost_lease();
            *self.controller.lock() = None;
            self.start().await;
        }
    }

    /// Looks after the controller for as long as it is polled.
    pub async fn keep_alive(&self) {
        loop {
            self.revive().await;
            tokio::time::sleep(LIVENESS_INTERVAL).await;
        }
    }

    /// Waits until the proxy has stopped the controller, or the run is over without.
    pub async fn stopped(&self, tried: &TestRun) -> bool {
        self.stopped_unless(tried, TestRun::is_terminal).await
    }

    /// As [`Ground::stopped`], for a run that goes on for ever once its pod is there.
    pub async fn stopped_before_it_runs(&self, tried: &TestRun) -> bool {
        self.stopped_unless(tried, TestRun::is_running).await
    }

    async fn stopped_unless(&self, tried: &TestRun, is_too_late: impl AsyncFn(&TestRun) -> bool) -> bool {
        let deadline = tokio::time::Instant::now() + run::TIMEOUT;
        loop {
            if self.proxy.has_stopped() {
                return true;
            }
            if is_too_late(tried).await {
                return self.proxy.has_stopped();
            }
            self.revive().await;
            if tokio::time::Instant::now() > deadline {
                panic!("neither stopped nor over\n{}", self.describe(tried).await);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What a person needs who wants to know why a run did not end as it should.
    pub async fn describe(&self, tried: &TestRun) -> String {
        let mut text = String::new();
        let run = tried.get().await;
        let run = serde_json::to_string_pretty(&run).unwrap_or_default();
        let _ = writeln!(text, "--- run {}\n{run}", tried.name);
        let _ = writeln!(text, "--- pods {:?}", self.played.pods_of(&tried.uid));
        let _ = writeln!(text, "--- there: {:?}", tried.remaining_objects().await);
        let _ = writeln!(text, "--- writes");
        for write in self.take_counted() {
            let _ = writeln!(text, "{write}");
        }
        let _ = writeln!(text, "--- log\n{}", self.log());
        text
    }

    fn log(&self) -> String {
        self.controller.lock().as_ref().map(Daemon::log_tail).unwrap_or_default()
    }
}

/// Straight to the API server.
pub async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a configuration");
    Client::try_from(config).expect("a client")
}

/// The kinds, the system namespace, and what the controller looks for there.
fn install(kubectl: &Kubectl) {
    let kinds = static_build::workspace_root().join("config/crds");
    let kinds = kinds.to_str().expect("a path of letters");
    kubectl.run(&["apply", "--server-side", "-f", kinds]).expect("the kinds are there");
    kubectl.run(&["wait", "--for=condition=Established", "--timeout=180s", "-f", kinds]).expect("the kinds are served");
    let name = labels::SYSTEM_NAMESPACE;
    apply(kubectl, &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
}

fn apply(kubectl: &Kubectl, object: &Value) {
    let printed =
        kubectl.feed(&["apply", "--server-side", "--force-conflicts", "-f", "-"], object).expect("kubectl starts");
    assert!(printed.success, "{}", printed.stderr);
}
