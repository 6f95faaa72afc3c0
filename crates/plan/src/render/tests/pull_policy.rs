//! The author of an image chooses when it is pulled, and the policy reaches its container.

use super::checks::{containers, pods};
use super::rendered;
use crate::render::RenderSettings;

const SKILL: &str = include_str!("fixtures/one-skill.yaml");
const SANDBOX_AND_HOOKS: &str = include_str!("fixtures/sandbox-and-hooks.yaml");

/// The containers of all pods that have a policy: name and policy.
fn policies(manifests: &str) -> Vec<(String, String)> {
    let (_, rendered) = rendered(manifests, &RenderSettings::default());
    let pods: Vec<_> = pods(&rendered).map(|(pod, _)| pod).collect();
    let with_policy = pods.iter().flat_map(containers).filter_map(|container| {
        let policy = container.image_pull_policy.clone()?;
        Some((container.name.clone(), policy))
    });
    with_policy.collect()
}

#[test]
fn it_reaches_the_container_of_the_image_and_no_other() {
    for (manifests, before, container) in [
        (SKILL, "  sidecar:\n    ", "skill-tickets"),
        (SANDBOX_AND_HOOKS, "sandbox: {", "sandbox"),
        (SANDBOX_AND_HOOKS, "{name: fetch, ", "pre-fetch"),
        (SANDBOX_AND_HOOKS, "{name: verdict, ", "post-verdict"),
    ] {
        assert_eq!(policies(manifests), [], "{container}");
        let (head, tail) = manifests.split_once(before).expect("it is there");
        let between = if before.ends_with("    ") { "\n    " } else { ", " };
        for policy in ["Always", "IfNotPresent", "Never"] {
            let chosen = format!("{head}{before}imagePullPolicy: {policy}{between}{tail}");
            let expected = [(container.to_owned(), policy.to_owned())];
            assert_eq!(policies(&chosen), expected, "{container}");
        }
    }
}
