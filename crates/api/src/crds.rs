//! The CRDs of all kinds, as they are installed in a cluster.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{
    Agent, AgentRun, Model, RunRecord, SkillPack, SympoziumInstance, SympoziumPolicy, SympoziumSchedule, ToolApproval,
};

/// The CRDs of all kinds, in the order of their presentation.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![
        Agent::crd(),
        SympoziumInstance::crd(),
        AgentRun::crd(),
        SkillPack::crd(),
        SympoziumPolicy::crd(),
        SympoziumSchedule::crd(),
        Model::crd(),
        ToolApproval::crd(),
        RunRecord::crd(),
    ];
    for definition in &mut definitions {
        for version in &mut definition.spec.versions {
            let schema = version.schema.as_mut();
            if let Some(schema) = schema.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
                prune_nulls(schema);
            }
        }
    }
    definitions
}

/// Removes `nullable` everywhere. The API server then drops a null in a manifest, as it does for its own kinds, instead
/// of storing it. So a field is present or absent, and rules need not handle a third case.
fn prune_nulls(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    for property in schema.properties.iter_mut().flat_map(|all| all.values_mut()) {
        prune_nulls(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => prune_nulls(item),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(prune_nulls),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &mut schema.additional_properties {
        prune_nulls(value);
    }
}
