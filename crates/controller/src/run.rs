//! Reconciles a run, from its first reconcile to the proof that nothing of it is left.
//!
//! [`reconcile`] looks at the current state and performs the next steps. Every step is idempotent: a controller that is
//! killed between any two requests finds, after a restart, what it had done, and continues or reverts it. Objects that
//! exist already are compared and never overwritten.
//!
//! [`resolve`] finds the objects that a run names and plans it; [`start`] creates its objects; [`observe`] watches it
//! while it is active; [`finish`] handles the end of the agent, and [`hooks`] the hooks before and after it; [`end`]
//! revokes, tears down and verifies. [`status`] is the only module that writes to runs, [`objects`] the only one that
//! creates and deletes other objects. [`pod_status`] explains the state of pods.

mod again;
mod begin;
mod end;
mod error;
pub(crate) mod faults;
mod history;
mod hooks;
mod index;
mod inputs;
mod logs;
mod objects;
mod observe;
mod over;
mod plans;
mod resolve;
mod status;
mod wake;

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use sympozium_api::AgentRun;
use sympozium_api::agent_run::Phase;
use sympozium_api::labels::finalizer;

use crate::context::Context;
use crate::world::{is_revoked, is_settled};

pub use error::Error;
pub use index::Index;
pub use inputs::Renewals;
pub use plans::Plans;
pub use wake::{Hindrances, Refusals, wake};

/// Where a run is in its life, by its status and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not all of its objects exist yet.
    Beginning,
    /// Its pod exists.
    Going,
    /// The agent has ended and hooks after the run are active.
    Afterwards,
    /// Its phase is terminal, and not all of its objects are gone.
    Ending,
    /// It has a deletion timestamp.
    Deleted,
    /// Nothing is to be done.
    Settled,
}

fn stage(run: &AgentRun) -> Stage {
    let status = run.status.as_ref();
    let phase = status.and_then(|it| it.phase).unwrap_or_default();
    if run.metadata.deletion_timestamp.is_some() {
        let ours = run.finalizers().iter().any(|it| it == finalizer::RUN);
        // Another client may remove our finalizer while a different one keeps the run: its grants must still be
        // revoked.
        let has_more = status.is_some_and(|it| !it.grants.is_empty()) && !is_revoked(run);
        return match ours || has_more {
            true => Stage::Deleted,
            false => Stage::Settled,
        };
    }
    if is_settled(run) {
        return Stage::Settled;
    }
    if phase.is_terminal() {
        return Stage::Ending;
    }
    if phase == Phase::PostRunning {
        return Stage::Afterwards;
    }
    let has_pod = status.is_some_and(|it| it.pod_uid.is_some());
    if has_pod { Stage::Going } else { Stage::Beginning }
}

/// Performs the next steps of a run.
///
/// # Errors
///
/// When the API server does not answer or rejects a request unexpectedly. The call can be repeated.
pub async fn reconcile(seen: Arc<AgentRun>, context: Arc<Context>) -> Result<Action, Error> {
    let run = context.written.latest(seen);
    match stage(&run) {
        Stage::Beginning => begin::begin(run, &context).await,
        Stage::Going => observe::going(run, &context).await,
        Stage::Afterwards => hooks::afterwards(run, &context).await,
        Stage::Ending => end::clean(run, &context).await,
        Stage::Deleted => end::deleted(run, &context).await,
        Stage::Settled => history::settled(run, &context).await,
    }
}
