//! The model of a run, and its address.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{EnvName, ObjectName, SecretName};

/// The model, and its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPlan {
    /// The provider that serves it.
    pub provider: String,
    /// The provider's name for it.
    pub model: String,
    /// The wire format of requests and answers.
    pub wire: WireFormat,
    /// The address of the model; absent for one inside the bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<ModelEndpoint>,
    /// The model's thinking level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Headers of every request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// A Secret with further headers, which only the bridge reads, as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers_secret: Option<SecretName>,
    /// The variables of the bridge that may hold the model key. The first that is set is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ModelKey>,
    /// The ConfigMap with the turns of a scripted model, which only the bridge reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ObjectName>,
}

/// The wire format of a model's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WireFormat {
    /// Chat completions of OpenAI.
    OpenAi,
    /// Messages of Anthropic.
    Anthropic,
}

/// The address of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelEndpoint {
    /// Whether it is reached over TLS.
    pub encrypted: bool,
    /// Name or address of the host.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The only path that requests go to.
    pub path: String,
}

/// A variable of the bridge that holds a provider's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelKey {
    /// The variable, which is also the key in the Secret.
    pub variable: EnvName,
    /// The name of the Secret.
    pub secret: SecretName,
}
