//! A run, from its first look to the proof that nothing of it is left.
//!
//! [`reconcile`] looks at what there is and makes the next steps. Every step can be made again: a controller that is killed
//! between any two calls finds, when it is back, what it had done, and goes on or takes it back. What is there already is
//! compared and never overwritten.
//!
//! [`resolve`] finds what a run needs and plans it; [`begin`] makes it exist; [`observe`] looks at it while it goes on;
//! [`over`] is when the agent has ended, and [`hooks`] are around it; [`end`] takes everything back. [`status`] is the only place that writes to runs, [`objects`] the only one that makes and
//! removes other objects. [`faults`] says in plain words what the platform has to say.

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

/// Where a run stands, from what is written on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of it exists yet, or not everything.
    Beginning,
    /// Its pod is there.
    Going,
    /// The agent has ended and hooks go on.
    Afterwards,
    /// It is over, and not everything of it is gone.
    Ending,
    /// It is being deleted.
    Deleted,
    /// Nothing is to be done.
    Settled,
}

fn stage(run: &AgentRun) -> Stage {
    let status = run.status.as_ref();
    let phase = status.and_then(|it| it.phase).unwrap_or_default();
    if run.metadata.deletion_timestamp.is_some() {
        let ours = run.finalizers().iter().any(|it| it == finalizer::RUN);
        // Who takes our finalizer off and leaves another keeps the run, and would keep its rights.
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

/// Makes the next steps of a run.
///
/// # Errors
///
/// When the API server could not be asked, or refuses what it should not. The same call may be made again.
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
