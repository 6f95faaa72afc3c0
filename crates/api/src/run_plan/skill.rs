//! The skill texts that the agent can read.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::digest::{CanonicalJsonError, digest, digest_canonical};
use crate::names::{Digest, SkillFilePath, ToolPattern};

/// The domain of the digest of a skill's text and files.
const DOMAIN: &str = "sympozium.ai/skill/v2";
/// The domain of the digest of the contents of one of them.
const CONTENT_DOMAIN: &str = "sympozium.ai/skill-content/v1";

/// One skill, or all skills in a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillPlan {
    /// Where it comes from.
    pub source: SkillSource,
    /// The directory that it is in.
    pub directory: String,
    /// The description for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The only tools that are for it, of those that the run has. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<ToolPattern>>,
    /// Files beside the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SkillFilePlan>,
}

impl SkillPlan {
    /// The file with a skill's text, in its directory.
    pub const TEXT_FILE: &str = "SKILL.md";

    /// The name that is unique in a run: `pack/skill`, or that of the ConfigMap.
    #[must_use]
    pub fn full_name(&self) -> Cow<'_, str> {
        match &self.source {
            SkillSource::Pack { pack, skill, .. } => Cow::Owned(format!("{pack}/{skill}")),
            SkillSource::ConfigMap { config_map } => Cow::Borrowed(config_map),
        }
    }

    /// The name without the pack, which several skills may have.
    #[must_use]
    pub fn short_name(&self) -> &str {
        match &self.source {
            SkillSource::Pack { skill, .. } => skill,
            SkillSource::ConfigMap { config_map } => config_map,
        }
    }

    /// The index of the skill that a `load_skill` call names: by its full name, or by a short name that only one skill
    /// has. The agent loads with this function and the bridge decides with it which tools the loaded skill allows, so
    /// that the two cannot disagree.
    ///
    /// # Errors
    ///
    /// When no skill has the name, or several have.
    pub fn find(skills: &[Self], name: &str) -> Result<usize, FindSkillError> {
        let name = name.trim();
        if let Some(index) = skills.iter().position(|skill| skill.full_name() == name) {
            return Ok(index);
        }
        let mut named = (0..skills.len()).filter(|&index| skills[index].short_name() == name);
        match (named.next(), named.next()) {
            (Some(index), None) => Ok(index),
            (None, _) => Err(FindSkillError::Missing),
            (Some(_), Some(_)) => Err(FindSkillError::Ambiguous),
        }
    }
}

/// Why a name does not identify one skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindSkillError {
    /// No skill has it.
    Missing,
    /// Several skills have it.
    Ambiguous,
}

/// Where a skill comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum SkillSource {
    /// From a pack.
    #[serde(rename_all = "camelCase")]
    Pack {
        /// The name of the pack.
        pack: String,
        /// The skill's name in the pack.
        skill: String,
        /// The digest of text and files: see [`SkillContents`].
        digest: Digest,
        /// Size of the text in bytes.
        bytes: u64,
    },
    /// From a ConfigMap of the run's namespace, with its contents at the start of the run.
    #[serde(rename_all = "camelCase")]
    ConfigMap {
        /// The name of the ConfigMap.
        config_map: String,
    },
}

/// A file beside the text of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillFilePlan {
    /// The path below the skill's directory.
    pub path: SkillFilePath,
    /// Whether it is a program, for the pack's sidecar.
    pub executable: bool,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Text and files of a skill of a pack, as they are mounted: the planner and a reader of the mounted files compute the
/// same digest. How a pack's manifest encodes them, and its other fields, are not part of it.
#[derive(Debug, Clone, Serialize)]
pub struct SkillContents {
    text: Digest,
    files: Vec<FileContents>,
}

#[derive(Debug, Clone, Serialize)]
struct FileContents {
    path: SkillFilePath,
    executable: bool,
    content: Digest,
}

impl SkillContents {
    /// A skill with this text, and no files yet.
    pub fn new(text: &[u8]) -> Self {
        Self { text: digest_canonical(CONTENT_DOMAIN, text), files: Vec::new() }
    }

    /// Adds the next file, in the order of the pack.
    pub fn add(&mut self, path: &SkillFilePath, executable: bool, content: &[u8]) {
        self.files.push(FileContents {
            path: path.clone(),
            executable,
            content: digest_canonical(CONTENT_DOMAIN, content),
        });
    }

    /// The digest of text and files.
    ///
    /// # Errors
    ///
    /// Never: all of it can be serialised as JSON.
    pub fn digest(&self) -> Result<Digest, CanonicalJsonError> {
        digest(DOMAIN, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_skill_counts_for_its_digest() -> Result<(), CanonicalJsonError> {
        let digest = |text: &str, files: &[(&str, bool, &[u8])]| {
            let mut contents = SkillContents::new(text.as_bytes());
            for (path, executable, content) in files {
                contents.add(&SkillFilePath::new(*path), *executable, content);
            }
            contents.digest()
        };
        type File<'f> = (&'f str, bool, &'f [u8]);
        let (one, other): (File<'_>, File<'_>) = (("a", false, b"1"), ("b", true, b"\xff"));
        let all = [
            digest("text", &[one, other])?,
            digest("text ", &[one, other])?,
            digest("text", &[other, one])?,
            digest("text", &[one])?,
            digest("text", &[("A", false, b"1"), other])?,
            digest("text", &[("a", true, b"1"), other])?,
            digest("text", &[("a", false, b"2"), other])?,
        ];
        for (index, digest) in all.iter().enumerate() {
            assert_eq!(digest.check(), Ok(()));
            assert!(!all[..index].contains(digest), "{index}");
        }
        // Computed with another program: SHA-256 of the text after its domain and a NUL, then of the JSON with it.
        let known = "sha256:7abda9e266edcee4cb4c671a98f1cb3abf2d7b77eb5e8c0527e67c03f80535fb";
        assert_eq!(digest("text", &[])?, *known);
        Ok(())
    }
}
