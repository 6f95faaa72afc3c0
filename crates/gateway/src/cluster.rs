//! The gateway of a Kubernetes cluster: runs are AgentRuns, tokens are those of their pods, and reports and questions
//! become objects.
//!
//! * `RunCache` watches AgentRuns and has the plan of each active one, by its digest.
//! * [`PodTokens`] authenticates tokens by TokenReviews.
//! * `ClusterReports` stores receipts and transcript as `RunRecord`s, and the rest in `status.report`.
//! * [`Approvals`] creates questions as `ToolApproval`s, and waits for the votes of approvers.
//!
//! Nothing is cached that a restart would not find again in the cluster, and any number of gateways may run at a time.
//! The gateway creates `RunRecord`s and `ToolApproval`s, writes `status.report`, and changes nothing else.
//! `crate::rbac` has its permissions.

mod approvals;
#[cfg(test)]
mod fake_api;
mod objects;
mod pod_tokens;
mod records;
mod runs;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::egress::{AlreadyServed, Gateway};
use crate::metrics::Metrics;
use crate::network::NetworkAccess;
use crate::run_api::RunApi;
use crate::run_api::local::NoScheduler;

pub use approvals::Approvals;
pub use pod_tokens::PodTokens;
pub use records::ClusterReports;
pub use runs::RunCache;

/// Timeout for connecting to the API server. There is no read timeout: watches are idle for longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one request to the API server, as a whole.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);

/// The prefix of the user name of a service account.
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Page size of lists. A run may have a megabyte, a page is in memory about three times while it is parsed, and the
/// pod's memory is limited: little is stored of each object, so little must arrive at once.
pub const PAGE_SIZE: u32 = 20;

/// Connects to the API server: by this kubeconfig, by the pod's service account, or by the user's kubeconfig.
///
/// # Errors
///
/// Returns an error if none of them is there or valid.
pub async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path);
            let read = read.with_context(|| format!("reading {}", path.display()))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    Ok(Client::try_from(config)?)
}

/// A gateway that serves the runs of a cluster.
#[derive(Clone)]
pub struct Cluster {
    runs: Arc<RunCache>,
    approvals: Approvals,
}

impl Cluster {
    /// Starts the watches, and serves the run API of `gateway` from the cluster. The tasks run as long as the process.
    ///
    /// # Errors
    ///
    /// Returns an error if the gateway serves another run API already.
    pub fn serve<O: NetworkAccess>(
        gateway: &Gateway<O>,
        client: Client,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, AlreadyServed> {
        let runs = RunCache::new(client.clone(), Arc::clone(gateway.plans()));
        let approvals = Approvals::new(client.clone(), Arc::clone(&runs), Arc::clone(metrics));
        let reports = ClusterReports::new(client.clone(), Arc::clone(&runs), Arc::clone(metrics));
        gateway.serve_run_api(RunApi {
            authenticator: PodTokens::new(client, Arc::clone(&runs), Arc::clone(metrics)),
            question_handler: approvals.clone(),
            report_store: reports,
            scheduler: NoScheduler,
        })?;
        tokio::spawn(Arc::clone(&runs).watch());
        tokio::spawn(approvals.clone().watch());
        Ok(Self { runs, approvals })
    }

    /// Whether every watch has been listed once.
    pub fn is_ready(&self) -> bool {
        self.runs.is_ready() && self.approvals.is_ready()
    }

    /// Number of active runs.
    pub fn active_runs(&self) -> usize {
        self.runs.len()
    }
}
