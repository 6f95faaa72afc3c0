//! Opens the store of runs that the flags select, so that commands need not know which it is.

use sympozium_local::state::StateDirectory;
use sympozium_runs::RunStore;

use crate::cluster::{Cluster, ClusterArguments};
use crate::failure::Failure;

/// The runs of this machine, or those of a cluster if a flag selects one.
pub fn open(arguments: &ClusterArguments) -> Result<Box<dyn RunStore>, Failure> {
    Ok(match Cluster::select(arguments)? {
        Some(cluster) => Box::new(cluster),
        None => Box::new(StateDirectory::open()?),
    })
}
