//! What holds of every plan: powers only shrink, the agent has none, and skills see nothing of each other.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sympozium_api::RunPlan;
use sympozium_api::environment::EnvVar;
use sympozium_api::run_plan::{Gate, Part, Role, VolumeSource, place};
use sympozium_testkit::runs::generated;

use super::world::World;
use crate::admit::Admitted;
use crate::host::Destination;
use crate::path::overlap;
use crate::plan::{PlanSettings, Planned, agent_view, plan};
use crate::policy::tools::Action;
use crate::rbac::Rule;

/// Looks at the plan of a generated run; nothing happens when it is denied.
fn each_plan(
    seed: u64,
    look: impl FnOnce(&Planned<'_>, &Admitted<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let settings = PlanSettings::default();
    World::of(generated(seed))
        .admitted(|input, admitted| {
            let planned = plan(input, admitted, &settings).expect("a plan");
            look(&planned, admitted)
        })
        .unwrap_or(Ok(()))
}

fn is_secret(plan: &RunPlan, part: &Part) -> bool {
    part.mounts.iter().any(|mount| {
        let source = plan.volume(&mount.volume).map(|it| &it.source);
        match source.expect("the volume is there") {
            VolumeSource::Secret { .. } | VolumeSource::Token { .. } => true,
            VolumeSource::Declared { volume } => volume
                .source
                .keys()
                .any(|it| ["secret", "projected"].contains(&it.as_str())),
            _ => false,
        }
    })
}

fn secret_of(variable: &EnvVar) -> Option<&str> {
    let from = variable.value_from.as_ref()?;
    Some(from.secret_key_ref.as_ref()?.name.as_str())
}

#[test]
fn most_generated_runs_are_admitted() {
    let admitted = |seed: &u64| World::of(generated(*seed)).admitted(|_, _| ()).is_ok();
    let count = (0..200).filter(admitted).count();
    assert!(count > 120, "{count} of 200");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn equal_inputs_are_equal_bytes_and_plans_read_back(seed: u64) {
        each_plan(seed, |first, _| {
            let mut again = None;
            each_plan(seed, |second, _| { again = Some(second.bytes.clone()); Ok(()) })?;
            prop_assert_eq!(Some(&first.bytes), again.as_ref());
            let read = RunPlan::read_expected(&first.bytes, &first.digest).expect("it reads back");
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
            prop_assert!(!is_secret(plan, agent));
            prop_assert!(agent.env.iter().all(|it| it.value_from.is_none()));
            prop_assert!(agent.identity.is_none() && agent.host_access.is_none());
            prop_assert!(plan.credentials.iter().all(|it| it.part != agent.name));
            prop_assert!(agent.mounts.iter().all(|it| !overlap(it.path.as_str(), place::IPC)));
            // What it reads of the plan tells it no address, no Secret and no denied tool.
            let view = serde_json::to_string(&agent_view(plan)).expect("JSON");
            prop_assert!(!view.contains("provider-key") && !view.contains("api.openai.com"));
            let denied = plan.tools.iter().filter(|it| it.gate == Gate::Deny);
            for tool in denied.filter(|it| plan.tools.iter().all(|other| other.name != it.name || other.gate == Gate::Deny)) {
                let name = format!("\"name\":\"{}\"", tool.name);
                prop_assert!(!view.contains(&name), "{} is offered", tool.name);
            }
            Ok(())
        })?;
    }

    /// Invariant 2: plan ⊆ admitted ⊆ policy.
    #[test]
    fn powers_only_shrink(seed: u64) {
        each_plan(seed, |planned, admitted| {
            let plan = &planned.plan;
            let sidecars: Vec<_> = admitted.packs.iter().filter_map(|it| Some((it.name.as_str(), it.sidecar()?))).collect();
            let sidecar = |pack: &str| sidecars.iter().find(|(name, _)| *name == pack).map(|(_, it)| *it);
            for identity in &plan.identities {
                let (own, cluster) = match &identity.pack {
                    Some(pack) => {
                        let sidecar = sidecar(pack).expect("the pack has a sidecar");
                        (sidecar.rbac.clone(), sidecar.cluster_rbac.clone())
                    }
                    None => (admitted.run.spec.lifecycle.as_ref().expect("hooks").rbac.clone(), Vec::new()),
                };
                prop_assert_eq!(&identity.namespace_rules, &own);
                prop_assert_eq!(&identity.cluster_rules, &cluster);
                for rule in own.iter().chain(&cluster) {
                    prop_assert!(crate::rbac::escalations(&Rule::from(rule)).is_empty());
                }
                let holders: Vec<_> = plan.parts.iter().filter(|it| it.identity.as_ref() == Some(&identity.name)).collect();
                prop_assert!(!holders.is_empty());
                for holder in holders {
                    prop_assert_eq!(holder.role.pack(), identity.pack.as_deref());
                }
            }
            for credential in &plan.credentials {
                let reach = &credential.reach;
                prop_assert!(!reach.public || admitted.policy.reach.public);
                if credential.name == "model" {
                    prop_assert_eq!(reach.destinations.len(), 1);
                    continue;
                }
                for destination in &reach.destinations {
                    let asked = Destination::parse(&destination.host, destination.port).expect("a host");
                    prop_assert!(admitted.policy.reach.covers(&asked), "{asked}");
                }
            }
            for tool in &plan.tools {
                let decision = admitted.tools.iter().find(|it| it.name == tool.name && it.pack == tool.pack);
                let allowed = decision.expect("nothing is added").action;
                let gate = match allowed { Action::Allow => Gate::Allow, Action::Ask => Gate::Ask, Action::Deny => Gate::Deny };
                prop_assert!(tool.gate >= gate, "{} is {:?}, and {gate:?} was decided", tool.name, tool.gate);
            }
            for part in &plan.parts {
                for name in part.env.iter().filter_map(secret_of) {
                    let declared = match &part.role {
                        Role::Bridge => plan.model.keys.iter().any(|it| it.secret == name),
                        Role::Skill { pack } => sidecar(pack.as_str()).expect("a sidecar").env.iter().any(|it| secret_of(it) == Some(name)),
                        _ => false,
                    };
                    prop_assert!(declared, "{} sees {name}", part.name);
                    prop_assert!(part.role == Role::Bridge || name != "provider-key");
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_volume_has_one_owner_and_every_mount_a_place(seed: u64) {
        each_plan(seed, |planned, _| {
            let plan = &planned.plan;
            let names: BTreeSet<_> = plan.volumes.iter().map(|it| &it.name).collect();
            prop_assert_eq!(names.len(), plan.volumes.len());
            let parts: BTreeSet<_> = plan.parts.iter().map(|it| &it.name).collect();
            prop_assert_eq!(parts.len(), plan.parts.len());
            for volume in &plan.volumes {
                prop_assert_eq!(sympozium_api::names::LabelName::new(volume.name.0.clone()).check(), Ok(()));
                let by: Vec<&Role> = plan.mounted_by(&volume.name).map(|it| &it.role).collect();
                prop_assert!(!by.is_empty(), "{} is mounted by nobody", volume.name);
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
                let places: Vec<&str> = part.mounts.iter().map(|it| it.path.as_str()).collect();
                for own in [place::TMP, place::SHM] {
                    prop_assert!(places.contains(&own));
                }
                for (index, one) in places.iter().enumerate() {
                    for other in &places[..index] {
                        prop_assert!(!overlap(one, other), "{}: {one} and {other}", part.name);
                    }
                }
                let variables: BTreeSet<_> = part.env.iter().map(|it| &it.name).collect();
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
            "", "/run", "/task", "/model", "/workload", "/isolation", "/parts/0", "/parts/0/role", "/parts/0/start",
            "/parts/0/mounts/0", "/parts/0/amounts", "/volumes/0", "/volumes/0/source", "/tools/0", "/tools/0/acts",
            "/tools/0/limits", "/approval", "/subagents", "/limits", "/deadlines", "/placement", "/credentials/0", "/credentials/0/reach",
        ];
        for place in places {
            let mut plan = known.clone();
            plan.pointer_mut(place).expect(place)["new"] = serde_json::json!(true);
            let bytes = sympozium_api::digest::canonical(&plan).expect("JSON");
            prop_assert!(RunPlan::read(&bytes).is_err(), "a new field in `{}` is ignored", place);
            tried += 1;
        }
        let mut plan = known;
        plan["format"] = serde_json::json!("sympozium.ai/run-plan/v2");
        let error = RunPlan::read(&serde_json::to_vec(&plan).expect("JSON")).expect_err("another format");
        prop_assert_eq!(error.to_string(), "the plan is written as `sympozium.ai/run-plan/v2`; this release reads `sympozium.ai/run-plan/v1`");
        Ok(())
    }).expect("a plan");
    assert!(tried > 0);
}
