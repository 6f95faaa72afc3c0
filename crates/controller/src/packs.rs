//! SkillPacks: their texts as a ConfigMap, and their violations.
//!
//! The ConfigMap has the pack's name, because other tools read skills from there. Runs do not read it: they get their
//! own copies. A ConfigMap of that name with another owner is left unchanged, and the pack's status shows that.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use sympozium_api::labels::{self, component, field_manager};
use sympozium_api::names::ObjectName;
use sympozium_api::skill_pack::{SkillPackPhase, SkillPackStatus};
use sympozium_api::{SkillPack, SkillPackSpec};
use sympozium_plan::admit::admit_pack;
use sympozium_plan::render::names::label_value;

use crate::conditions::{self, ConditionUpdate};
use crate::context::Context;

/// Why a pack could not be reconciled. Violations of the pack itself are in its status.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the ConfigMap could not be read or written")]
    ConfigMap(#[source] kube::Error),
    #[error("the status could not be written")]
    Status(#[source] kube::Error),
}

/// Updates a pack's ConfigMap and status.
///
/// # Errors
///
/// When the API server does not answer or rejects a request unexpectedly; it is retried.
pub async fn reconcile(pack: Arc<SkillPack>, context: Arc<Context>) -> Result<Action, Error> {
    // The garbage collector deletes the ConfigMap with its owner.
    if pack.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = pack.namespace().unwrap_or_default();
    let findings = admit_pack(&pack, Some(&namespace), None);
    let denied = !findings.violations.is_empty();
    let published = publish(&pack, &namespace, &context).await?;

    let before = pack.status.clone().unwrap_or_default();
    let ready = !denied && published.is_true == Some(true);
    let mut conditions = before.conditions.clone();
    let generation = pack.metadata.generation;
    let now = Timestamp::now();
    let is_there = published.is_true == Some(true);
    conditions::set_condition(&mut conditions, conditions::admitted_condition(&findings), generation, now);
    conditions::set_condition(&mut conditions, published, generation, now);
    let after = SkillPackStatus {
        phase: Some(if ready { SkillPackPhase::Ready } else { SkillPackPhase::Error }),
        observed_generation: generation,
        config_map_name: is_there.then(|| ObjectName::new(pack.name_any())),
        skill_count: i32::try_from(pack.spec.skills.len()).ok(),
        conditions,
    };
    if after != before {
        write_status(&pack, &namespace, &after, &context).await?;
    }
    Ok(Action::await_change())
}

async fn write_status(
    pack: &SkillPack,
    namespace: &str,
    status: &SkillPackStatus,
    context: &Context,
) -> Result<(), Error> {
    let api: Api<SkillPack> = Api::namespaced(context.client.clone(), namespace);
    // An absent field is set to null, or the name of a ConfigMap that is gone would stay.
    let mut value = json!({"configMapName": null});
    merge(&mut value, json!(status));
    let patch = json!({"metadata": {"uid": pack.uid()}, "status": value});
    let parameters =
        PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() };
    let written = api.patch_status(&pack.name_any(), &parameters, &Patch::Merge(patch)).await;
    context.metrics.count_write("SkillPack", "patch");
    match written {
        Ok(_) => Ok(()),
        // It is gone, or the name belongs to a new object, which is reconciled by itself.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(Error::Status(error)),
    }
}

fn merge(into: &mut serde_json::Value, from: serde_json::Value) {
    if let (Some(into), serde_json::Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// Creates or updates the ConfigMap, and returns the condition `Published`.
async fn publish(pack: &SkillPack, namespace: &str, context: &Context) -> Result<ConditionUpdate, Error> {
    let name = pack.name_any();
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    let wanted = config_map(pack);
    let parameters = PostParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PostParams::default() };
    let found = api.get_opt(&name).await.map_err(Error::ConfigMap)?;
    let (verb, written) = match found {
        None => ("create", api.create(&parameters, &wanted).await),
        Some(found) if !is_owned_by(&found, pack) => return Ok(foreign_condition()),
        Some(found) if is_same(&found, &wanted) => return Ok(published_condition()),
        Some(found) => {
            // With the version that was read: a concurrent write wins, and the pack is reconciled again.
            let mut next = wanted;
            next.metadata.resource_version = found.metadata.resource_version;
            ("update", api.replace(&name, &parameters, &next).await)
        }
    };
    context.metrics.count_write("ConfigMap", verb);
    match written {
        Ok(_) => Ok(published_condition()),
        // Too large, invalid keys, a quota: the pack's author has to see it.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 413 | 422) => Ok(ConditionUpdate {
            type_: PUBLISHED,
            is_true: Some(false),
            reason: "Refused",
            message: format!("the API server refuses the ConfigMap: {}", status.message),
        }),
        Err(error) => Err(Error::ConfigMap(error)),
    }
}

