//! A control plane of its own, the proxy before it, the controller behind that, and the play around it.

use std::fmt::Write as _;
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::Duration;

use sympozium_testkit::cluster::controller::ControllerHarness;
use sympozium_testkit::cluster::faults::{Caller, FaultProxy, Write as Written};
use sympozium_testkit::cluster::{Cluster, KUBECONFIG_VARIABLE};
use sympozium_testkit::daemon::Daemon;
use sympozium_testkit::skips;
use tokio::sync::{Mutex, MutexGuard};

use super::run::{self, TestRun};

/// Between two looks whether the controller is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(200);
/// The last words of a controller that could not renew its Lease in time, and has to end then: the proxy has stopped it
/// for long, or it got no processor.
const LEASE_LOST: &str = "error: the Lease is lost: the Lease could not be renewed";

/// A controller works on a whole cluster: one test at a time.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// Where a test happens.
pub struct Harness {
    around: ControllerHarness,
    pub proxy: FaultProxy,
    controller: parking_lot::Mutex<Option<Daemon>>,
    _exclusive: MutexGuard<'static, ()>,
}

impl Deref for Harness {
    type Target = ControllerHarness;

    fn deref(&self) -> &ControllerHarness {
        &self.around
    }
}

impl Harness {
    /// Waits for its turn, and starts everything. `None` and a recorded skip where there can be no cluster.
    pub async fn new(label: &str) -> Option<Self> {
        let exclusive = EXCLUSIVE.lock().await;
        if std::env::var_os(KUBECONFIG_VARIABLE).is_some() {
            skips::record("no cluster apart when one is given");
            return None;
        }
        let cluster = Cluster::with_kinds("crash").expect("a cluster")?;
        let harness = Self {
            around: ControllerHarness::new(cluster, label).await.expect("a namespace for runs"),
            proxy: FaultProxy::start(cluster, Caller::Administrator).expect("a proxy"),
            controller: parking_lot::Mutex::new(None),
            _exclusive: exclusive,
        };
        harness.start().await;
        Some(harness)
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

    /// Starts the controller, and waits until it works, or until the proxy has stopped it at a write already.
    pub async fn start(&self) {
        assert!(self.controller.lock().is_none(), "one at a time");
        let program = Path::new(env!("CARGO_BIN_EXE_sympozium-controller"));
        let started = self.around.start(program, &self.proxy.kubeconfig(), &[], || self.proxy.has_stopped()).await;
        *self.controller.lock() = Some(started.expect("it works").0);
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

    /// Waits until the proxy has stopped the controller, or the run is finished without.
    pub async fn stopped(&self, tried: &TestRun) -> bool {
        self.stopped_unless(tried, TestRun::is_terminal).await
    }

    /// As [`Harness::stopped`], for a run that goes on for ever once its pod is there.
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
                panic!("neither stopped nor finished\n{}", self.describe(tried).await);
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
