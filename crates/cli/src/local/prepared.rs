//! A run that is admitted, planned and has everything it needs: what a backend is given.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sympozium_api::RunPlan;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::Part;
use sympozium_api::skill_pack::Skill;
use sympozium_plan::prices::Prices;
use zeroize::Zeroizing;

use super::binaries::Binary;
use super::secrets::Secret;
use crate::origin::ResolvedFrom;

/// Everything that a run is made from on this machine.
#[derive(Debug)]
pub struct Prepared {
    /// The plan.
    pub plan: RunPlan,
    /// The plan as it is stored.
    pub bytes: Vec<u8>,
    /// The digest of that.
    pub digest: Digest,
    /// The texts of the packs that the plan names, by pack.
    pub texts: BTreeMap<String, Vec<Skill>>,
    /// ConfigMaps of the run's namespace, of those that the plan names.
    pub config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Secrets of the run's namespace, of those that the plan names for skills, hooks and headers.
    pub secrets: BTreeMap<String, Secret>,
    /// The variable with the model's key, for the bridge alone.
    pub model_key: Option<(String, Zeroizing<String>)>,
    /// What each pack is run from, by pack, and each hook: see [`root_key`].
    pub roots: BTreeMap<String, PackRoot>,
    /// The workspace that the user gave; a fresh one when absent.
    pub workspace: Option<PathBuf>,
    /// What becomes of questions.
    pub approve: Approve,
    /// Where its policies and packs came from.
    pub origins: Vec<ResolvedFrom>,
    /// What tokens cost, where the user says so.
    pub prices: Option<Prices>,
    /// What a person should know before it starts.
    pub warnings: Vec<String>,
}

impl Prepared {
    /// What a part is run from; nothing for parts that are ours.
    pub fn root_of(&self, part: &Part) -> Option<&PackRoot> {
        self.roots.get(&root_key(part)?)
    }
}

/// What a part's root goes by: a pack by its name, a hook by `hook/` and the name of its part, which no pack is called.
pub fn root_key(part: &Part) -> Option<String> {
    match part.role.pack() {
        Some(pack) => Some(pack.to_owned()),
        None if part.role.is_hook() => Some(format!("hook/{}", part.name)),
        None => None,
    }
}

/// What a pack is run from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackRoot {
    /// The machine's own system directories, and of its programs those that the pack declares.
    Host(Vec<Binary>),
    /// A directory that holds the image's whole root file system.
    Directory(PathBuf),
}

/// What becomes of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Approve {
    /// A person is asked: at this terminal, or from another by `sympozium approve`.
    Ask,
    /// Each is answered yes, by whoever started the run, where the policy lets them.
    All,
    /// Each is answered no.
    None,
}
