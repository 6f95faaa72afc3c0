//! The model of a run, and where it answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{EnvName, ObjectName, SecretName};

/// The model, and where it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPlan {
    /// Who serves it.
    pub provider: String,
    /// The provider's name for it.
    pub model: String,
    /// How it is spoken to.
    pub wire: WireFormat,
    /// Where it answers; inside the bridge when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<ModelEndpoint>,
    /// How long it thinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Headers of every request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// A Secret with more headers, which the bridge alone sees as files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers_secret: Option<SecretName>,
    /// Where the key is, in the bridge's environment. The first that is set is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ModelKey>,
    /// The ConfigMap with the turns of a scripted model, which the bridge alone sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ObjectName>,
}

/// How a model is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WireFormat {
    /// Chat completions as OpenAI has them.
    OpenAi,
    /// Messages as Anthropic has them.
    Anthropic,
}

/// Where a model answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelEndpoint {
    /// Whether it is reached by TLS.
    pub encrypted: bool,
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The one path that requests go to.
    pub path: String,
}

/// One variable of the bridge with a provider's key in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelKey {
    /// The variable, which is also the key in the Secret.
    pub variable: EnvName,
    /// The Secret.
    pub secret: SecretName,
}
