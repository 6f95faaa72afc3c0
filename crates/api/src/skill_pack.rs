//! `SkillPack`: skill texts for an agent, and the sidecar with the programs that they use.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::feature::Feature;
use crate::limits;
use crate::names::{ImageRef, ObjectName, SkillFilePath, SkillName, ToolPattern};
use crate::quantity::Quantity;
use crate::schema;

mod sidecar;

pub use sidecar::{Executor, HostAccess, HostMount, InputMode, Port, PortProtocol, Sidecar, SidecarResources, Tool};

/// Skills that belong together, with the container that their commands run in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "SkillPack",
    namespaced,
    status = "SkillPackStatus",
    shortname = "spack",
    category = "sympozium",
    doc = "Skills that belong together: texts for the agent, and the isolated sidecar in which their commands run.",
    derive = "PartialEq",
    printcolumn(name = "Skills", type_ = "integer", json_path = ".status.skillCount"),
    printcolumn(name = "ConfigMap", type_ = "string", json_path = ".status.configMapName"),
    printcolumn(name = "Category", type_ = "string", json_path = ".spec.category"),
    printcolumn(name = "Maturity", type_ = "string", json_path = r".metadata.labels.sympozium\.ai/maturity"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.sidecar.image", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct SkillPackSpec {
    /// The skills: each a text that the agent can read.
    #[schemars(length(max = limits::SKILL_TEXTS), transform = schema::list_by_name)]
    pub skills: Vec<Skill>,
    /// What the pack is about, for people who look for one: `kubernetes`, `sre`, `development` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub category: Option<String>,
    /// Where the pack comes from: `builtin`, `custom` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub source: Option<String>,
    /// The pack's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::WORD))]
    pub version: Option<String>,
    /// What the pack needs to be of use. For people and for local runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_requirements: Option<RuntimeRequirements>,
    /// Features that the pack brings, such as `browser-automation`. A policy's gates may close them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = Feature::ALL.len()), transform = schema::list_set)]
    pub features: Vec<Feature>,
    /// The container in which the skills' commands run. A pack without one is texts only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<Sidecar>,
}

/// One skill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct Skill {
    /// Its name. The agent finds the text below `/skills`.
    pub name: SkillName,
    /// What it is good for, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::SHORT_TEXT))]
    pub description: Option<String>,
    /// What it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<SkillRequirements>,
    /// The text, in Markdown.
    #[schemars(length(max = limits::LONG_TEXT))]
    pub content: String,
    /// The only tools that can be called while this skill is active, as `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or
    /// `namespace/pack/*`: from when the agent loads it with `load_skill` until it loads another. It narrows what the policy leaves,
    /// and opens nothing. Absent: no such limit. Empty: none but `load_skill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::NAMES))]
    pub allowed_tools: Option<Vec<ToolPattern>>,
    /// Files beside the text: scripts, references, templates. The agent reads them; scripts run in the pack's sidecar only,
    /// which sees them at the same place, `/skills/` and the names of pack and skill.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::SKILL_FILES), transform = schema::list_by_path)]
    pub files: Vec<SkillFile>,
}

/// A file of a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description, transform = schema::Rules(&[
    (
        "has(self.content) != has(self.contentBase64)",
        "a file has `content` or `contentBase64`",
    ),
    (
        "self.path.lowerAscii() != 'skill.md'",
        "`SKILL.md` is the text of the skill itself",
    ),
]))]
pub struct SkillFile {
    /// Where it is below the skill's directory, such as `scripts/check.sh`.
    pub path: SkillFilePath,
    /// What it holds, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::LONG_TEXT))]
    pub content: Option<String>,
    /// What it holds, in Base64, where it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::LONG_TEXT))]
    pub content_base64: Option<String>,
    /// Whether it is a program. It can be started in the pack's sidecar, and nowhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<bool>,
}

/// What a skill needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct SkillRequirements {
    /// Programs. A local run without the pack's image takes them from the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(min = 1, max = limits::WORD)))]
    pub bins: Vec<String>,
    /// Tools of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::NAMES), inner(length(min = 1, max = limits::WORD)))]
    pub tools: Vec<String>,
}

/// What a pack needs to be of use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::drop_description)]
pub struct RuntimeRequirements {
    /// An image that has everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageRef>,
    /// Whether it wants a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<bool>,
    /// The least memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_memory: Option<Quantity>,
    /// The least CPU.
    #[serde(default, rename = "minCPU", skip_serializing_if = "Option::is_none")]
    pub min_cpu: Option<Quantity>,
}

/// What the controller says about a pack.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillPackStatus {
    /// `Ready`, or `Error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SkillPackPhase>,
    /// The generation that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The ConfigMap with the texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_name: Option<ObjectName>,
    /// How many skills there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill_count: Option<i32>,
    /// The conditions of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Where a pack stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::drop_description)]
pub enum SkillPackPhase {
    /// Runs can use it.
    Ready,
    /// It cannot be used as it is written.
    Error,
}
