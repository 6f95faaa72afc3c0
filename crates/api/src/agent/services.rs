//! What an agent uses besides its model and skills: memory, traces, MCP servers, a web endpoint.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::limits;
use crate::names::{ObjectName, SecretName};
use crate::schema;

/// What an agent remembers from run to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Memory {
    /// Whether it remembers.
    #[serde(default = "defaults::yes")]
    pub enabled: bool,
    /// Maximum size, in kilobytes.
    #[serde(default = "defaults::number::<256>", rename = "maxSizeKB")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_size_kb: i32,
    /// Whether each run's outcome is remembered without being asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_store: Option<bool>,
    /// Text for the agent, before everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::LONG_TEXT))]
    pub system_prompt: Option<String>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { enabled: true, max_size_kb: 256, auto_store: None, system_prompt: None }
    }
}

/// Where traces go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Observability {
    /// Whether there are any.
    #[serde(default)]
    pub enabled: bool,
    /// The collector's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::URL))]
    pub otlp_endpoint: Option<String>,
    /// The protocol: `grpc` or `http/protobuf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otlp_protocol: Option<OtlpProtocol>,
    /// The service's name in traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub service_name: Option<String>,
    /// Headers for the collector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: limits::VALUE })]
    pub headers: BTreeMap<String, String>,
    /// A Secret with more such headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers_secret_ref: Option<SecretName>,
    /// The fraction of traces that is sampled, from `0` to `1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^(0(\.[0-9]+)?|1(\.0+)?)$"))]
    pub sampling_ratio: Option<String>,
    /// What every trace says about its origin.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: limits::VALUE })]
    pub resource_attributes: BTreeMap<String, String>,
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum OtlpProtocol {
    /// gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// HTTP with protocol buffers.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// An MCP server whose tools the agent may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct McpServer {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its address; found by its name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::URL))]
    pub url: Option<String>,
    /// What its tools' names start with.
    #[schemars(length(min = 1, max = 64))]
    pub tools_prefix: String,
    /// Seconds that a call may take.
    #[serde(default = "defaults::number::<30>")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout: i32,
    /// A Secret with its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_secret: Option<SecretName>,
    /// The key in that Secret; `token` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub auth_key: Option<String>,
    /// Headers for every request to it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: limits::VALUE })]
    pub headers: BTreeMap<String, String>,
    /// Its tools that may be called. Absent: all. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::WORD)))]
    pub tools_allow: Option<Vec<String>>,
    /// Its tools that may not be called, allowed or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(max = limits::WORD)))]
    pub tools_deny: Vec<String>,
}

/// An HTTP endpoint for an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct WebEndpoint {
    /// Whether there is one.
    #[serde(default)]
    pub enabled: bool,
    /// Its host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub hostname: Option<String>,
    /// A Secret with the key that callers send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_secret_ref: Option<SecretName>,
    /// How often it may be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
}

/// How often something may be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct RateLimit {
    /// Calls in a minute.
    #[serde(default = "defaults::number::<60>")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests_per_minute: i32,
    /// Calls at once.
    #[serde(default = "defaults::number::<10>")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst_size: i32,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { requests_per_minute: 60, burst_size: 10 }
    }
}

/// How a web endpoint is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct WebEndpointStatus {
    /// In a word.
    #[schemars(length(max = limits::WORD))]
    pub status: String,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::URL))]
    pub url: Option<String>,
    /// The Secret with the key that callers send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_secret_name: Option<ObjectName>,
}
