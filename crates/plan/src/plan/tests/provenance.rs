//! Invariant 12: everything in a plan was checked by admission.
//!
//! [`walk::trace`] walks through a plan a second time, without admission's code and types: it reads the plan and the
//! manifests as JSON, and finds for every destination, permission, Secret, mount, host namespace, image and variable
//! the field of a manifest that allows it. Where no field does, it fails. That it can fail is tested in three ways:
//! something is added to the plan, a field is removed from a manifest, or a rule of admission is suspended and
//! something is added to a manifest that only this rule denies.

mod isolation;
mod mutations;
mod network;
mod node;
mod permissions;
mod variables;
mod volumes;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::Value;
use sympozium_testkit::runs::{generated, keeping_rules, violations};

use super::harness::Harness;
use crate::admit::violation::suspension::without_rules;
use crate::plan::{PlanSettings, plan};
use mutations::{MUTATIONS, take_away};
use walk::trace;

/// The plan of generated objects as JSON; `None` when the run is denied.
fn plan_value(objects: &[Value]) -> Option<Value> {
    let harness = Harness::try_from_objects(objects.to_vec())?;
    decide(&harness).ok()
}

/// The plan, or the rules that deny the run.
fn decide(harness: &Harness) -> Result<Value, BTreeSet<&'static str>> {
    let planned = harness.with_admitted(|input, admitted| {
        let planned = plan(input, admitted, &PlanSettings::default()).expect("a plan");
        serde_json::from_slice(&planned.bytes).expect("JSON")
    });
    planned.map_err(|reasons| reasons.iter().map(|reason| reason.rule).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_power_of_a_plan_is_traced_to_the_field_that_allows_it(seed: u64) {
        let objects = generated(seed);
        if let Some(plan) = plan_value(&objects) {
            let traced = trace(&plan, &objects);
            prop_assert!(traced.is_ok(), "{:?}", traced.err());
        }
    }

    /// A field that allows something is necessary: without it the same plan is no longer allowed, and admission
    /// notices.
    #[test]
    fn without_a_field_that_allows_it_a_plan_is_not_traced(seed: u64) {
        let objects = generated(seed);
        let Some(plan) = plan_value(&objects) else { return Ok(()) };
        for field in trace(&plan, &objects).unwrap_or_default() {
            let mut less = objects.clone();
            take_away(&mut less, &field);
            prop_assert!(trace(&plan, &less).is_err(), "{:?} is not needed", field);
            // The plan that admission then makes is traced again, or there is none.
            if let Some(plan) = plan_value(&less) {
                let traced = trace(&plan, &less);
                prop_assert!(traced.is_ok(), "without {:?}: {:?}", field, traced.err());
            }
        }
    }

    /// A plan with anything that admission has not checked is not traced.
    #[test]
    fn with_anything_more_a_plan_is_not_traced(seed: u64) {
        let objects = generated(seed);
        let Some(plan) = plan_value(&objects) else { return Ok(()) };
        for (what, mutate) in MUTATIONS {
            let mut more = plan.clone();
            if mutate(&mut more) {
                prop_assert_ne!(&more, &plan, "{}: nothing is changed", what);
                prop_assert!(trace(&more, &objects).is_err(), "{}: it is traced all the same", what);
            }
        }
    }
}

/// Runs in which each violation is tried, and in how many of them it must be denied by its rule alone, and noticed
/// without the rule.
const TRIED_RUNS: u64 = 120;
const DENIED_RUNS: usize = 3;

