//! The objects that a plan was made from, as they were.

use serde::Serialize;
use sympozium_api::ModelSpec;
use sympozium_api::agent_run::ResolvedObject;
use sympozium_api::digest::{CanonicalJsonError, digest};
use sympozium_api::labels::FLOOR_POLICY;
use sympozium_api::names::{NamespaceName, ObjectName, Uid};

use crate::admit::{Admitted, Input, model_url, referenced_policy, resolve_model};

/// The domain of the digest of a spec.
const DOMAIN: &str = "sympozium.ai/spec/v1";

/// The data that the digest of a model covers.
#[derive(Serialize)]
struct ServedModel<'m> {
    spec: &'m ModelSpec,
    endpoint: String,
}

/// The agent, its policy, the floor, the packs and the model.
pub fn resolved_objects(input: &Input<'_>, admitted: &Admitted<'_>) -> Result<Vec<ResolvedObject>, CanonicalJsonError> {
    let own = input.namespace;
    let system = input.settings.system_namespace.as_str();
    let mut objects = Vec::new();
    if let Some(agent) = input.agents.agent {
        let metadata = (&agent.metadata.name, &agent.metadata.uid);
        objects.push(resolved_object("Agent", own, metadata, &agent.spec)?);
    }
    if let Some(instance) = input.agents.instance {
        let metadata = (&instance.metadata.name, &instance.metadata.uid);
        objects.push(resolved_object("SympoziumInstance", own, metadata, &instance.spec)?);
    }
    if let (Some(_), Some((policy, namespace))) =
        (referenced_policy(input.agents), own_or_system(input.policies.own, input.policies.system, own, system))
    {
        let metadata = (&policy.metadata.name, &policy.metadata.uid);
        objects.push(resolved_object("SympoziumPolicy", namespace, metadata, &policy.spec)?);
    }
    if let Some(floor) = input.floor {
        let metadata = (&Some(FLOOR_POLICY.to_owned()), &None);
        objects.push(resolved_object("SympoziumPolicy", system, metadata, floor)?);
    }
    for pack in &admitted.packs {
        let metadata = (&Some(pack.name.as_str().to_owned()), &pack.uid);
        objects.push(resolved_object("SkillPack", &pack.namespace, metadata, pack.spec)?);
    }
    let model = admitted.run.spec.model.as_ref();
    let reference = model.and_then(|model| model.model_ref.as_ref());
    if let Some(found) = reference.and_then(|reference| resolve_model(input, reference)) {
        let metadata = (&found.model.metadata.name, &found.model.metadata.uid);
        // The address need not follow from the spec.
        let served = ServedModel { spec: &found.model.spec, endpoint: model_url(&found) };
        objects.push(resolved_object("Model", found.namespace, metadata, &served)?);
    }
    Ok(objects)
}

/// The object in the first namespace, or else the one in the system namespace, with its namespace.
fn own_or_system<'k, K>(
    own: Option<&'k K>,
    of_system: Option<&'k K>,
    namespace: &'k str,
    system: &'k str,
) -> Option<(&'k K, &'k str)> {
    own.map(|model| (model, namespace)).or(of_system.map(|model| (model, system)))
}

fn resolved_object(
    kind: &str,
    namespace: &str,
    (name, uid): (&Option<String>, &Option<String>),
    spec: &impl Serialize,
) -> Result<ResolvedObject, CanonicalJsonError> {
    Ok(ResolvedObject {
        kind: kind.to_owned(),
        namespace: NamespaceName::new(namespace),
        name: ObjectName::new(name.clone().unwrap_or_default()),
        uid: uid.clone().map(Uid::new),
        digest: digest(DOMAIN, spec)?,
    })
}
