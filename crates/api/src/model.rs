//! `Model`: a model that is served in the cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::environment::EnvVar;
use crate::limits;
use crate::names::{ImageRef, ObjectName, SecretName};
use crate::open::OpenObject;
use crate::quantity::Quantity;
use crate::sandbox::ImagePullPolicy;
use crate::schema;

/// A model that is served in the cluster: where it comes from, and how it runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "Model",
    namespaced,
    status = "ModelStatus",
    shortname = "smodel",
    category = "sympozium",
    doc = "A model that is served in the cluster: where it comes from, and how it runs.",
    derive = "PartialEq",
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.inference.serverType"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoint"),
    printcolumn(name = "GPU", type_ = "integer", json_path = ".spec.resources.gpu"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ModelSpec {
    /// Where the model comes from.
    pub source: ModelSource,
    /// Where the model is stored.
    #[serde(default)]
    pub storage: ModelStorage,
    /// The server that runs it.
    #[serde(default)]
    pub inference: Inference,
    /// What the server asks for, and may not exceed.
    #[serde(default)]
    pub resources: ModelResources,
    /// Labels of the nodes that it may be on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::TextMap { entries: limits::ENTRIES, value: 63 })]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations for taints of nodes, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ENTRIES))]
    pub tolerations: Vec<OpenObject>,
    /// How a node is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[(
    "has(self.url) || has(self.modelID)",
    "a model comes from an address in `url` or has a name in `modelID`",
)]))]
pub struct ModelSource {
    /// An address to load it from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::URL))]
    pub url: Option<String>,
    /// The file in which it is stored.
    #[serde(default = "model_file")]
    #[schemars(length(max = 255), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"))]
    pub filename: String,
    /// The name by which the server loads it itself.
    #[serde(default, rename = "modelID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = limits::SHORT_TEXT))]
    pub model_id: Option<String>,
    /// The SHA-256 of the file, in hexadecimal. It is checked before every load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^[A-Fa-f0-9]{64}$"))]
    pub sha256: Option<String>,
}

fn model_file() -> String {
    "model.gguf".to_owned()
}

impl Default for ModelSource {
    fn default() -> Self {
        Self { url: None, filename: model_file(), model_id: None, sha256: None }
    }
}

/// Where a model is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ModelStorage {
    /// How much room it has.
    #[serde(default = "ten_gibibytes")]
    pub size: Quantity,
    /// The StorageClass; the cluster's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<ObjectName>,
}

fn ten_gibibytes() -> Quantity {
    Quantity::from("10Gi")
}

impl Default for ModelStorage {
    fn default() -> Self {
        Self { size: ten_gibibytes(), storage_class: None }
    }
}

/// The server that runs a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[(
    "self.serverType != 'custom' || has(self.image)",
    "a `custom` server needs an `image`",
)]))]
pub struct Inference {
    /// Which one: `llama-cpp`, `vllm`, `tgi` or `custom`.
    #[serde(default)]
    pub server_type: ServerType,
    /// Its image; the usual one of its type when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// The port that it listens at; the usual one of its type when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
    /// The length of the context, in tokens.
    #[serde(default = "defaults::number::<4096>")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub context_size: i32,
    /// More arguments to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ARGUMENTS), inner(length(max = limits::ARGUMENT)))]
    pub args: Vec<String>,
    /// Its environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::ENVIRONMENT), transform = schema::list_by_name)]
    pub env: Vec<EnvVar>,
    /// A Secret with a token for Hugging Face, in the key `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face_token_secret: Option<SecretName>,
}

impl Inference {
    /// The port, or the default of the server type.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(match self.server_type {
            ServerType::Vllm => 8000,
            ServerType::LlamaCpp | ServerType::Tgi | ServerType::Custom => 8080,
        })
    }
}

impl Default for Inference {
    fn default() -> Self {
        Self {
            server_type: ServerType::default(),
            image: None,
            image_pull_policy: None,
            port: None,
            context_size: 4096,
            args: Vec::new(),
            env: Vec::new(),
            hugging_face_token_secret: None,
        }
    }
}

/// Which server runs a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(transform = schema::drop_description)]
pub enum ServerType {
    /// llama.cpp.
    #[default]
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// Text Generation Inference.
    Tgi,
    /// The user's own.
    Custom,
}

/// What a model's server asks for, and may not exceed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct ModelResources {
    /// Graphics processors.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024))]
    pub gpu: i32,
    /// Memory.
    #[serde(default = "sixteen_gibibytes")]
    pub memory: Quantity,
    /// CPU.
    #[serde(default = "four")]
    pub cpu: Quantity,
}

fn sixteen_gibibytes() -> Quantity {
    Quantity::from("16Gi")
}

fn four() -> Quantity {
    Quantity::from("4")
}

impl Default for ModelResources {
    fn default() -> Self {
        Self { gpu: 0, memory: sixteen_gibibytes(), cpu: four() }
    }
}

/// How a node is chosen for a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Placement {
    /// By whom: `manual` (`nodeSelector` and the scheduler), `auto` (the best fit) or `dra` (resource claims).
    #[serde(default)]
    pub mode: PlacementMode,
    /// The fewest tokens in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_tps: Option<i32>,
    /// The least computing power, in TFLOPS.
    #[serde(default, rename = "minComputeTFLOPS", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_compute_tflops: Option<i64>,
}

/// By whom a node is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum PlacementMode {
    /// By us: the best fit.
    Auto,
    /// By the user and the scheduler.
    #[default]
    Manual,
    /// By resource claims.
    Dra,
}

/// What the controller says about a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// `Pending`, `Placing`, `Downloading`, `Loading`, `Ready` or `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ModelPhase>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::URL))]
    pub endpoint: Option<String>,
    /// Details of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub message: Option<String>,
    /// The node that it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed_node: Option<ObjectName>,
    /// How well it fits there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_score: Option<i32>,
    /// Why it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::VALUE))]
    pub placement_message: Option<String>,
    /// The conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Where a model stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum ModelPhase {
    /// Nothing has begun.
    Pending,
    /// A node is looked for.
    Placing,
    /// The file is on its way.
    Downloading,
    /// The server starts.
    Loading,
    /// It answers.
    Ready,
    /// It does not work.
    Failed,
}
