//! What the file tools may do in a root, and what they may advise.

use sympozium_api::builtin_tool::EXECUTE_COMMAND;
use sympozium_api::run_plan::{AgentView, Root, paths};

use super::path::{holds, joined, plain};

/// Where the tools write: in these places and below them, and nowhere else, whatever an author has mounted for the agent.
pub const WRITABLE: [&str; 2] = [paths::WORKSPACE, paths::TMP];

/// Whether the model can have commands run. What it is told to do must be something that it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commands {
    /// It can.
    Offered,
    /// It cannot: no skill has a sidecar, or a policy forbids it.
    NotOffered,
}

impl Commands {
    /// Whether the run of this view has them.
    pub fn of(view: &AgentView) -> Self {
        if view.tools.iter().any(|tool| tool.name == EXECUTE_COMMAND) { Self::Offered } else { Self::NotOffered }
    }
}

/// Whether tools write to a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writing {
    /// They do.
    Yes,
    /// The plan says that it is for reading.
    ReadOnly,
    /// It is not in a place where tools write.
    Elsewhere,
}

impl Writing {
    /// For a root at this plain path, where tools write in these plain places.
    pub fn of(root: &Root, path: &str, places: &[String]) -> Self {
        if !root.writable {
            Self::ReadOnly
        } else if places.iter().any(|place| holds(place, path)) {
            Self::Yes
        } else {
            Self::Elsewhere
        }
    }
}

/// Whether the tools write to a root, where they write in these places.
pub(crate) fn is_written(root: &Root, places: &[&str]) -> bool {
    plain(&root.path).is_ok_and(|parts| Writing::of(root, &joined(&parts), &made_plain(places)) == Writing::Yes)
}

/// The places as roots have them.
pub fn made_plain(places: &[&str]) -> Vec<String> {
    let plain = places.iter().filter_map(|place| plain(place).ok());
    plain.map(|parts| joined(&parts)).collect()
}
