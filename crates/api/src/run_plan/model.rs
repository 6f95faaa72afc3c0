//! The model of a run, and its address.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{EnvName, ObjectName, SecretName};
use crate::provider::{KeyHeader, Provider};

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
    /// The header that carries the key. Absent where it is the usual one of the wire format, and in plans of releases
    /// that did not write it: see [`resolve_key_header`](Self::resolve_key_header).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_header: Option<KeyHeader>,
    /// Whether the usage of a stream must be asked for. Absent where the wire format decides it, and in plans of
    /// releases that did not write it: see [`must_ask_for_usage`](Self::must_ask_for_usage).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask_for_usage: Option<bool>,
    /// The ConfigMap with the turns of a scripted model, which only the bridge reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ObjectName>,
}

impl ModelPlan {
    /// The header that carries the key.
    pub fn resolve_key_header(&self) -> KeyHeader {
        let usual = || self.known_provider().map_or(self.wire.key_header(), |provider| provider.key_header);
        self.key_header.unwrap_or_else(usual)
    }

    /// Whether the usage of a stream must be asked for.
    pub fn must_ask_for_usage(&self) -> bool {
        let usual = || self.known_provider().map_or(self.wire.asks_for_usage(), |provider| provider.asks_for_usage);
        self.ask_for_usage.unwrap_or_else(usual)
    }

    /// The row of the provider, unless the plan has another wire format.
    fn known_provider(&self) -> Option<&'static Provider> {
        Some(Provider::find(&self.provider)).filter(|provider| provider.wire == self.wire)
    }
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

impl WireFormat {
    /// The header that carries the key at most providers of this format.
    pub const fn key_header(self) -> KeyHeader {
        match self {
            Self::OpenAi => KeyHeader::Authorization,
            Self::Anthropic => KeyHeader::XApiKey,
        }
    }

    /// Whether most providers of this format report the usage of a stream only on request.
    pub const fn asks_for_usage(self) -> bool {
        matches!(self, Self::OpenAi)
    }
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
