//! A control plane of its own, the controller beside it, and the play around it.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::Value;
use sympozium_api::AgentRun;
use sympozium_testkit::cluster::controller::ControllerHarness;
use sympozium_testkit::cluster::{Cluster, Tier};
use sympozium_testkit::daemon::Daemon;

use crate::run_observer::RunObserver;

/// How long anything here may take before it counts as broken.
pub const TIMEOUT: Duration = Duration::from_secs(600);
/// More finished runs of an agent than any measurement makes: none is removed while we look.
const HISTORY_LIMIT: &str = "--history=1000000";

/// Where it is measured.
pub struct Harness {
    pub cluster: Cluster,
    pub sight: RunObserver,
    around: ControllerHarness,
    controller: Option<Daemon>,
}

impl Deref for Harness {
    type Target = ControllerHarness;

    fn deref(&self) -> &ControllerHarness {
        &self.around
    }
}

impl Harness {
    pub async fn new() -> Self {
        let cluster =
            Cluster::apart(Tier::ControlPlane, "bench").expect("a cluster").expect("this machine can have one");
        cluster.kubectl().install_kinds().expect("the kinds are served");
        let around = ControllerHarness::new(&cluster, "bench").await.expect("a namespace for runs");
        let sight = RunObserver::start(around.client.clone());
        let mut harness = Self { cluster, sight, around, controller: None };
        let kubeconfig = harness.cluster.kubeconfig().to_owned();
        harness.start(&kubeconfig).await;
        harness
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
    pub async fn start(&mut self, kubeconfig: &Path) -> Duration {
        let program = Path::new(env!("CARGO_BIN_EXE_sympozium-controller"));
        let started = self.around.start(program, kubeconfig, &[HISTORY_LIMIT], || false).await;
        let (controller, took) = started.expect("it is ready");
        self.controller = Some(controller);
        took
    }
}
