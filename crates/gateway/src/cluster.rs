//! The gateway of a Kubernetes cluster: runs are AgentRuns, tokens are those of their pods, and what runs report and ask
//! becomes objects.
//!
//! * [`Runs`] watches AgentRuns and has the plan of each that is under way, by its digest.
//! * [`PodTokens`] asks the API server whose a token is (TokenReview).
//! * [`Reports`] keeps receipts and transcript as `RunRecord`s, and the rest in `status.report`.
//! * [`Approvals`] puts questions as `ToolApproval`s, and waits until people have decided.
//!
//! Nothing is remembered that a restart would not find again in the cluster, and any number of gateways may do this at a
//! time. The gateway creates `RunRecord`s and `ToolApproval`s, writes `status.report`, and changes nothing else;
//! [`crate::rights`] is what it may.

mod approvals;
#[cfg(test)]
mod fake_api;
mod identify;
mod objects;
mod records;
mod runs;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::egress::{Gateway, ServedAlready};
use crate::metrics::Metrics;
use crate::outside::Outside;
use crate::run_api::RunApi;
use crate::run_api::local::NoScheduler;

pub use approvals::Approvals;
pub use identify::PodTokens;
pub use records::Reports;
pub use runs::Runs;

/// How long a request to the API server may take to connect, and to be answered. Watches are quiet for longer, and have a
/// time of their own.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// How long one request to the API server may take, as a whole.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(8);

/// How the user of a service account's token begins.
const ACCOUNT: &str = "system:serviceaccount:";
/// Objects of a page when all of a kind are listed. A run may have a megabyte, the page is in memory about three times while
/// it is read, and the pod's memory is bounded: what is kept of each object is little, what comes at once must be too.
pub const PAGE: u32 = 20;

/// The way to the API server: of this kubeconfig, of the pod's own service account, or of the user's kubeconfig.
///
/// # Errors
///
/// When none of them is there or good.
pub async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path);
            let read = read.with_context(|| format!("reading {}", path.display()))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await?,
    };
    config.connect_timeout = Some(CONNECT_DEADLINE);
    Ok(Client::try_from(config)?)
}

/// A gateway that serves the runs of a cluster.
#[derive(Clone)]
pub struct Cluster {
    runs: Arc<Runs>,
    approvals: Approvals,
}

impl Cluster {
    /// Begins to watch, and serves the run API of `gateway` with what the cluster has. Whatever is begun here goes on in
    /// tasks of its own, for as long as the process lives.
    ///
    /// # Errors
    ///
    /// When the gateway serves another run API already.
    pub fn serve<O: Outside>(
        gateway: &Gateway<O>,
        client: Client,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ServedAlready> {
        let runs = Runs::new(client.clone(), Arc::clone(gateway.plans()));
        let approvals = Approvals::new(client.clone(), Arc::clone(&runs), Arc::clone(metrics));
        let reports = Reports::new(client.clone(), Arc::clone(&runs), Arc::clone(metrics));
        gateway.serve_run_api(RunApi {
            identify: PodTokens::new(client, Arc::clone(&runs), Arc::clone(metrics)),
            decider: approvals.clone(),
            reporter: reports,
            scheduler: NoScheduler,
        })?;
        tokio::spawn(Arc::clone(&runs).watch());
        tokio::spawn(approvals.clone().watch());
        Ok(Self { runs, approvals })
    }

    /// Whether everything that is watched was listed once.
    pub fn is_ready(&self) -> bool {
        self.runs.is_ready() && self.approvals.is_ready()
    }

    /// Runs that are under way, as far as is known.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }
}
