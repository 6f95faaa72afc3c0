//! Kinds that this release only validates: schedules and models. Violations, and fields that nothing acts on, are in
//! the condition `Admitted`, with the same text as `sympozium validate`.
//!
//! Only `observedGeneration` and `conditions` are written: the rest of a status belongs to the controller of the kind.
//! The `endpoint` of a model, for example, decides where a model key is sent, and must not be written here.

use std::sync::Arc;

use kube::runtime::controller::Action;
use sympozium_api::{Model, SympoziumSchedule};
use sympozium_plan::admit::{Subject, admit_model, admit_schedule};

use crate::conditions::{admitted_condition, now, set_condition};
use crate::context::Context;
use crate::object_key::ObjectKey;
use crate::status::{self, Error};

const ADMITTED: &str = "Admitted";

/// Writes the condition of a schedule.
///
/// # Errors
///
/// When the request failed; it is retried.
pub async fn reconcile_schedule(schedule: Arc<SympoziumSchedule>, context: Arc<Context>) -> Result<Action, Error> {
    let Some(key) = ObjectKey::of_existing(schedule.as_ref()) else {
        return Ok(Action::await_change());
    };
    let findings = admit_schedule(&Subject::new("SympoziumSchedule", Some(&key.namespace), &key.name), &schedule.spec);
    let before = schedule.status.clone().unwrap_or_default();
    let mut after = before.clone();
    after.observed_generation = schedule.metadata.generation;
    set_condition(&mut after.conditions, ADMITTED, admitted_condition(&findings), after.observed_generation, now());
    status::write(schedule.as_ref(), &key, &before, &after, &context).await?;
    Ok(Action::await_change())
}

/// Writes the condition of a model.
///
/// # Errors
///
/// When the request failed; it is retried.
pub async fn reconcile_model(model: Arc<Model>, context: Arc<Context>) -> Result<Action, Error> {
    let Some(key) = ObjectKey::of_existing(model.as_ref()) else {
        return Ok(Action::await_change());
    };
    let findings = admit_model(&Subject::new("Model", Some(&key.namespace), &key.name), &model.spec);
    let before = model.status.clone().unwrap_or_default();
    let mut after = before.clone();
    after.observed_generation = model.metadata.generation;
    set_condition(&mut after.conditions, ADMITTED, admitted_condition(&findings), after.observed_generation, now());
    status::write(model.as_ref(), &key, &before, &after, &context).await?;
    Ok(Action::await_change())
}
