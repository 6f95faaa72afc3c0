//! Plans of some runs, as they are to be.

use super::world::World;
use crate::plan::{PlanError, PlanSettings, Planned, agent_view, plan};

const ON_CALL: &str = include_str!("fixtures/on-call.yaml");

fn with_plan<T>(manifests: &str, look: impl FnOnce(&Planned<'_>) -> T) -> T {
    World::yaml(manifests)
        .admitted(|input, admitted| {
            look(&plan(input, admitted, &PlanSettings::default()).expect("a plan"))
        })
        .expect("an admitted run")
}

#[test]
fn the_plan_of_a_run_on_call() {
    with_plan(ON_CALL, |planned| {
        insta::assert_yaml_snapshot!("on-call", planned.plan);
        insta::assert_yaml_snapshot!("on-call-agent", agent_view(&planned.plan));
    });
}

#[test]
fn a_run_without_a_uid_has_no_plan() {
    let manifests = ON_CALL.replace("uid:", "generateName:");
    let error = World::yaml(&manifests)
        .admitted(|input, admitted| plan(input, admitted, &PlanSettings::default()).err())
        .expect("an admitted run");
    assert!(matches!(error, Some(PlanError::NoUid)), "{error:?}");
}

#[test]
fn a_plan_that_cannot_be_stored_is_none() {
    let mut world = World::yaml(ON_CALL);
    let prompt = "p".repeat(sympozium_api::run_plan::MAX_BYTES);
    world.run.spec.system_prompt = Some(prompt);
    let error = world
        .admitted(|input, admitted| plan(input, admitted, &PlanSettings::default()).err())
        .expect("an admitted run");
    assert!(matches!(error, Some(PlanError::TooLarge(_))), "{error:?}");
}