const PUBLISHED: &str = "Published";

fn published_condition() -> ConditionUpdate {
    ConditionUpdate {
        type_: PUBLISHED,
        is_true: Some(true),
        reason: "UpToDate",
        message: "the ConfigMap has the skills' texts".to_owned(),
    }
}

fn foreign_condition() -> ConditionUpdate {
    ConditionUpdate {
        type_: PUBLISHED,
        is_true: Some(false),
        reason: "Foreign",
        message: "a ConfigMap of that name belongs to somebody else; remove it, or give the pack another name"
            .to_owned(),
    }
}

fn is_owned_by(map: &ConfigMap, pack: &SkillPack) -> bool {
    let uid = pack.uid();
    let owners = map.owner_references();
    uid.is_some() && (owners.iter()).any(|it| it.controller == Some(true) && Some(&it.uid) == uid.as_ref())
}

fn is_same(found: &ConfigMap, wanted: &ConfigMap) -> bool {
    found.data == wanted.data && found.metadata.labels == wanted.metadata.labels
}

fn config_map(pack: &SkillPack) -> ConfigMap {
    let name = pack.name_any();
    let labels = [
        (labels::COMPONENT, component::SKILL_PACK.to_owned()),
        (labels::SKILL_PACK, label_value(&name)),
        (labels::PART_OF, labels::MANAGER.to_owned()),
        (labels::APP_MANAGED_BY, labels::CONTROLLER.to_owned()),
    ];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: pack.namespace(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: Some(vec![OwnerReference {
                api_version: labels::API_VERSION.to_owned(),
                kind: "SkillPack".to_owned(),
                name,
                uid: pack.uid().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        data: Some(skill_texts(&pack.spec)),
        ..ConfigMap::default()
    }
}

/// One text per skill. A description is put in front of it, below the skill's name.
fn skill_texts(spec: &SkillPackSpec) -> BTreeMap<String, String> {
    let text = |skill: &sympozium_api::skill_pack::Skill| match skill.description.as_deref() {
        None | Some("") => skill.content.clone(),
        Some(description) => {
            let quoted = description.trim_end().replace('\n', "\n> ");
            format!("# {}\n\n> {quoted}\n\n{}", skill.name.as_str(), skill.content)
        }
    };
    let skills = spec.skills.iter();
    skills.map(|skill| (format!("{}.md", skill.name.as_str()), text(skill))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack() -> SkillPack {
        serde_json::from_value(json!({
            "apiVersion": labels::API_VERSION, "kind": "SkillPack",
            "metadata": {"name": "echo", "namespace": "team", "uid": "u-1"},
            "spec": {"skills": [
                {"name": "plain", "content": "Say it."},
                {"name": "told", "description": "Two\nlines", "content": "Do it."},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_pack_becomes_a_text_for_each_skill() {
        let texts = skill_texts(&pack().spec);
        let expected = [("plain.md", "Say it."), ("told.md", "# told\n\n> Two\n> lines\n\nDo it.")];
        assert_eq!(texts, expected.map(|(key, text)| (key.into(), text.into())).into());
    }

    #[test]
    fn only_what_this_very_pack_owns_is_its() {
        let pack = pack();
        let ours = config_map(&pack);
        assert!(is_owned_by(&ours, &pack));
        assert!(is_same(&ours, &config_map(&pack)));
        // A pack of the same name that was deleted and created again.
        let mut later = pack.clone();
        later.metadata.uid = Some("u-2".to_owned());
        assert!(!is_owned_by(&ours, &later));
        let mut not_controlled = ours.clone();
        not_controlled.owner_references_mut()[0].controller = None;
        assert!(!is_owned_by(&not_controlled, &pack));
        let mut nobodys = ours;
        nobodys.metadata.owner_references = None;
        assert!(!is_owned_by(&nobodys, &pack));
        later.metadata.uid = None;
        assert!(!is_owned_by(&nobodys, &later));
    }
}
