//! Creates and deletes the objects of runs: never overwrites an existing object, never deletes one of another owner.

mod compare;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PostParams, Preconditions, PropagationPolicy};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sympozium_api::agent_run::GrantRecord;
use sympozium_api::labels::{self, field_manager};
use sympozium_api::names::NamespaceName;
use sympozium_plan::render::{Object, SandboxVersion};

use self::compare::{Expected, compare};
use super::error::{Error, is_conflict, is_not_found};
use super::retry::retry;
use super::stored::StoredRun;
use crate::context::Context;
use crate::status::patch_params;

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
pub async fn create(context: &Context, object: &Object, run: &StoredRun) -> Result<String, Error> {
    let run_uid = run.uid();
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
    let created = |object: DynamicObject| {
        if let Some(uid) = &object.metadata.uid {
            context.index.mark_created(run_uid, kind, &name, uid);
        }
        object
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
    made.metadata.uid.ok_or_else(|| Error::WithoutUid { kind: kind.to_owned(), name })
}

/// The UID of an object that was created for the run, from memory or from the status.
fn known_uid(context: &Context, run: &StoredRun, kind: &str, name: &str) -> Option<String> {
    // Memory is newer: the recorded object may have been deleted and created again.
    context.index.created_uid(run.uid(), kind, name).or_else(|| {
        let mut records = run.grants().iter().filter(|record| record.kind == kind && record.name == name);
        let recorded = records.find_map(|record| record.uid.as_ref());
        recorded.map(|uid| uid.as_str().to_owned())
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
    let (parameters, patch) = (patch_params(), Patch::Merge(&patch));
    let patched = retry(|| api.patch(name, &parameters, &patch)).await;
    patched.map_err(Error::api("write", "Secret", name))?;
    Ok(())
}

/// The API resource of a recorded object; `None` for a kind that the cluster does not serve, which has no objects.
///
/// # Errors
///
/// While the cluster info is not known: then it is unknown whether a Sandbox exists.
fn recorded_resource(record: &GrantRecord, context: &Context) -> Result<Option<ApiResource>, Error> {
    if record.kind != "Sandbox" {
        return Ok(api_resource(&record.kind));
    }
    match context.cluster_info.borrow().as_ref() {
        Some(info) => Ok(info.render.sandbox_version.map(sandbox_resource)),
        None => Err(Error::Waiting("the gateway, the API server and the nodes are discovered")),
    }
}

/// The UID of the object that a record names, if it exists and belongs to the run.
///
/// # Errors
///
/// When the API server does not answer.
pub async fn find(context: &Context, record: &GrantRecord, run: &StoredRun) -> Result<Option<String>, Error> {
    let Some(resource) = recorded_resource(record, context)? else {
        return Ok(None);
    };
    let api = api(&context.client, &resource, record.namespace.as_ref().map(NamespaceName::as_str));
    let found = retry(|| api.get_metadata_opt(&record.name)).await;
    let found = found.map_err(Error::api("read", record.kind.as_str(), record.name.as_str()))?;
    let is_recorded = |found: &PartialObjectMeta<DynamicObject>| match &record.uid {
        Some(uid) => found.metadata.uid.as_deref() == Some(uid.as_str()),
        None => belongs_to_run(found, run.uid()),
    };
    Ok(found.filter(is_recorded).and_then(|found| found.metadata.uid))
}

/// Deletes the object that a record names: the one with the recorded UID or, without one, an object that the run owns
/// or that has its label. Never another.
///
/// # Errors
///
/// When the API server does not answer, or rejects the request.
pub async fn delete(context: &Context, record: &GrantRecord, run: &StoredRun) -> Result<(), Error> {
    let (kind, name) = (record.kind.as_str(), record.name.as_str());
    let Some(resource) = recorded_resource(record, context)? else {
        return Ok(());
    };
    if context.index.is_deleted(run.uid(), kind, name) {
        return Ok(());
    }
    let api = api(&context.client, &resource, record.namespace.as_ref().map(NamespaceName::as_str));
    let uid = match &record.uid {
        Some(uid) => Some(uid.as_str().to_owned()),
        None => {
            let found = retry(|| api.get_opt(name)).await.map_err(Error::api("read", kind, name))?;
            found.filter(|found| belongs_to_run(found, run.uid())).and_then(|found| found.metadata.uid)
        }
    };
    let Some(uid) = uid else {
        return Ok(());
    };
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    context.metrics.count_write(kind, "delete");
    match retry(|| api.delete(name, &parameters)).await {
        Ok(_) => {}
        Err(error) if is_not_found(&error) => {}
        // An object of that name with another UID is not deleted; but a conflict can have other reasons.
        Err(error) if is_conflict(&error) => {
            let found = retry(|| api.get_metadata_opt(name)).await.map_err(Error::api("read", kind, name))?;
            if found.and_then(|found| found.metadata.uid) == Some(uid) {
                return Err(Error::api("delete", kind, name)(error));
            }
        }
        Err(error) => return Err(Error::api("delete", kind, name)(error)),
    }
    context.index.mark_deleted(run.uid(), kind, name);
    Ok(())
}

/// Whether an object without a recorded UID belongs to the run.
fn belongs_to_run(object: &impl ResourceExt, run_uid: &str) -> bool {
    match object.namespace() {
        Some(_) => object.owner_references().iter().any(|owner| owner.uid == run_uid),
        None => object.labels().get(labels::RUN_UID).is_some_and(|uid| uid == run_uid),
    }
}
