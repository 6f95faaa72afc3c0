//! What tokens cost, where the user keeps a table of prices.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use sympozium_plan::prices::{MAX_BYTES, Prices};

use crate::failure::Failure;

/// The table in the configuration directory.
const FILE_NAME: &str = "prices.json";

/// The prices of `CONFIG/prices.json`; none where there is no such file.
///
/// # Errors
///
/// When it is there and cannot be used: a run without a cost would look like one whose model has no price.
pub fn read(configuration: Option<&Path>) -> Result<Option<Prices>, Failure> {
    let Some(path) = configuration.map(|it| it.join(FILE_NAME)) else {
        return Ok(None);
    };
    let read = || -> anyhow::Result<Option<Prices>> {
        // Before it is opened: a pipe would keep us waiting.
        let found = match fs::metadata(&path) {
            // A link to nowhere is a table that cannot be read.
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
