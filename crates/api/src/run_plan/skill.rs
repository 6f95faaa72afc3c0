//! The texts that the agent can read.

use serde::{Deserialize, Serialize};

use crate::names::{Digest, SkillFilePath, ToolPattern};

/// One skill, or all that a ConfigMap holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillPlan {
    /// Where it comes from.
    pub source: SkillSource,
    /// The directory that it is in.
    pub directory: String,
    /// What it is good for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The only tools that are for it, of those that the run has. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<ToolPattern>>,
    /// Files beside the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SkillFilePlan>,
}

/// Where a skill comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum SkillSource {
    /// From a pack.
    #[serde(rename_all = "camelCase")]
    Pack {
        /// The pack.
        pack: String,
        /// The skill's name in it.
        skill: String,
        /// The digest of text and files.
        digest: Digest,
        /// Bytes of the text.
        bytes: u64,
    },
    /// From a ConfigMap of the run's namespace, whatever it holds when the run starts.
    #[serde(rename_all = "camelCase")]
    ConfigMap {
        /// The ConfigMap.
        config_map: String,
    },
}

/// A file beside the text of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillFilePlan {
    /// Where it is below the skill's directory.
    pub path: SkillFilePath,
    /// Whether it is a program, for the pack's sidecar.
    pub executable: bool,
    /// Its bytes.
    pub bytes: u64,
}
