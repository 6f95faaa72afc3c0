//! `sympozium cancel` in a cluster.

use super::remove::named;
use super::{Cluster, approvals, view};
use crate::cancel::Told;
use crate::failure::Failure;

/// Asks the controller to end a run; says whether it was asked, or is terminal already.
///
/// # Errors
///
/// When there is no such run, or the API server rejects the request.
pub fn cancel(cluster: &Cluster, run: &str) -> Result<Told, Failure> {
    let found = cluster.find(run)?;
    let name = named(&found);
    if let Some(outcome) = view::outcome(&found.run) {
        return Ok(Told::IsOver { name, word: outcome.word() });
    }
    cluster.wait(approvals::cancel(&cluster.connection, &found))?;
    Ok(Told::Ending { name })
}
