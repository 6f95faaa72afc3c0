//! `SympoziumInstance`: the older name of `Agent`, served beside it with the same spec, status and schema.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResourceExt;
use kube::core::dynamic::ApiResource;
use kube::core::object::{HasSpec, HasStatus};
use kube::core::{NamespaceResourceScope, Resource};
use serde::{Deserialize, Serialize};

use super::{Agent, AgentSpec, AgentStatus};
use crate::labels::{API_VERSION, GROUP, VERSION};

const KIND: &str = "SympoziumInstance";
const SINGULAR: &str = "sympoziuminstance";
const PLURAL: &str = "sympoziuminstances";
const NAME: &str = "sympoziuminstances.sympozium.ai";
const SHORT_NAME: &str = "sinst";

/// An agent, by its older name.
// By hand, because the derive macro makes one kind of one spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SympoziumInstance {
    /// `sympozium.ai/v1alpha1`
    pub api_version: String,
    /// `SympoziumInstance`
    pub kind: String,
    /// Name, namespace, labels and so on.
    pub metadata: ObjectMeta,
    /// What the user wants, as for an agent.
    pub spec: AgentSpec,
    /// What the controller says, as for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<AgentStatus>,
}

impl SympoziumInstance {
    /// An object with a name and a spec.
    pub fn new(name: &str, spec: AgentSpec) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec,
            status: None,
        }
    }
}

/// The same object under the newer name.
impl From<SympoziumInstance> for Agent {
    fn from(instance: SympoziumInstance) -> Self {
        Self { metadata: instance.metadata, spec: instance.spec, status: instance.status }
    }
}

impl Resource for SympoziumInstance {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn api_version(_: &()) -> Cow<'_, str> {
        API_VERSION.into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl HasSpec for SympoziumInstance {
    type Spec = AgentSpec;

    fn spec(&self) -> &AgentSpec {
        &self.spec
    }

    fn spec_mut(&mut self) -> &mut AgentSpec {
        &mut self.spec
    }
}

impl HasStatus for SympoziumInstance {
    type Status = AgentStatus;

    fn status(&self) -> Option<&AgentStatus> {
        self.status.as_ref()
    }

    fn status_mut(&mut self) -> &mut Option<AgentStatus> {
        &mut self.status
    }
}

impl CustomResourceExt for SympoziumInstance {
    fn crd() -> CustomResourceDefinition {
        let mut definition = Agent::crd();
        definition.metadata.name = Some(NAME.to_owned());
        let names = &mut definition.spec.names;
        names.kind = KIND.to_owned();
        names.singular = Some(SINGULAR.to_owned());
        names.plural = PLURAL.to_owned();
        names.short_names = Some(vec![SHORT_NAME.to_owned()]);
        definition
    }

    fn crd_name() -> &'static str {
        NAME
    }

    fn api_resource() -> ApiResource {
        ApiResource::erase::<Self>(&())
    }

    fn shortnames() -> &'static [&'static str] {
        &[SHORT_NAME]
    }
}
