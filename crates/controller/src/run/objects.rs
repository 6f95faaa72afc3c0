//! Creates and deletes the objects of runs: never overwrites an existing object, never deletes one of another owner.

mod compare;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sympozium_api::AgentRun;
use sympozium_api::agent_run::GrantRecord;
use sympozium_api::labels::{self, field_manager};
use sympozium_plan::render::{Object, SandboxVersion};

use self::compare::{Expected, compare};
use super::error::{Error, is_conflict, is_not_found};
use super::retry::retry;
use crate::context::Context;

/// The API resource of a kind; `None` for a kind that runs do not have.
fn api_resource(kind: &str) -> Option<ApiResource> {
    Some(match kind {
        "ConfigMap" => ApiResource::erase::<ConfigMap>(&()),
        "Secret" => ApiResource::erase::<Secret>(&()),
        "ServiceAccount" => ApiResource::erase::<ServiceAccount>(&()),
        "PersistentVolumeClaim" => ApiResource::erase::<PersistentVolumeClaim>(&()),
        "NetworkPolicy" => ApiResource::erase::<NetworkPolicy>(&()),
        "Role" => ApiResource::erase::<Role>(&()),
        "RoleBinding" => ApiResource::erase::<RoleBinding>(&()),
        "ClusterRole" => ApiResource::erase::<ClusterRole>(&()),
        "ClusterRoleBinding" => ApiResource::erase::<ClusterRoleBinding>(&()),
        "Job" => ApiResource::erase::<Job>(&()),
        "Pod" => ApiResource::erase::<Pod>(&()),
        _ => return None,
    })
}

/// The API resource of Sandboxes of a version.
fn sandbox_resource(version: SandboxVersion) -> ApiResource {
    let (group, version) = version.api_version().split_once('/').unwrap_or((version.api_version(), ""));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: "Sandbox".to_owned(),
        plural: "sandboxes".to_owned(),
    }
}

fn api(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Creates an object, unless it exists and belongs to this run. Returns its UID.
///
/// # Errors
///
/// When the API server rejects it, or an object of that name exists that does not belong to the run.
pub async fn create(context: &Context, object: &Object, run: &AgentRun) -> Result<String, Error> {
    let run_uid = run.uid().unwrap_or_default();
    let run_uid = run_uid.as_str();
    let kind = object.kind();
    let resource = match object {
        Object::Sandbox(sandbox_object) => Some(sandbox_resource(sandbox_object.version)),
        _ => api_resource(kind),
    };
    let name = object.name().to_owned();
    let resource = resource.ok_or(Error::Foreign {
        kind: kind.to_owned(),
        name: name.clone(),
        why: "runs do not have this kind",
    })?;
    let api = api(&context.client, &resource, object.namespace());
    let wanted = object.to_value()?;
    let mut sent: DynamicObject = serde_json::from_value(wanted.clone())?;
    sent.types = Some(kube::api::TypeMeta { api_version: object.api_version().to_owned(), kind: kind.to_owned() });
    let parameters = PostParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PostParams::default() };
    context.metrics.count_write(kind, "create");
    let created = |made: DynamicObject| {
        let uid = made.uid().unwrap_or_default();
        context.index.mark_created(run_uid, kind, &name, &uid);
        made
    };
    let made = match retry(|| api.create(&parameters, &sent)).await {
        Ok(made) => created(made),
        Err(error) if is_conflict(&error) => {
            let there = retry(|| api.get_opt(&name)).await;
            match there.map_err(Error::api("read", kind, &name))? {
                Some(there) => {
                    let uid = known_uid(context, run, kind, &name);
                    let uid = uid.as_deref();
                    compare(kind, &name, &wanted, &there, Expected { run_uid, uid })?;
                    if kind == "Secret" {
                        context.metrics.count_write(kind, "patch");
                        replace_secret_data(&api, &name, &wanted, &there).await?;
                    }
                    there
                }
                // It was deleted since, or the conflict had another reason.
                None => retry(|| api.create(&parameters, &sent))
                    .await
                    .map(created)
                    .map_err(Error::api("create", kind, &name))?,
            }
        }
        Err(error) => return Err(Error::api("create", kind, &name)(error)),
    };
    // It may have been deleted before, when this step was repeated.
    context.index.forget_deleted(run_uid, kind, object.name());
    Ok(made.uid().unwrap_or_default())
}

/// The UID of an object that was created for the run, from memory or from the status.
fn known_uid(context: &Context, run: &AgentRun, kind: &str, name: &str) -> Option<String> {
    // Memory is newer: the recorded object may have been deleted and created again.
    let run_uid = run.uid().unwrap_or_default();
    let remembered = context.index.created_uid(&run_uid, kind, name);
    remembered.or_else(|| {
        let grants = run.status.iter().flat_map(|it| &it.grants);
        let mut grants = grants.filter(|it| it.kind == kind && it.name == name);
        let recorded = grants.find_map(|it| it.uid.as_ref());
        recorded.map(|it| it.as_str().to_owned())
    })
}