/// A plan contains nothing that a rule denies. No other rule denies these runs: without the rule they are planned, and
/// the walk, which has tables of its own, does not trace the plan.
#[test]
fn what_a_rule_denies_is_in_no_plan() {
    let keep = |seed: u64| Some(keeping_rules(seed)).filter(|objects| plan_value(objects).is_some());
    let runs: Vec<Vec<Value>> = (0..TRIED_RUNS).filter_map(keep).collect();
    let mut unproven = Vec::new();
    for violation in violations() {
        let (rule, what) = (violation.rule, violation.what);
        let mut others = BTreeSet::new();
        let (mut denied, mut noticed) = (0, 0);
        for objects in runs.iter().filter_map(|run| violation.apply(run.clone())) {
            let harness = Harness::try_from_objects(objects.clone()).expect("objects of their kinds");
            match decide(&harness) {
                Ok(plan) => {
                    let traced = trace(&plan, &objects);
                    assert!(traced.is_ok(), "{rule}: {what} is planned: {:?}", traced.err());
                }
                Err(rules) => {
                    // Permissions that an author does not hold are denied too: the author of hooks is unknown, so no
                    // other rule denies alone.
                    let own = BTreeSet::from([rule, "rbac-author"]);
                    if rules.contains(rule) && rules.is_subset(&own) {
                        denied += 1;
                        let plan = without_rules(&rules, || decide(&harness));
                        noticed += usize::from(plan.is_ok_and(|plan| trace(&plan, &objects).is_err()));
                    }
                    others.extend(rules);
                }
            }
            if denied.min(noticed) == DENIED_RUNS {
                break;
            }
        }
        if denied.min(noticed) < DENIED_RUNS {
            unproven.push(format!(
                "{rule}: {what}: denied alone {denied} times (rules: {others:?}), noticed without it {noticed} times"
            ));
        }
    }
    assert!(unproven.is_empty(), "{}", unproven.join("\n"));
}

/// A section of a policy that admission does not read is noticed: a plan made without it is not traced to manifests
/// that have it.
#[test]
fn a_part_of_a_policy_that_is_not_read_is_noticed() {
    // For sections that open something by being present, the field that bounds it.
    let parts = [
        "/spec/networkPolicy",
        "/spec/modelPolicy",
        "/spec/imagePolicy",
        "/spec/packPolicy",
        "/spec/hostAccessPolicy/packs",
        "/spec/lifecyclePolicy",
        "/spec/sandboxPolicy",
        "/spec/toolGating",
        "/spec/featureGates",
    ];
    // Most generated runs comply with their policies: those with a violation are what a section denies.
    let kept: Vec<Vec<Value>> = (0..6).map(keeping_rules).collect();
    let violated =
        violations().flat_map(|violation| kept.iter().filter_map(|objects| violation.apply(objects.clone())));
    let runs: Vec<Vec<Value>> = violated.chain((0..TRIED_RUNS).map(generated)).collect();
    for part in parts {
        let (parent, field) = part.rsplit_once('/').expect("a path");
        for is_floor in [true, false] {
            let is_noticed = runs.iter().any(|objects| {
                let mut less = objects.clone();
                let policy = less.iter_mut().find(|object| {
                    object["kind"] == "SympoziumPolicy" && (object["metadata"]["name"] == "floor") == is_floor
                });
                let parent = policy.and_then(|policy| policy.pointer_mut(parent)?.as_object_mut());
                parent.is_some_and(|parent| parent.remove(field).is_some())
                    && plan_value(&less).is_some_and(|plan| trace(&plan, objects).is_err())
            });
            assert!(is_noticed, "{part}, of the floor: {is_floor}");
        }
    }
}

