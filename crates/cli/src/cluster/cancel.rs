//! `sympozium cancel` in a cluster.

use super::remove::display_name;
use super::{Cluster, approvals, view};
use crate::cancel::CancelResult;
use crate::failure::Failure;

/// Asks the controller to end a run; says whether it was asked, or is terminal already.
///
/// # Errors
///
/// When there is no such run, or the API server rejects the request.
pub fn cancel(cluster: &Cluster, run: &str) -> Result<CancelResult, Failure> {
    let found = cluster.find(run)?;
    let name = display_name(&found);
    if let Some(outcome) = view::run_end(&found.run) {
        return Ok(CancelResult::IsOver { name, word: outcome.as_str() });
    }
    cluster.block_on(approvals::patch_cancel(&cluster.connection, &found))?;
    Ok(CancelResult::Ending { name })
}
