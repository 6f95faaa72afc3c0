//! The user's price table.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use sympozium_plan::prices::{MAX_BYTES, Prices};

use crate::failure::Failure;

/// In the configuration directory.
const FILE_NAME: &str = "prices.json";

/// Reads `CONFIG/prices.json`; `None` if it does not exist. A file that cannot be used is an error: a run without a
/// cost would look like one whose model has no price.
pub fn read(configuration: Option<&Path>) -> Result<Option<Prices>, Failure> {
    let Some(path) = configuration.map(|it| it.join(FILE_NAME)) else {
        return Ok(None);
    };
    let read = || -> anyhow::Result<Option<Prices>> {
        // Checked before opening: opening a pipe would block.
        let found = match fs::metadata(&path) {
            // A dangling link is a table that cannot be read.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
                return Ok(None);
            }
            found => found?,
        };
        ensure!(found.is_file(), "it is not a file");
        let mut text = String::new();
        let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX) + 1;
        File::open(&path)?.take(most).read_to_string(&mut text)?;
        Ok(Some(Prices::parse(&text)?))
    };
    read().with_context(|| format!("the prices in {} cannot be used", path.display())).map_err(|error| {
        Failure::new(error, "correct it, or remove it: runs then have no cost; docs/controller.md shows such a table")
    })
}
