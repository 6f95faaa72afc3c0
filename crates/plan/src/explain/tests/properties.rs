//! Properties of the explanation of every plan.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{Gate, VolumeSource};

use super::plans::any_plan;
use crate::explain::{Direction, Explanation, Power, Section, Unchanged, compare, explain};

/// The powers of one section, as owner and power.
fn of(powers: &[Power], section: Section) -> Vec<(&str, &str)> {
    let found = powers.iter().filter(|power| power.section == section);
    found.map(|power| (power.of.as_str(), power.what.as_str())).collect()
}

/// The identity of powers with their values.
fn set(powers: impl IntoIterator<Item = Power>) -> BTreeSet<(Section, String, String, Option<String>)> {
    let powers = powers.into_iter();
    powers.map(|power| (power.section, power.of, power.what, power.value)).collect()
}

fn every_mount_is_listed(plan: &RunPlan, explanation: &Explanation, powers: &[Power]) {
    let files = of(powers, Section::Files);
    for part in &plan.parts {
        for mount in &part.mounts {
            let mounts = explanation.parts.iter().find(|info| info.part == part.name.0);
            let mounts = mounts.expect("the part").mounts.iter();
            let mut mounts = mounts.filter(|listed| listed.path == mount.path.as_str());
            assert!(mounts.any(|listed| (listed.access == crate::explain::Access::ReadOnly) == mount.read_only));
            let start = format!("{}: ", mount.path);
            assert!(files.iter().any(|(of, what)| *of == part.name.0 && what.starts_with(&start)));
            if let Some(volume) = plan.volume(&mount.volume) {
                let volume_info = explanation.files.iter().find(|file| file.volume == volume.name.0);
                let by = &volume_info.expect("the volume").mounted_by;
                assert!(by.iter().any(|listed| listed.part == part.name.0 && listed.path == mount.path.as_str()));
            }
        }
    }
}

fn every_destination_is_listed(plan: &RunPlan, powers: &[Power]) {
    let network = of(powers, Section::Network);
    let names: BTreeSet<&str> = plan.parts.iter().map(|part| part.name.0.as_str()).collect();
    // A credential of a part that does not exist belongs to no part.
    for credential in plan.credentials.iter().filter(|credential| names.contains(credential.part.0.as_str())) {
        let part = credential.part.0.as_str();
        if credential.reach.public {
            assert!(network.contains(&(part, "any public host")));
        }
        for destination in &credential.reach.destinations {
            let host = if destination.host.contains(':') {
                format!("[{}]", destination.host)
            } else {
                destination.host.clone()
            };
            let authority = match destination.port {
                Some(port) => format!("{host}:{port}"),
                None => format!("{host}:*"),
            };
            assert!(network.contains(&(part, authority.as_str())), "{authority}");
        }
    }
}

fn every_rule_is_listed(plan: &RunPlan, powers: &[Power]) {
    let rights = of(powers, Section::Kubernetes);
    for identity in &plan.identities {
        let owner = identity.pack.as_deref().unwrap_or("the hooks");
        for (rules, place) in
            [(&identity.namespace_rules, "in the namespace"), (&identity.cluster_rules, "in the whole cluster")]
        {
            for rule in rules {
                for (verb, resource) in
                    rule.verbs.iter().flat_map(|verb| rule.resources.iter().map(move |resource| (verb, resource)))
                {
                    let start = format!("{verb} {resource}");
                    let mut listed = rights.iter();
                    assert!(listed.any(|(of, what)| *of == owner && what.starts_with(&start) && what.ends_with(place)));
                }
            }
        }
    }
}

