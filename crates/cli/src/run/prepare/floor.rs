//! The policy floor of this machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sympozium_api::labels::FLOOR_POLICY;
use sympozium_api::origin::{ObjectOrigin, Origin, POLICY_KIND};
use sympozium_api::text::printable;
use sympozium_local::state::is_exclusively_ours;

use crate::failure::Failure;
use crate::run::assemble::HostEnvironment;

/// Finds the file with the floor: `CONFIG/floor.yaml`, or else the one of `--floor`; `None` for the floor that is
/// shipped with this program.
pub fn find(flag: Option<&Path>, host: &HostEnvironment<'_>) -> Result<Option<PathBuf>, Failure> {
    let flag = flag.map(Path::to_owned);
    let Some(path) = host.configuration.as_ref().map(|it| it.join("floor.yaml")) else {
        return Ok(flag);
    };
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
            return Ok(flag);
        }
        // A dangling link is a floor that cannot be read.
        Err(error) => {
            let error = anyhow::Error::from(error).context(format!("cannot read {}", path.display()));
            return Err(Failure::new(error, "it bounds every run here: make it readable, or remove it"));
        }
    };
    if !metadata.is_file() || !is_exclusively_ours(&metadata) {
        let error = anyhow!("{} belongs to another user, or others may write to it", path.display());
        return Err(Failure::new(error, "it bounds every run here: chmod 600, and make it yours"));
    }
    if flag.is_some() {
        let error = anyhow!("the floor of this machine is {}", path.display());
        return Err(Failure::usage(error, "leave --floor out, or change that file"));
    }
    Ok(Some(path))
}

/// Where the floor comes from.
pub fn origin(floor: Option<&Path>) -> ObjectOrigin {
    let from = match floor {
        Some(path) => Origin::File { path: printable(path.display().to_string()).into_owned() },
        None => Origin::Shipped,
    };
    ObjectOrigin { kind: POLICY_KIND.to_owned(), name: FLOOR_POLICY.to_owned(), from }
}
