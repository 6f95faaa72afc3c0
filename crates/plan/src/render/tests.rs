//! Properties of all rendered objects, and the objects of some runs.

mod certificates;
mod checks;
mod golden;
mod names;
mod properties;
mod pull_policy;
mod refusals;

use sympozium_api::RunPlan;

use super::{RenderSettings, Rendered, render};
use crate::admit::Violation;
use crate::plan::tests::harness::Harness;
use crate::plan::{PackTexts, PlanSettings, plan};

/// The plan and the texts of an admitted run; the violations when it is not.
fn with_plan<T>(harness: &Harness, look: impl FnOnce(&RunPlan, &[PackTexts<'_>]) -> T) -> Result<T, Vec<Violation>> {
    harness.with_admitted(|input, admitted| {
        let planned = plan(input, admitted, &PlanSettings::default()).expect("a plan");
        look(&planned.plan, &planned.texts)
    })
}

/// A run of manifests, with the plan it was rendered from.
fn rendered(manifests: &str, settings: &RenderSettings) -> (RunPlan, Rendered) {
    let look = |plan: &RunPlan, texts: &[PackTexts<'_>]| {
        let rendered = render(plan, texts, settings).expect("a rendered plan");
        (plan.clone(), rendered)
    };
    with_plan(&Harness::from_yaml(manifests), look).expect("an admitted run")
}
