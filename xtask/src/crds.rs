//! `crds`: the definitions of our kinds, written from their Rust types.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::output::line;
use crate::process::workspace_root;

/// Where they are, one file for each kind.
const DIRECTORY: &str = "config/crds";
/// The first line of each file.
const HEAD: &str = "# Generated from crates/api by `cargo xtask crds`; `cargo xtask check` fails when it is out of date.\n";

/// Writes them, and removes files of kinds that are gone.
pub fn run() -> anyhow::Result<()> {
    let directory = directory();
    fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    let files = files()?;
    for (name, text) in &files {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        line(&format!("wrote {DIRECTORY}/{name}"));
    }
    for name in leftovers(&files)? {
        let path = directory.join(&name);
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        line(&format!("removed {DIRECTORY}/{name}"));
    }
    Ok(())
}

/// What is not as it would be written.
pub fn check() -> anyhow::Result<Vec<String>> {
    let files = files()?;
    let mut problems: Vec<String> = leftovers(&files)?
        .into_iter()
        .map(|name| format!("{DIRECTORY}/{name} belongs to no kind; run `cargo xtask crds`"))
        .collect();
    for (name, text) in &files {
        if fs::read_to_string(directory().join(name)).ok().as_ref() != Some(text) {
            problems.push(format!(
                "{DIRECTORY}/{name} is not what the types say; run `cargo xtask crds`"
            ));
        }
    }
    Ok(problems)
}

fn directory() -> PathBuf {
    workspace_root().join(DIRECTORY)
}

/// Name and text of each file.
fn files() -> anyhow::Result<Vec<(String, String)>> {
    sympozium_api::crds::all().iter().map(file).collect()
}

fn file(definition: &CustomResourceDefinition) -> anyhow::Result<(String, String)> {
    let name = format!(
        "{}_{}.yaml",
        definition.spec.group, definition.spec.names.plural
    );
    // By way of a value: its keys are sorted, so the text does not depend on the order of fields anywhere.
    let value = serde_json::to_value(definition)?;
    let yaml = serde_saphyr::to_string(&value).with_context(|| format!("writing {name}"))?;
    let read: Value = serde_saphyr::from_str(&yaml).with_context(|| format!("reading {name}"))?;
    if read != value {
        bail!("{name} does not say in YAML what it says in JSON");
    }
    Ok((name, format!("{HEAD}{yaml}")))
}

/// Files there that no kind has.
fn leftovers(files: &[(String, String)]) -> anyhow::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(directory()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error).with_context(|| format!("listing {DIRECTORY}")),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        names.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    for (name, _) in files {
        names.remove(name);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_file_of_its_own() -> anyhow::Result<()> {
        let names: Vec<_> = files()?.into_iter().map(|(name, _)| name).collect();
        let kinds = [
            "agents",
            "sympoziuminstances",
            "agentruns",
            "skillpacks",
            "sympoziumpolicies",
            "sympoziumschedules",
            "models",
            "toolapprovals",
            "runrecords",
        ];
        assert_eq!(
            names,
            kinds.map(|plural| format!("sympozium.ai_{plural}.yaml"))
        );
        Ok(())
    }

    /// A policy's `minimumIsolation` is compared with what the executor reports, by name.
    #[test]
    fn policies_and_the_executor_know_the_same_guarantees() {
        assert_eq!(
            sympozium_api::Guarantee::ALL.map(sympozium_api::Guarantee::as_str),
            sympozium_exec::Guarantee::ALL.map(sympozium_exec::Guarantee::as_str),
        );
    }
}
