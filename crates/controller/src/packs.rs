//! SkillPacks: their texts as a ConfigMap, and their violations.
//!
//! The ConfigMap has the pack's name, because other tools read skills from there. Runs do not read it: they get their
//! own copies. A ConfigMap of that name with another owner is left unchanged, and the pack's status shows that.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use sympozium_api::labels::{self, component, field_manager};
use sympozium_api::names::ObjectName;
use sympozium_api::skill_pack::{SkillPackPhase, SkillPackStatus};
use sympozium_api::{SkillPack, SkillPackSpec};
use sympozium_plan::admit::admit_pack;
use sympozium_plan::render::names::label_value;

use crate::conditions::{ConditionValue, admitted_condition, now, set_condition};
use crate::context::Context;
use crate::object_key::ObjectKey;
use crate::status;

/// Why a pack could not be reconciled. Violations of the pack itself are in its status.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the ConfigMap could not be read or written")]
    ConfigMap(#[source] kube::Error),
    #[error(transparent)]
    Status(#[from] status::Error),
}

/// Updates a pack's ConfigMap and status.
///
/// # Errors
///
/// When the API server does not answer or rejects a request unexpectedly; it is retried.
pub async fn reconcile(pack: Arc<SkillPack>, context: Arc<Context>) -> Result<Action, Error> {
    // The garbage collector deletes the ConfigMap with its owner.
    let Some(key) = ObjectKey::of_existing(pack.as_ref()) else {
        return Ok(Action::await_change());
    };
    let Some(owner) = owner_reference(&pack) else {
        return Ok(Action::await_change());
    };
    let findings = admit_pack(&pack, Some(&key.namespace), None);
    let published = publish(&pack, &key, owner, &context).await?;

    let before = pack.status.clone().unwrap_or_default();
    let is_published = published.is_true();
    let is_ready = findings.violations.is_empty() && is_published;
    let mut conditions = before.conditions.clone();
    let generation = pack.metadata.generation;
    set_condition(&mut conditions, "Admitted", admitted_condition(&findings), generation, now());
    set_condition(&mut conditions, "Published", published, generation, now());
    let after = SkillPackStatus {
        phase: Some(if is_ready { SkillPackPhase::Ready } else { SkillPackPhase::Error }),
        observed_generation: generation,
        config_map_name: is_published.then(|| ObjectName::new(&key.name)),
        skill_count: i32::try_from(pack.spec.skills.len()).ok(),
        conditions,
    };
    status::write(pack.as_ref(), &key, &before, &after, &context).await?;
    Ok(Action::await_change())
}

/// Creates or updates the ConfigMap, and returns the condition `Published`.
async fn publish(
    pack: &SkillPack,
    key: &ObjectKey,
    owner: OwnerReference,
    context: &Context,
) -> Result<ConditionValue, Error> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &key.namespace);
    let parameters = PostParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PostParams::default() };
    let found = api.get_opt(&key.name).await.map_err(Error::ConfigMap)?;
    if found.as_ref().is_some_and(|found| !is_owned_by(found, &owner)) {
        let hint = "delete that ConfigMap, or give the pack another name";
        let message = format!("ConfigMap `{}` exists and does not belong to this pack; {hint}", key.name);
        return Ok(ConditionValue::no("Foreign", message));
    }
    let wanted = config_map(pack, key, owner);
    let (verb, written) = match found {
        None => ("create", api.create(&parameters, &wanted).await),
        Some(found) if is_same(&found, &wanted) => return Ok(published_condition()),
        Some(found) => {
            // With the version that was read: a concurrent write wins, and the pack is reconciled again.
            let mut next = wanted;
            next.metadata.resource_version = found.metadata.resource_version;
            ("update", api.replace(&key.name, &parameters, &next).await)
        }
    };
    context.metrics.count_write("ConfigMap", verb);
    match written {
        Ok(_) => Ok(published_condition()),
        // Too large, invalid keys, a quota: the pack's author has to see it.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 413 | 422) => {
            let message = format!("the API server rejected ConfigMap `{}`: {}", key.name, status.message);
            Ok(ConditionValue::no("Refused", message))
        }
        Err(error) => Err(Error::ConfigMap(error)),
    }
}

fn published_condition() -> ConditionValue {
    ConditionValue::yes("UpToDate", "the ConfigMap has the texts of all skills")
}

/// `None` for a pack without a UID, which no API server delivers.
fn owner_reference(pack: &SkillPack) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: labels::API_VERSION.to_owned(),
        kind: "SkillPack".to_owned(),
        name: pack.name_any(),
        uid: pack.uid()?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    })
}

fn is_owned_by(map: &ConfigMap, owner: &OwnerReference) -> bool {
    map.owner_references()
        .iter()
        .any(|owner_reference| owner_reference.controller == Some(true) && owner_reference.uid == owner.uid)
}

fn is_same(found: &ConfigMap, wanted: &ConfigMap) -> bool {
    found.data == wanted.data && found.metadata.labels == wanted.metadata.labels
}

fn config_map(pack: &SkillPack, key: &ObjectKey, owner: OwnerReference) -> ConfigMap {
    let labels = [
        (labels::COMPONENT, component::SKILL_PACK.to_owned()),
        (labels::SKILL_PACK, label_value(&key.name)),
        (labels::PART_OF, labels::MANAGER.to_owned()),
        (labels::APP_MANAGED_BY, labels::CONTROLLER.to_owned()),
    ];
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: Some(vec![owner]),
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
    use serde_json::json;

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
        let owner = owner_reference(&pack).unwrap();
        let map = || config_map(&pack, &ObjectKey::of(&pack).unwrap(), owner.clone());
        let ours = map();
        assert!(is_owned_by(&ours, &owner));
        assert!(is_same(&ours, &map()));
        // A pack of the same name that was deleted and created again.
        let mut later = pack.clone();
        later.metadata.uid = Some("u-2".to_owned());
        assert!(!is_owned_by(&ours, &owner_reference(&later).unwrap()));
        let mut not_controlled = ours.clone();
        not_controlled.owner_references_mut()[0].controller = None;
        assert!(!is_owned_by(&not_controlled, &owner));
        let mut ownerless = ours;
        ownerless.metadata.owner_references = None;
        assert!(!is_owned_by(&ownerless, &owner));
        later.metadata.uid = None;
        assert!(owner_reference(&later).is_none());
    }
}