fn every_secret_is_listed(plan: &RunPlan, explanation: &Explanation) {
    let check = |secret: &str, part: Option<&str>| {
        let all = explanation.secrets.iter().filter(|info| info.secret == secret);
        let mut seen = all.flat_map(|info| &info.seen);
        assert!(seen.any(|secret_use| secret_use.part.as_deref() == part), "{secret:?} {part:?}");
    };
    for part in &plan.parts {
        for variable in &part.env {
            let from = variable.value_from.as_ref();
            if let Some(key) = from.and_then(|from| from.secret_key_ref.as_ref()) {
                check(key.name.as_str(), Some(&part.name.0));
            }
        }
        for mount in &part.mounts {
            match plan.volume(&mount.volume).map(|volume| &volume.source) {
                Some(VolumeSource::Secret { secret }) => check(secret.as_str(), Some(&part.name.0)),
                Some(VolumeSource::Declared { volume }) => {
                    let text = serde_json::to_value(volume).expect("JSON");
                    if let Some(secret) = text["secret"]["secretName"].as_str() {
                        check(secret, Some(&part.name.0));
                    }
                    let sources = text["projected"]["sources"].as_array();
                    for source in sources.into_iter().flatten() {
                        if let Some(secret) = source["secret"]["name"].as_str() {
                            check(secret, Some(&part.name.0));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    for key in &plan.model.keys {
        check(key.secret.as_str(), Some("ipc-bridge"));
    }
    if let Some(secret) = &plan.model.headers_secret {
        check(secret.as_str(), Some("ipc-bridge"));
    }
    for secret in &plan.placement.image_pull_secrets {
        check(secret.name.as_str(), None);
    }
}

fn every_tool_is_listed(plan: &RunPlan, explanation: &Explanation, powers: &[Power]) {
    assert_eq!(explanation.tools.len(), plan.tools.len());
    let tools = of(powers, Section::Tools);
    for tool in plan.tools.iter().filter(|tool| tool.gate != Gate::Deny) {
        let pack = tool.pack.as_deref().unwrap_or_default();
        assert!(tools.contains(&(pack, tool.name.as_str())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_power_of_a_plan_is_explained(plan in any_plan()) {
        let explanation = explain(&plan);
        let powers = explanation.powers();
        every_mount_is_listed(&plan, &explanation, &powers);
        every_destination_is_listed(&plan, &powers);
        every_rule_is_listed(&plan, &powers);
        every_secret_is_listed(&plan, &explanation);
        every_tool_is_listed(&plan, &explanation, &powers);
        for part in &plan.parts {
            let access = part.host_access.as_ref().filter(|host_access| host_access.enabled);
            if access.is_some_and(|access| access.privileged || access.host_network || !access.mounts.is_empty()) {
                let node = of(&powers, Section::Node);
                prop_assert!(node.iter().any(|(of, _)| *of == part.name.0));
            }
        }
    }

    #[test]
    fn nothing_changes_between_a_plan_and_itself(plan in any_plan()) {
        let explanation = explain(&plan);
        let all = explanation.powers().len();
        prop_assert_eq!(compare(&explanation, &explanation), (Vec::new(), Unchanged(all)));
    }

    #[test]
    fn a_comparison_loses_nothing(old in any_plan(), new in any_plan()) {
        let (old, new) = (explain(&old), explain(&new));
        let (changes, Unchanged(kept)) = compare(&old, &new);
        let (before, after) = (set(old.powers()), set(new.powers()));
        let there = changes.iter().filter(|change| change.direction != Direction::Removed);
        let changed = set(there.map(|change| change.power.clone()));
        let common: BTreeSet<_> = before.intersection(&after).cloned().collect();
        prop_assert_eq!(common.len(), kept);
        let union: BTreeSet<_> = changed.union(&common).cloned().collect();
        prop_assert_eq!(union, after);
        // In the other direction, removed powers are added ones.
        let (back, _) = compare(&new, &old);
        let keys = |changes: &[crate::explain::Change], direction| -> BTreeSet<(Section, String, String)> {
            let found = changes.iter().filter(|change| change.direction == direction);
            found.map(|change| (change.power.section, change.power.of.clone(), change.power.what.clone())).collect()
        };
        prop_assert_eq!(keys(&changes, Direction::Added), keys(&back, Direction::Removed));
        prop_assert_eq!(keys(&changes, Direction::Removed), keys(&back, Direction::Added));
    }
}
