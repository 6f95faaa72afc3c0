//! Properties of every plan: powers only shrink, the agent has none, and skills see nothing of each other.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sympozium_api::Guarantee;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{Gate, Part, Role, VolumeSource, paths};
use sympozium_testkit::runs::generated;

use super::harness::Harness;
use super::powers::{Powers, secrets_of};
use crate::admit::Admitted;
use crate::path::overlap;
use crate::plan::{PlanSettings, Planned, agent_view, plan};

/// Checks the plan of a generated run; does nothing when the run is denied.
fn each_plan(
    seed: u64,
    look: impl FnOnce(&Planned<'_>, &Admitted<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let settings = PlanSettings::default();
    Harness::from_objects(generated(seed))
        .with_admitted(|input, admitted| {
            let planned = plan(input, admitted, &settings).expect("a plan");
            look(&planned, admitted)
        })
        .unwrap_or(Ok(()))
}

/// Whether a part reads a Secret or a token.
fn holds_credential(plan: &RunPlan, part: &Part) -> bool {
    part.mounts.iter().any(|mount| {
        let source = plan.volume(&mount.volume).map(|volume| &volume.source);
        match source.expect("the volume is there") {
            VolumeSource::Secret { .. } | VolumeSource::Token { .. } => true,
            VolumeSource::Declared { volume } => volume.holds_credential(),
            _ => false,
        }
    })
}

#[test]
fn most_generated_runs_are_admitted() {
    let admitted = |seed: &u64| Harness::from_objects(generated(*seed)).with_admitted(|_, _| ()).is_ok();
    let count = (0..200).filter(admitted).count();
    assert!(count > 120, "{count} of 200");
}

/// The properties below are only as good as the runs that are generated for them.
#[test]
fn generated_runs_have_every_kind_of_power() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let looked = each_plan(seed, |planned, _| {
            let plan = &planned.plan;
            let mut note = |what, is: bool| is.then(|| seen.insert(what));
            for part in &plan.parts {
                note("host access", part.host_access.is_some());
                note("an identity", part.identity.is_some());
            }
            for volume in &plan.volumes {
                match &volume.source {
                    VolumeSource::Host { .. } => note("a host path", true),
                    VolumeSource::Secret { .. } => note("a Secret", true),
                    VolumeSource::Declared { volume } => {
                        note("a declared host path", volume.source.contains_key("hostPath"));
                        note("a declared Secret", volume.source.contains_key("secret"));
                        let is_projected = volume.source.contains_key("projected");
                        note("a projected Secret", is_projected && volume.holds_credential());
                        note("a projected ConfigMap", is_projected && !volume.holds_credential())
                    }
                    _ => None,
                };
            }
            note("headers in a Secret", plan.model.headers_secret.is_some());
            note("a script", plan.model.script.is_some());
            let host = plan.model.endpoint.as_ref().map(|endpoint| endpoint.host.as_str()).unwrap_or_default();
            note("a model at an address", host == "llm.example.com");
            note("a model in the cluster", host.ends_with(".svc"));
            note("secrets to pull with", !plan.placement.image_pull_secrets.is_empty());
            note("a chosen node", !plan.placement.node_selector.is_empty());
            note("a floor", !plan.isolation.floor.is_empty());
            note("a kernel", plan.isolation.floor.contains(&Guarantee::Kernel));
            note("a filter of its own", plan.isolation.seccomp.localhost_profile.is_some());
            note("a parent", plan.run.parent.is_some());
            Ok(())
        });
        looked.expect("nothing is checked");
    }
    let all = [
        "a chosen node",
        "a declared Secret",
        "a declared host path",
        "a filter of its own",
        "a floor",
        "a host path",
        "a kernel",
        "a model at an address",
        "a model in the cluster",
        "a parent",
        "a projected ConfigMap",
        "a projected Secret",
        "a script",
        "a Secret",
        "an identity",
        "headers in a Secret",
        "host access",
        "secrets to pull with",
    ];
    assert_eq!(seen, BTreeSet::from(all));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn equal_inputs_are_equal_bytes_and_plans_read_back(seed: u64) {
        each_plan(seed, |first, _| {
            let mut again = None;
            each_plan(seed, |second, _| { again = Some(second.bytes.clone()); Ok(()) })?;
            prop_assert_eq!(Some(&first.bytes), again.as_ref());
            let read = RunPlan::read_verified(&first.bytes, &first.digest).expect("it reads back");
            prop_assert_eq!(&read, &first.plan);
            prop_assert_eq!(read.to_bytes().expect("JSON"), first.bytes.clone());
            Ok(())
        })?;
    }

    /// Invariant 1: no credential, and no route but the door.
    #[test]
    fn the_agent_holds_nothing(seed: u64) {
        each_plan(seed, |planned, _| {
            let plan = &planned.plan;
            let agent = &plan.parts[0];
            prop_assert_eq!(&agent.role, &Role::Agent);
            prop_assert!(!holds_credential(plan, agent));
            prop_assert!(agent.env.iter().all(|env| env.value_from.is_none()));
            prop_assert!(agent.identity.is_none() && agent.host_access.is_none());
            prop_assert!(plan.credentials.iter().all(|credential| credential.part != agent.name));
            prop_assert!(agent.mounts.iter().all(|mount| !overlap(mount.path.as_str(), paths::IPC)));
            // Its view of the plan has no address, no Secret and no denied tool.
            let view = serde_json::to_string(&agent_view(plan)).expect("JSON");
            let pulled = plan.placement.image_pull_secrets.iter().map(|image_pull_secret| image_pull_secret.name.as_str());
            let seen = plan.parts.iter().flat_map(|part| secrets_of(plan, part));
            let address = plan.model.endpoint.iter().map(|endpoint| endpoint.host.as_str());
            for hidden in seen.chain(pulled).chain(address) {
                prop_assert!(!view.contains(hidden), "{} is told to the agent", hidden);
            }
            let denied = plan.tools.iter().filter(|tool| tool.gate == Gate::Deny);
            for tool in denied.filter(|tool| plan.tools.iter().all(|other| other.name != tool.name || other.gate == Gate::Deny)) {
                let name = format!("\"name\":\"{}\"", tool.name);
                prop_assert!(!view.contains(&name), "{} is offered", tool.name);
            }
            Ok(())
        })?;
    }

    /// Invariant 2: plan ⊆ admitted ⊆ policy.
    #[test]
    fn powers_only_shrink(seed: u64) {
        let settings = PlanSettings::default();
        let looked = Harness::from_objects(generated(seed)).with_admitted(|input, admitted| {
            let planned = plan(input, admitted, &settings).expect("a plan");
            Powers { plan: &planned.plan, admitted, input }.only_shrink();
        });
        // A denied run has no powers.
        drop(looked);
    }

    #[test]
    fn every_volume_has_one_owner_and_every_mount_a_place(seed: u64) {
        each_plan(seed, |planned, _| {
            let plan = &planned.plan;
            let names: BTreeSet<_> = plan.volumes.iter().map(|volume| &volume.name).collect();
            prop_assert_eq!(names.len(), plan.volumes.len());
            let parts: BTreeSet<_> = plan.parts.iter().map(|part| &part.name).collect();
            prop_assert_eq!(parts.len(), plan.parts.len());
            for volume in &plan.volumes {
                prop_assert_eq!(sympozium_api::names::LabelName::new(volume.name.0.clone()).check(), Ok(()));
                let by: Vec<&Role> = plan.parts_mounting(&volume.name).map(|part| &part.role).collect();
                prop_assert!(!by.is_empty(), "{} is mounted by no part", volume.name);
                match volume.name.0.as_str() {
                    "workspace" => prop_assert!(!by.contains(&&Role::Bridge)),
                    "door" => prop_assert_eq!(by, [&Role::Agent, &Role::Bridge]),
                    name if name.ends_with("-ipc") => {
                        prop_assert_eq!(by.len(), 2);
                        prop_assert_eq!(by[0], &Role::Bridge);
                        prop_assert!(by[1].pack().is_some());
                    }
                    name => prop_assert_eq!(by.len(), 1, "{} is mounted by {:?}", name, by),
                }
            }
            for part in &plan.parts {
                prop_assert_eq!(sympozium_api::names::LabelName::new(part.name.0.clone()).check(), Ok(()));
                let places: Vec<&str> = part.mounts.iter().map(|mount| mount.path.as_str()).collect();
                for own in [paths::TMP, paths::SHM] {
                    prop_assert!(places.contains(&own));
                }
                for (index, one) in places.iter().enumerate() {
                    for other in &places[..index] {
                        prop_assert!(!overlap(one, other), "{}: {one} and {other}", part.name);
                    }
                }
                let variables: BTreeSet<_> = part.env.iter().map(|env| &env.name).collect();
                prop_assert_eq!(variables.len(), part.env.len());
            }
            Ok(())
        })?;
    }
}

