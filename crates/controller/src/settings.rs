//! Settings of an installation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sympozium_plan::admit;
use sympozium_plan::plan::PlanSettings;
use sympozium_plan::prices::Prices;

/// Finished runs of one agent that are kept.
pub const HISTORY_LIMIT: usize = 50;
/// Runs that are reconciled concurrently.
pub const CONCURRENCY: u16 = 16;
/// How long a run waits for an Agent, SkillPack, SympoziumPolicy or Model that does not exist yet.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Runs that are active at the same time in the whole cluster. Further runs are queued.
pub const MAX_ACTIVE_RUNS: usize = 2_000;
pub const MAX_WEIGHT: u16 = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where controller, gateway, built-in packs and the policy floor are.
    pub system_namespace: String,
    /// What admission does not find in objects.
    pub admission: admit::Settings,
    /// Images of our own parts, and limits.
    pub plan: PlanSettings,
    /// See [`HISTORY_LIMIT`].
    pub history_limit: usize,
    /// How long a finished run is kept; for ever when absent.
    pub retention: Option<Duration>,
    /// See [`RESOLVE_TIMEOUT`].
    pub resolve_timeout: Duration,
    /// See [`CONCURRENCY`].
    pub concurrency: u16,
    /// See [`MAX_ACTIVE_RUNS`].
    pub max_active_runs: usize,
    /// Weights by which namespaces share [`Self::max_active_runs`], up to [`MAX_WEIGHT`]; a namespace that is not
    /// listed has weight 1.
    pub namespace_weights: BTreeMap<String, u16>,
    pub user_namespaces: UserNamespaces,
    /// Prices of tokens; without them no cost is estimated.
    pub prices: Option<Arc<Prices>>,
    /// Whether the kubelets limit the processes of a pod. The operator declares it; the controller cannot verify it.
    pub pod_pids_limit: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UserNamespaces {
    /// If every schedulable node reports that its runtime supports it.
    #[default]
    Auto,
    /// A node without support rejects the pod.
    Always,
    Never,
}

impl Default for Settings {
    fn default() -> Self {
        let admission = admit::Settings::default();
        Self {
            system_namespace: admission.system_namespace.clone(),
            admission,
            plan: PlanSettings::default(),
            history_limit: HISTORY_LIMIT,
            retention: None,
            resolve_timeout: RESOLVE_TIMEOUT,
            concurrency: CONCURRENCY,
            max_active_runs: MAX_ACTIVE_RUNS,
            namespace_weights: BTreeMap::new(),
            user_namespaces: UserNamespaces::default(),
            prices: None,
            pod_pids_limit: false,
        }
    }
}