/// Replaces the data of an existing Secret: credentials are signed anew each time, so they cannot be compared, and
/// nothing that another client wrote may stay in it.
async fn replace_secret_data(
    api: &Api<DynamicObject>,
    name: &str,
    wanted: &Value,
    there: &DynamicObject,
) -> Result<(), Error> {
    let patch = json!({
        "metadata": { "uid": there.uid(), "resourceVersion": there.resource_version() },
        "data": null,
        "stringData": wanted.get("stringData"),
    });
    let parameters =
        PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(&patch);
    let patched = retry(|| api.patch(name, &parameters, &patch)).await;
    patched.map_err(Error::api("write", "Secret", name))?;
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The object does not exist any more.
    Gone,
    /// It will be gone when its finalizers are removed or its grace period is over.
    Terminating,
}

/// The UID of the object that a record names, if it exists and belongs to the run.
///
/// # Errors
///
/// When the API server does not answer.
pub async fn find(
    context: &Context,
    record: &GrantRecord,
    run_uid: &str,
    sandbox_version: Option<SandboxVersion>,
) -> Result<Option<String>, Error> {
    let resource = match record.kind.as_str() {
        "Sandbox" => sandbox_version.map(sandbox_resource),
        kind => api_resource(kind),
    };
    let Some(resource) = resource else {
        return Ok(None);
    };
    let namespace = record.namespace.as_ref().map(|it| it.as_str());
    let api = api(&context.client, &resource, namespace);
    let there = retry(|| api.get_metadata_opt(&record.name)).await;
    let there = there.map_err(Error::api("read", record.kind.as_str(), record.name.as_str()))?;
    let is_it = |there: &PartialObjectMeta<DynamicObject>| match &record.uid {
        Some(uid) => there.uid().as_deref() == Some(uid.as_str()),
        None => belongs_to_run(there, run_uid),
    };
    Ok(there.filter(is_it).and_then(|it| it.uid()))
}

/// Deletes the object that a record names: the one with the recorded UID or, without one, an object that the run owns
/// or that has its label. Never another.
///
/// # Errors
///
/// When the API server does not answer, or rejects the request.
pub async fn delete(
    context: &Context,
    record: &GrantRecord,
    run_uid: &str,
    sandbox_version: Option<SandboxVersion>,
) -> Result<Deletion, Error> {
    let kind = record.kind.as_str();
    let resource = match kind {
        "Sandbox" => sandbox_version.map(sandbox_resource),
        _ => api_resource(kind),
    };
    // A kind that the cluster does not serve any more has no objects.
    let Some(resource) = resource else {
        return Ok(Deletion::Gone);
    };
    let namespace = record.namespace.as_ref().map(|it| it.as_str());
    let api = api(&context.client, &resource, namespace);
    let name = record.name.as_str();
    if context.index.is_deleted(run_uid, kind, name) {
        return Ok(Deletion::Gone);
    }
    let uid = match &record.uid {
        Some(uid) => uid.as_str().to_owned(),
        None => match retry(|| api.get_opt(name)).await {
            Ok(None) => return Ok(Deletion::Gone),
            Ok(Some(there)) if belongs_to_run(&there, run_uid) => there.uid().unwrap_or_default(),
            Ok(Some(_)) => return Ok(Deletion::Gone),
            Err(error) => return Err(Error::api("read", kind, name)(error)),
        },
    };
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    context.metrics.count_write(kind, "delete");
    let removal = match retry(|| api.delete(name, &parameters)).await {
        Ok(either) => either.left().map_or(Deletion::Gone, |there| match there.metadata.deletion_timestamp {
            Some(_) => Deletion::Terminating,
            None => Deletion::Gone,
        }),
        Err(error) if is_not_found(&error) => Deletion::Gone,
        // An object of that name with another UID is not deleted; but a conflict can have other reasons.
        Err(error) if is_conflict(&error) => {
            let there = retry(|| api.get_metadata_opt(name)).await;
            let there = there.map_err(Error::api("read", kind, name))?;
            if there.and_then(|it| it.metadata.uid) == Some(uid) {
                return Err(Error::api("delete", kind, name)(error));
            }
            Deletion::Gone
        }
        Err(error) => return Err(Error::api("delete", kind, name)(error)),
    };
    context.index.mark_deleted(run_uid, kind, name);
    Ok(removal)
}

/// Whether an object without a recorded UID belongs to the run.
fn belongs_to_run(there: &impl ResourceExt, run_uid: &str) -> bool {
    let labelled = || {
        let label = there.labels().get(labels::RUN_UID);
        label.is_some_and(|it| it == run_uid)
    };
    match there.namespace() {
        Some(_) => there.owner_references().iter().any(|it| it.uid == run_uid),
        None => labelled(),
    }
}
