//! Volumes and mounts of parts.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::IdentityName;
use super::part::PartName;
use crate::names::{MountPath, ObjectName, SecretName};
use crate::open::Volume;
use crate::quantity::Quantity;

/// The name of a volume in the run. Names cannot collide: they contain no names of users.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VolumeName(pub String);

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One volume of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanVolume {
    /// The name of the volume.
    pub name: VolumeName,
    /// The contents of the volume.
    pub source: VolumeSource,
}

/// The contents of a volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum VolumeSource {
    /// Empty at first, deleted with the run.
    #[serde(rename_all = "camelCase")]
    Scratch {
        /// Where it is stored.
        medium: Medium,
        /// Maximum size.
        size: Quantity,
    },
    /// Empty at first, and stored until the hooks after the run have ended.
    #[serde(rename_all = "camelCase")]
    Kept {
        /// Maximum size.
        size: Quantity,
    },
    /// The texts and files of one pack, by skill.
    #[serde(rename_all = "camelCase")]
    Texts {
        /// The name of the pack.
        pack: String,
        /// Whether its programs are executable. For its own sidecar only.
        programs: bool,
    },
    /// The input of a part. The backend writes it.
    #[serde(rename_all = "camelCase")]
    Input {
        /// The part that reads it.
        part: PartName,
    },
    /// The token of an identity, with the certificate of the API server. The backend writes it.
    #[serde(rename_all = "camelCase")]
    Token {
        /// The identity of the token.
        identity: IdentityName,
    },
    /// A Secret of the run's namespace, one file for each key.
    #[serde(rename_all = "camelCase")]
    Secret {
        /// The name of the Secret.
        secret: SecretName,
    },
    /// A ConfigMap of the run's namespace, one file for each key.
    #[serde(rename_all = "camelCase")]
    ConfigMap {
        /// The name of the ConfigMap.
        config_map: ObjectName,
    },
    /// A directory of the node.
    #[serde(rename_all = "camelCase")]
    Host {
        /// The path on the node.
        path: MountPath,
    },
    /// A volume that a user declared, as it was written and admitted.
    #[serde(rename_all = "camelCase")]
    Declared {
        /// The volume, with the name that its owner gave it.
        volume: Volume,
    },
}

/// Where scratch space is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Medium {
    /// On the node's disk.
    Disk,
    /// In memory.
    Memory,
}

/// A mount of a volume in a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// The volume that is mounted.
    pub volume: VolumeName,
    /// The path in the part.
    pub path: MountPath,
    /// Whether the part cannot write to it.
    pub read_only: bool,
    /// The path inside of the volume to mount, instead of all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// For a read-only mount: whether mounts below it are read-only too. On one machine they always are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive_read_only: Option<RecursiveReadOnly>,
}

/// Whether mounts below a read-only mount are read-only too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecursiveReadOnly {
    /// Where the node supports it.
    IfPossible,
    /// Otherwise the pod does not start.
    Enabled,
}

impl RecursiveReadOnly {
    /// The word in Kubernetes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IfPossible => "IfPossible",
            Self::Enabled => "Enabled",
        }
    }

    /// Parses the word of a mount; `None` for `Disabled`, and for words that Kubernetes does not have.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::IfPossible, Self::Enabled].into_iter().find(|mode| mode.as_str() == text)
    }
}
