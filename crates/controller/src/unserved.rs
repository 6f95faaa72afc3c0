//! Kinds that this release serves nothing of: schedules and models. What is wrong with one, and which of its fields nothing acts
//! on, is in its condition `Admitted`, as `sympozium validate` says it.

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
use sympozium_plan::admit::{Denied, Subject, admit_model, admit_schedule};

use crate::conditions;
use crate::context::Context;

/// The status could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the status could not be written")]
pub struct Error(#[source] kube::Error);

/// Writes a schedule's condition.
///
/// # Errors
///
/// When it could not be written; it is tried again.
pub async fn reconcile_schedule(schedule: Arc<SympoziumSchedule>, context: Arc<Context>) -> Result<Action, Error> {
    let findings = admit_schedule(&subject("SympoziumSchedule", schedule.as_ref()), &schedule.spec);
    let status = schedule.status.clone().unwrap_or_default();
    let before = Observed { generation: status.observed_generation, conditions: status.conditions };
    write(schedule.as_ref(), before, &findings, &context).await
}

/// Writes a model's condition.
///
/// # Errors
///
/// When it could not be written; it is tried again.
pub async fn reconcile_model(model: Arc<Model>, context: Arc<Context>) -> Result<Action, Error> {
    let findings = admit_model(&subject("Model", model.as_ref()), &model.spec);
    let status = model.status.clone().unwrap_or_default();
    let before = Observed { generation: status.observed_generation, conditions: status.conditions };
    write(model.as_ref(), before, &findings, &context).await
}

/// What of a status is written here.
#[derive(Debug, Clone, PartialEq)]
struct Observed {
    generation: Option<i64>,
    conditions: Vec<Condition>,
}

fn subject(kind: &'static str, object: &impl Resource) -> Subject {
    Subject::new(kind, object.namespace().as_deref(), &object.name_any())
}

/// Writes `observedGeneration` and `conditions`, and nothing else: the rest of a status belongs to the server of the kind. The
/// `endpoint` of a model, for one, decides where a key is sent, and must not come from here.
async fn write<K>(object: &K, before: Observed, findings: &Denied, context: &Context) -> Result<Action, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + 'static,
{
    if object.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let generation = object.meta().generation;
    let mut after = Observed { generation, ..before.clone() };
    let admitted = conditions::admitted(findings);
    conditions::say(&mut after.conditions, admitted, generation, Timestamp::now());
    if after == before {
        return Ok(Action::await_change());
    }
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    // A merge patch replaces the whole list of conditions: with the version, one that another client has added meanwhile is kept.
    let patch = json!({
        "metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()},
        "status": {"observedGeneration": after.generation, "conditions": after.conditions},
    });
    let parameters =
        PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() };
    let written = api.patch_status(&object.name_any(), &parameters, &Patch::Merge(patch)).await;
    context.metrics.wrote(&K::kind(&()), "patch");
    match written {
        Ok(_) => Ok(Action::await_change()),
        // It is gone, or was changed: the watch shows what it is now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Action::await_change()),
        Err(error) => Err(Error(error)),
    }
}
