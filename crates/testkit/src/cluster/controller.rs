//! A controller of ours before a control plane without nodes: kubelet and gateway are played, and runs have a namespace with
//! everything that they name.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::json;
use sympozium_api::{AgentRun, installation, labels};
use tempfile::TempDir;

use super::played::Played;
use super::samples::around;
use super::{Cluster, Namespace, Security};
use crate::daemon::Daemon;
use crate::wait_until;

/// How long a controller may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(300);

/// What a controller works on.
pub struct ControllerHarness {
    /// Straight to the API server.
    pub client: Client,
    /// The fake kubelet and gateway.
    pub played: Played,
    /// The namespace of the runs.
    pub namespace: Namespace,
    folder: TempDir,
    starts: AtomicUsize,
}

impl ControllerHarness {
    /// Prepares a cluster that has our kinds.
    ///
    /// # Errors
    ///
    /// When the API server refuses something.
    pub async fn new(cluster: &Cluster, label: &str) -> Result<Self> {
        let namespace = cluster.namespace(label, Security::Restricted)?;
        let mut objects = around(namespace.name());
        let system = json!({ "name": labels::SYSTEM_NAMESPACE });
        objects.insert(0, json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": system }));
        cluster.kubectl().apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }))?;
        let client = cluster.client().await?;
        Ok(Self {
            played: Played::begin(client.clone()).await?,
            client,
            namespace,
            folder: tempfile::tempdir().context("making a folder for logs")?,
            starts: AtomicUsize::new(0),
        })
    }

    /// The runs of the namespace.
    pub fn runs(&self) -> Api<AgentRun> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    /// Starts this program as the controller, and waits until it leads, or until `is_stopped` says that it cannot get there.
    /// Returns how long that took as well. One that was killed before holds the Lease, which is deleted, so that no test waits
    /// until it has expired.
    ///
    /// # Errors
    ///
    /// When it does not lead in time; the message has its log.
    pub async fn start(
        &self,
        program: &Path,
        kubeconfig: &Path,
        arguments: &[&str],
        is_stopped: impl Fn() -> bool,
    ) -> Result<(Daemon, Duration)> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), labels::SYSTEM_NAMESPACE);
        let _ = leases.delete(installation::CONTROLLER, &DeleteParams::default()).await;
        self.starts.fetch_add(1, Ordering::Relaxed);
        let mut command = crate::command(program);
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--probe-listen=127.0.0.1:0", "--gateway-address=198.51.100.200"])
            .args(arguments);
        let started = Instant::now();
        let daemon = Daemon::start(command, &self.last_log())?;
        let leads = || daemon.ask("/readyz").is_some_and(|(status, body)| status == 200 && body.contains("leader"));
        let ready = tokio::task::block_in_place(|| wait_until(START_PATIENCE, || leads() || is_stopped()));
        let took = started.elapsed();
        ensure!(ready, "the controller is not ready:\n{}", daemon.log_tail());
        Ok((daemon, took))
    }

    /// The log of the controller that was started last.
    pub fn last_log(&self) -> PathBuf {
        self.folder.path().join(format!("log-{}", self.starts.load(Ordering::Relaxed)))
    }
}
