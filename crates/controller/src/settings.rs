//! How an installation is set up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sympozium_plan::admit;
use sympozium_plan::plan::PlanSettings;
use sympozium_plan::prices::Prices;

/// Finished runs of one agent that are kept.
pub const HISTORY: usize = 50;
/// Runs that are worked on at a time.
pub const CONCURRENCY: u16 = 16;
/// How long a run waits for an agent, a pack, a policy or a model that is not there yet.
pub const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// Runs that go on at a time, in the whole cluster. Those beyond it wait.
pub const ACTIVE_RUNS: usize = 2_000;
/// The largest weight of a namespace.
pub const MAX_WEIGHT: u16 = 1_000;

/// How an installation is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where controller, gateway, built-in packs and the floor are.
    pub system_namespace: String,
    /// What admission does not find in objects.
    pub admission: admit::Settings,
    /// Images of our own parts, and limits.
    pub plan: PlanSettings,
    /// See [`HISTORY`].
    pub history: usize,
    /// How long a finished run is kept; for ever when absent.
    pub keep: Option<Duration>,
    /// See [`PATIENCE`].
    pub patience: Duration,
    /// See [`CONCURRENCY`].
    pub concurrency: u16,
    /// See [`ACTIVE_RUNS`].
    pub active_runs: usize,
    /// How many places of [`Self::active_runs`] namespaces get against each other, up to [`MAX_WEIGHT`]; one that is not named
    /// counts as 1.
    pub namespace_weights: BTreeMap<String, u16>,
    /// Whether pods run in a user namespace.
    pub host_users: UserNamespaces,
    /// What tokens cost; without it, nothing is said about costs.
    pub prices: Option<Arc<Prices>>,
    /// Whether the kubelets bound the processes of a pod. The operator says so.
    pub pod_pids_limit: bool,
}

/// Whether pods run in a user namespace (`hostUsers: false`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UserNamespaces {
    /// Where every node that takes pods says that its runtime can.
    #[default]
    Auto,
    /// Always: a node that cannot refuses the pod.
    Always,
    /// Never.
    Never,
}

impl Default for Settings {
    fn default() -> Self {
        let admission = admit::Settings::default();
        Self {
            system_namespace: admission.system_namespace.clone(),
            admission,
            plan: PlanSettings::default(),
            history: HISTORY,
            keep: None,
            patience: PATIENCE,
            concurrency: CONCURRENCY,
            active_runs: ACTIVE_RUNS,
            namespace_weights: BTreeMap::new(),
            host_users: UserNamespaces::default(),
            prices: None,
            pod_pids_limit: false,
        }
    }
}