/// The properties are only as good as the generated runs: every mutation must have something to change, and every kind
/// of field must allow something.
#[test]
fn everything_is_tried() {
    let mut tried: BTreeMap<&str, u32> = MUTATIONS.iter().map(|(what, _)| (*what, 0)).collect();
    let mut fields = BTreeSet::new();
    for seed in 0..300 {
        let objects = generated(seed);
        let Some(plan) = plan_value(&objects) else {
            continue;
        };
        for (what, mutate) in MUTATIONS {
            *tried.entry(what).or_default() += u32::from(mutate(&mut plan.clone()));
        }
        for (object, pointer) in trace(&plan, &objects).expect("it is traced") {
            let object = &objects[object];
            let kind =
                if object["metadata"]["name"] == "floor" { "floor" } else { object["kind"].as_str().expect("a kind") };
            let name = |word: &str| word.parse::<u32>().is_err();
            let words: Vec<&str> = pointer.split('/').filter(|word| name(word)).collect();
            fields.insert(format!("{kind}{}", words.join("/")));
        }
    }
    let never: Vec<_> = tried.iter().filter(|(_, times)| **times == 0).collect();
    assert_eq!(never, [], "mutations that never had anything to change");
    let needed = [
        "AgentRun/spec/env",
        "AgentRun/spec/imagePullSecrets",
        "AgentRun/spec/lifecycle/postRun/envFromRun",
        "AgentRun/spec/lifecycle/preRun/envFromRun",
        "AgentRun/spec/lifecycle/preRun/image",
        "AgentRun/spec/lifecycle/rbac",
        "AgentRun/spec/model/authSecretRef",
        "AgentRun/spec/model/modelRef",
        "AgentRun/spec/model/providerHeadersSecretRef",
        "AgentRun/spec/sandbox/image",
        "AgentRun/spec/skills",
        "AgentRun/spec/volumes",
        "Agent/spec/agents/default/lifecycle/rbac",
        "Agent/spec/agents/default/lifecycle/preRun/envFromRun",
        "Agent/spec/agents/default/lifecycle/preRun/image",
        "Agent/spec/agents/default/env",
        "SkillPack/spec/sidecar/clusterRBAC",
        "SkillPack/spec/sidecar/egress",
        "SkillPack/spec/sidecar/env",
        "SkillPack/spec/sidecar/hostAccess/hostNetwork",
        "SkillPack/spec/sidecar/hostAccess/mounts",
        "SkillPack/spec/sidecar/image",
        "SkillPack/spec/sidecar/mountWorkspace",
        "SkillPack/spec/sidecar/rbac",
        "SkillPack/spec/sidecar/secretRef",
        "SkillPack/spec/sidecar/volumes",
        "SympoziumPolicy/spec/hostAccessPolicy",
        "SympoziumPolicy/spec/hostAccessPolicy/allowedHostPaths",
        "SympoziumPolicy/spec/hostAccessPolicy/hostNetwork",
        "SympoziumPolicy/spec/hostAccessPolicy/hostPID",
        "SympoziumPolicy/spec/hostAccessPolicy/packs",
        "SympoziumPolicy/spec/hostAccessPolicy/privileged",
        "SympoziumPolicy/spec/hostAccessPolicy/runAsRoot",
        "SympoziumPolicy/spec/imagePolicy/allowedRegistries",
        "SympoziumPolicy/spec/modelPolicy/allowedModels",
        "SympoziumPolicy/spec/modelPolicy/allowedNamespaces",
        "SympoziumPolicy/spec/networkPolicy/allowedEgress",
        "SympoziumPolicy/spec/networkPolicy/denyAll",
        "SympoziumPolicy/spec/packPolicy/allowShadowing",
        "SympoziumPolicy/spec/packPolicy/allowedPacks",
        "SympoziumPolicy/spec/rbacPolicy/ceiling",
        "SympoziumPolicy/spec/rbacPolicy/exceptions",
        "SympoziumPolicy/spec/sandboxPolicy/allowHostMounts",
        "SympoziumPolicy/spec/sandboxPolicy/defaultImage",
        "SympoziumPolicy/spec/sandboxPolicy/seccompProfile",
        "floor/spec/hostAccessPolicy/allowedHostPaths",
        "floor/spec/hostAccessPolicy/hostNetwork",
        "floor/spec/hostAccessPolicy/namespaces",
        "floor/spec/imagePolicy/allowedRegistries",
        "floor/spec/modelPolicy/allowedModels",
        "floor/spec/modelPolicy/allowedNamespaces",
        "floor/spec/networkPolicy/allowedEgress",
        "floor/spec/networkPolicy/denyAll",
        "floor/spec/packPolicy/allowedPacks",
        "floor/spec/rbacPolicy/ceiling",
        "floor/spec/rbacPolicy/clusterRBACNamespaces",
        "floor/spec/rbacPolicy/exceptions",
        "floor/spec/sandboxPolicy/allowHostMounts",
    ];
    let missing: Vec<_> = needed.iter().filter(|field| !fields.contains(**field)).collect();
    assert_eq!(missing, Vec::<&&str>::new(), "of {fields:#?}");
}
