//! What parts mount, and where.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::IdentityName;
use super::part::PartName;
use crate::names::{MountPath, ObjectName, SecretName};
use crate::open::Volume;
use crate::quantity::Quantity;

/// What a volume is called in the run. No two can run into each other: users' names are not part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VolumeName(pub String);

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanVolume {
    /// Its name.
    pub name: VolumeName,
    /// What it is.
    pub source: VolumeSource,
}

/// What a volume is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum VolumeSource {
    /// Empty at first, gone with the run.
    #[serde(rename_all = "camelCase")]
    Scratch {
        /// Where it is kept.
        medium: Medium,
        /// How much fits.
        size: Quantity,
    },
    /// Empty at first, and there until the hooks after the run have ended.
    #[serde(rename_all = "camelCase")]
    Kept {
        /// How much fits.
        size: Quantity,
    },
    /// The texts and files of one pack, by skill.
    #[serde(rename_all = "camelCase")]
    Texts {
        /// The pack.
        pack: String,
        /// Whether its programs can be started. For its own sidecar only.
        programs: bool,
    },
    /// What a part reads about the run. The backend writes it.
    #[serde(rename_all = "camelCase")]
    Input {
        /// The part.
        part: PartName,
    },
    /// The token of an identity, with the certificate of the API server. The backend writes it.
    #[serde(rename_all = "camelCase")]
    Token {
        /// Whose.
        identity: IdentityName,
    },
    /// A Secret of the run's namespace, one file for each key.
    #[serde(rename_all = "camelCase")]
    Secret {
        /// The Secret.
        secret: SecretName,
    },
    /// A ConfigMap of the run's namespace, one file for each key.
    #[serde(rename_all = "camelCase")]
    ConfigMap {
        /// The ConfigMap.
        config_map: ObjectName,
    },
    /// A directory of the node.
    #[serde(rename_all = "camelCase")]
    Host {
        /// Where it is on the node.
        path: MountPath,
    },
    /// A volume that a user declared, as it was written and admitted.
    #[serde(rename_all = "camelCase")]
    Declared {
        /// The volume, with its owner's name for it.
        volume: Volume,
    },
}

/// Where scratch space is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Medium {
    /// On the node's disk.
    Disk,
    /// In memory.
    Memory,
}

/// Where a part sees a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// The volume.
    pub volume: VolumeName,
    /// Where.
    pub path: MountPath,
    /// Whether the part may not write to it.
    pub read_only: bool,
    /// The part of the volume that it sees, instead of all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Whether mounts below it are read-only too, where it is. On one machine they always are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive_read_only: Option<RecursiveReadOnly>,
}

/// Whether mounts below one that is read-only are read-only too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecursiveReadOnly {
    /// Where the node can do that.
    IfPossible,
    /// Or the pod does not start.
    Enabled,
}

impl RecursiveReadOnly {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IfPossible => "IfPossible",
            Self::Enabled => "Enabled",
        }
    }

    /// What a mount asks for; nothing where it is `Disabled`, or no word of Kubernetes.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::IfPossible, Self::Enabled].into_iter().find(|it| it.as_str() == text)
    }
}
