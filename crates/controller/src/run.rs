//! Reconciles a run, from its first reconcile to the proof that nothing of it is left.
//!
//! [`reconcile`] looks at the current state and performs the next steps. Every step is idempotent: a controller that is
//! killed between any two requests finds, after a restart, what it had done, and continues or reverts it. Objects that
//! exist already are compared and never overwritten.
//!
//! [`resolve`] finds the objects that a run names and plans it; [`start`] and [`create`] create its objects; [`observe`] watches it
//! while it is active; [`finish`] handles the end of the agent, and [`hooks`] the hooks before and after it; [`end`]
//! records how it ended. The steps of the end are [`revoke`], [`teardown`] and [`verify`]. [`status`] is the only module
//! that writes to runs, [`objects`] the only one that creates and deletes other objects. [`pod_status`] explains the
//! state of pods.

mod create;
mod end;
mod error;
mod finish;
mod history;
mod hooks;
mod index;
mod inputs;
mod logs;
mod objects;
mod observe;
mod plans;
pub(crate) mod pod_status;
mod requeue;
mod resolve;
mod retry;
mod revoke;
mod start;
mod status;
mod stored;
mod teardown;
mod verify;

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;
use sympozium_api::labels::finalizer;

use crate::caches::{is_revoked, is_torn_down};
use crate::context::Context;

pub use error::Error;
pub use index::RunIndex;
pub use inputs::TokenRenewals;
pub use plans::Plans;
pub use requeue::{PodRejections, StartFaults, runs_to_requeue};
pub use stored::StoredRun;

/// Where a run is in its life, by its status and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifecycle {
    /// Not all of its objects exist yet.
    Starting,
    /// Its pod exists.
    Running,
    /// The agent has ended and hooks after the run are active.
    PostRun,
    /// Its phase is terminal, and not all of its objects are gone.
    TearingDown,
    /// It has a deletion timestamp.
    Deleting,
    /// Nothing is to be done.
    TornDown,
}

fn lifecycle(run: &StoredRun) -> Lifecycle {
    let status = run.status.as_ref();
    let phase = status.and_then(|status| status.phase).unwrap_or(Phase::Pending);
    if run.metadata.deletion_timestamp.is_some() {
        let ours = run.finalizers().iter().any(|name| name == finalizer::RUN);
        // Another client may remove our finalizer while a different one keeps the run: its grants must still be
        // revoked.
        let has_more = !run.grants().is_empty() && !is_revoked(run);
        return if ours || has_more { Lifecycle::Deleting } else { Lifecycle::TornDown };
    }
    if is_torn_down(run) {
        return Lifecycle::TornDown;
    }
    if phase.is_terminal() {
        return Lifecycle::TearingDown;
    }
    if phase == Phase::PostRunning {
        return Lifecycle::PostRun;
    }
    let has_pod = status.is_some_and(|status| status.pod_uid.is_some());
    if has_pod { Lifecycle::Running } else { Lifecycle::Starting }
}

/// Performs the next steps of a run.
///
/// # Errors
///
/// When the API server does not answer or rejects a request unexpectedly. The call can be repeated.
pub async fn reconcile(run: Arc<AgentRun>, context: Arc<Context>) -> Result<Action, Error> {
    let Some(run) = StoredRun::new(run) else {
        return Ok(Action::await_change());
    };
    let run = context.own_writes.latest(run);
    match lifecycle(&run) {
        Lifecycle::Starting => start::start(run, &context).await,
        Lifecycle::Running => observe::observe_running(run, &context).await,
        Lifecycle::PostRun => hooks::run_post_hooks(run, &context).await,
        Lifecycle::TearingDown => teardown::tear_down(run, &context).await,
        Lifecycle::Deleting => teardown::finalize(run, &context).await,
        Lifecycle::TornDown => history::prune(run, &context).await,
    }
}
