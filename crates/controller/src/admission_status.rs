//! Kinds that this release only validates: schedules and models. Violations, and fields that nothing acts on, are in
//! the condition `Admitted`, with the same text as `sympozium validate`.

use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use sympozium_api::labels::field_manager;
use sympozium_api::{Model, SympoziumSchedule};
use sympozium_plan::admit::{Denial, Subject, admit_model, admit_schedule};

use crate::conditions;
use crate::context::Context;

#[derive(Debug, thiserror::Error)]
#[error("the status could not be written")]
pub struct Error(#[source] kube::Error);

/// Writes the condition of a schedule.
///
/// # Errors
///
/// When the request failed; it is retried.
pub async fn reconcile_schedule(schedule: Arc<SympoziumSchedule>, context: Arc<Context>) -> Result<Action, Error> {
    let findings = admit_schedule(&subject("SympoziumSchedule", schedule.as_ref()), &schedule.spec);
    let status = schedule.status.clone().unwrap_or_default();
    let before = Observed { generation: status.observed_generation, conditions: status.conditions };
    write_status(schedule.as_ref(), before, &findings, &context).await
}

/// Writes the condition of a model.
///
/// # Errors
///
/// When the request failed; it is retried.
pub async fn reconcile_model(model: Arc<Model>, context: Arc<Context>) -> Result<Action, Error> {
    let findings = admit_model(&subject("Model", model.as_ref()), &model.spec);
    let status = model.status.clone().unwrap_or_default();
    let before = Observed { generation: status.observed_generation, conditions: status.conditions };
    write_status(model.as_ref(), before, &findings, &context).await
}

/// The fields of a status that are written here.
#[derive(Debug, Clone, PartialEq)]
struct Observed {
    generation: Option<i64>,
    conditions: Vec<Condition>,
}

fn subject(kind: &'static str, object: &impl Resource) -> Subject {
    Subject::new(kind, object.namespace().as_deref(), &object.name_any())
}

/// Writes only `observedGeneration` and `conditions`: the rest of a status belongs to the controller of the kind. The
/// `endpoint` of a model, for example, decides where a model key is sent, and must not be written here.
async fn write_status<K>(object: &K, before: Observed, findings: &Denial, context: &Context) -> Result<Action, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + 'static,
{
    if object.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let generation = object.meta().generation;
    let mut after = Observed { generation, ..before.clone() };
    let admitted = conditions::admitted_condition(findings);
    conditions::set_condition(&mut after.conditions, admitted, generation, Timestamp::now());
    if after == before {
        return Ok(Action::await_change());
    }
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    // A merge patch replaces the whole list of conditions: with the resource version, a condition that another client
    // has added meanwhile is kept.
    let patch = json!({
        "metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()},
        "status": {"observedGeneration": after.generation, "conditions": after.conditions},
    });
    let parameters =
        PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() };
    let written = api.patch_status(&object.name_any(), &parameters, &Patch::Merge(patch)).await;
    context.metrics.count_write(&K::kind(&()), "patch");
    match written {
        Ok(_) => Ok(Action::await_change()),
        // It is gone, or was changed: the watch delivers the new state.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Action::await_change()),
        Err(error) => Err(Error(error)),
    }
}
