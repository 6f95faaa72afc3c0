//! `sympozium version`: the version of this program and of the manifests that it reads.

use std::process::ExitCode;

use serde::Serialize;
use sympozium_api::labels::API_VERSION;
use sympozium_manifests::kinds::Kind;

use crate::arguments::{OutputFormat, VersionArguments};
use crate::failure::Failure;
use crate::output::{print_stdout, to_json};

/// The commit that the program was built from, if the build set this variable. A package has no repository to query,
/// and querying one would rebuild the program after every commit.
const COMMIT: Option<&str> = option_env!("SYMPOZIUM_COMMIT");

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    /// `null` when the build did not set it.
    commit: Option<&'static str>,
    /// The version of the manifests that the program reads.
    api_version: &'static str,
    kinds: Vec<&'static str>,
}

pub fn run(arguments: &VersionArguments) -> Result<ExitCode, Failure> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT,
        api_version: API_VERSION,
        kinds: Kind::ALL.iter().map(|kind| kind.name()).collect(),
    };
    print_stdout(&match arguments.output {
        OutputFormat::Json => to_json(&version)?,
        OutputFormat::Text => text(&version),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn text(version: &Version) -> String {
    let commit = match version.commit {
        Some(commit) => format!(" ({commit})"),
        None => String::new(),
    };
    format!("sympozium {}{commit}\nreads {}: {}\n", version.version, version.api_version, version.kinds.join(", "))
}
