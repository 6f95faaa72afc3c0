//! A run that is admitted, planned and resolved: the input of the backend.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::Part;
use sympozium_api::skill_pack::Skill;
use sympozium_plan::prices::Prices;
use zeroize::Zeroizing;

use crate::binaries::Binary;
use crate::secrets::Secret;
use sympozium_api::origin::ObjectOrigin;
use sympozium_runs::ApprovalMode;

/// Everything that a run is realised from on this machine.
#[derive(Debug)]
pub struct PreparedRun {
    pub plan: RunPlan,
    /// The plan as canonical JSON.
    pub plan_bytes: Vec<u8>,
    /// The digest of these bytes.
    pub plan_digest: Digest,
    /// The skill texts of the packs that the plan names, by pack.
    pub skill_texts: BTreeMap<String, Vec<Skill>>,
    /// The ConfigMaps that the plan names.
    pub config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// The Secrets that the plan names for skills, hooks and headers.
    pub secrets: BTreeMap<String, Secret>,
    /// The variable with the model key, for the bridge alone.
    pub model_key: Option<(String, Zeroizing<String>)>,
    /// What each pack and hook is run from, by [`root_key`].
    pub roots: BTreeMap<String, PartRoot>,
    /// The directory that the user gave; a fresh one if absent.
    pub workspace: Option<PathBuf>,
    pub approve: ApprovalMode,
    /// The origins of its policies and packs.
    pub origins: Vec<ObjectOrigin>,
    /// The user's price table.
    pub prices: Option<Prices>,
    /// What the user should know before the run starts.
    pub warnings: Vec<String>,
}

impl PreparedRun {
    /// What a part is run from; `None` for our own parts.
    pub fn part_root(&self, part: &Part) -> Option<&PartRoot> {
        self.roots.get(&root_key(part)?)
    }
}

/// The key of a part's root: the name of a pack, or `hook/` and the name of the part, which no pack can have.
pub fn root_key(part: &Part) -> Option<String> {
    match part.role.pack() {
        Some(pack) => Some(pack.to_owned()),
        None if part.role.is_hook() => Some(format!("hook/{}", part.name)),
        None => None,
    }
}

/// What a pack or hook is run from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartRoot {
    /// The machine's system directories, and of its other programs those that the pack declares.
    Host(Vec<Binary>),
    /// A directory with the root file system of the image.
    Directory(PathBuf),
}
