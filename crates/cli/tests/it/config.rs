//! Every manifest that the project ships or documents is valid.

use std::fs;

use serde_json::{Value, json};
use sympozium_testkit::static_build::workspace_root;

use crate::{format_output, sympozium, sympozium_reading};

/// Directories with manifests to apply.
const DIRECTORIES: &[&str] = &["config", "examples"];

/// The manifests of the seeds: objects, parts of objects, and patches.
const SEEDS: &str = "config/samples/seeds";

/// A run of the seeds that is not supported yet, and the rule that denies it.
const UNSERVED: (&str, &str) = ("003-agentrun-my-secure-run.yaml", "warm-pool-unserved");

/// Every complete object below the directories.
fn manifests() -> Vec<String> {
    let mut found = Vec::new();
    let mut directories: Vec<_> = DIRECTORIES
        .iter()
        .map(|directory| workspace_root().join(directory))
        .filter(|directory| directory.is_dir())
        .collect();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_str().unwrap().to_owned();
            let is_manifest = [".yaml", ".yml", ".json"].iter().any(|it| name.ends_with(it));
            let is_part = name.contains("-fragment-") || name.contains("-patch-");
            if path.is_dir() {
                directories.push(path);
            } else if is_manifest && !is_part {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_shipped_manifest_is_valid() {
    let manifests = manifests();
    assert!(manifests.len() > 9, "{manifests:?}");
    for manifest in manifests {
        let output = sympozium(&["validate", &manifest]);
        let (unserved, rule) = UNSERVED;
        if manifest.ends_with(unserved) {
            assert_eq!(output.status.code(), Some(3), "{}", format_output(&output));
            assert!(format_output(&output).contains(rule), "{}", format_output(&output));
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{}", format_output(&output));
    }
}

#[test]
fn completed_fragments_of_the_seeds_are_valid() {
    let mut count = 0;
    for entry in fs::read_dir(workspace_root().join(SEEDS)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let whole = if name.contains("-fragment-") {
            within_a_pack(&text)
        } else if name.contains("-patch-") {
            patched_agent(&text)
        } else {
            continue;
        };
        count += 1;
        let output = sympozium_reading(&["validate", "-"], whole.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{name}: {}", format_output(&output));
    }
    assert!(count >= 5, "{count} parts");
}

/// A part of a pack's spec, in the smallest pack that it fits into. The text stays as it is, so that its lines are read
/// as a user would write them.
fn within_a_pack(fragment: &str) -> String {
    let mut whole =
        "apiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata:\n  name: pack\nspec:\n  skills: []\n".to_owned();
    for line in fragment.lines() {
        whole.push_str(&format!("  {line}\n"));
        if line == "sidecar:" && !fragment.contains("image:") {
            whole.push_str("    image: ghcr.io/example/skill:1\n");
        }
    }
    whole
}

fn patched_agent(patch: &str) -> String {
    let patch: Value = serde_json::from_str(patch).unwrap();
    let agent = json!({
        "apiVersion": "sympozium.ai/v1alpha1",
        "kind": "SympoziumInstance",
        "metadata": {"name": "agent"},
        "spec": {"agents": {"default": {"model": "m"}}, "skills": patch["spec"]["skills"]},
    });
    agent.to_string()
}

/// The fixtures of the kinds, which have every field.
#[test]
fn manifests_with_every_field_match_their_schemas() {
    let directory = workspace_root().join("crates/api/tests/fixtures/full");
    let output = sympozium(&["validate", "-o", "json", directory.to_str().unwrap()]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["errors"], 0, "{}", format_output(&output));
    assert_eq!(answer["objects"], 8);
}

#[test]
fn every_manifest_in_the_docs_is_valid() {
    let docs = fs::read_dir(workspace_root().join("docs")).unwrap();
    let mut pages: Vec<_> = docs.map(|entry| entry.unwrap().path()).collect();
    pages.push(workspace_root().join("README.md"));
    let mut count = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(page).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            let manifest = block.split("```").next().unwrap();
            if manifest.contains("apiVersion: sympozium.ai/") {
                count += 1;
                let output = sympozium_reading(&["validate", "-"], manifest.as_bytes());
                let page = page.display();
                assert_eq!(output.status.code(), Some(0), "{page}: {}", format_output(&output));
            }
        }
    }
    assert!(count > 0, "no page shows a manifest");
}