#[test]
fn what_a_reader_does_not_know_it_refuses() {
    let mut tried = 0;
    each_plan(3, |planned, _| {
        let known: serde_json::Value = serde_json::from_slice(&planned.bytes).expect("JSON");
        let places = [
            "",
            "/run",
            "/task",
            "/model",
            "/workload",
            "/isolation",
            "/parts/0",
            "/parts/0/role",
            "/parts/0/start",
            "/parts/0/mounts/0",
            "/parts/0/amounts",
            "/volumes/0",
            "/volumes/0/source",
            "/tools/0",
            "/tools/0/acts",
            "/tools/0/limits",
            "/approval",
            "/subagents",
            "/limits",
            "/deadlines",
            "/placement",
            "/credentials/0",
            "/credentials/0/reach",
        ];
        for place in places {
            let mut plan = known.clone();
            plan.pointer_mut(place).expect(place)["new"] = serde_json::json!(true);
            let bytes = sympozium_api::digest::to_canonical_json(&plan).expect("JSON");
            prop_assert!(RunPlan::read(&bytes).is_err(), "a new field in `{}` is ignored", place);
            tried += 1;
        }
        let mut plan = known;
        plan["format"] = serde_json::json!("sympozium.ai/run-plan/v2");
        let error = RunPlan::read(&serde_json::to_vec(&plan).expect("JSON")).expect_err("another format");
        prop_assert_eq!(
            error.to_string(),
            "the plan is written as `sympozium.ai/run-plan/v2`; this release reads `sympozium.ai/run-plan/v1`"
        );
        Ok(())
    })
    .expect("a plan");
    assert!(tried > 0);
}
