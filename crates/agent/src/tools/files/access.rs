//! What the file tools may do in a root, and what errors may suggest.

use sympozium_api::builtin_tool::EXECUTE_COMMAND;
use sympozium_api::run_plan::{AgentView, Root, paths};

use super::path::{contains, join, normalize};

/// The tools write below these directories only, whatever else an author has mounted writable.
pub const WRITABLE: [&str; 2] = [paths::WORKSPACE, paths::TMP];

/// Whether `execute_command` is offered: errors must not suggest what the model cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commands {
    Offered,
    NotOffered,
}

impl Commands {
    pub fn from_view(view: &AgentView) -> Self {
        if view.tools.iter().any(|tool| tool.name == EXECUTE_COMMAND) { Self::Offered } else { Self::NotOffered }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAccess {
    Allowed,
    ReadOnly,
    /// Outside of the directories that tools write to.
    OutsideWritableDirs,
}

impl WriteAccess {
    /// `path` and `writable_dirs` must be normalized.
    pub fn for_root(root: &Root, path: &str, writable_dirs: &[String]) -> Self {
        if !root.writable {
            Self::ReadOnly
        } else if writable_dirs.iter().any(|directory| contains(directory, path)) {
            Self::Allowed
        } else {
            Self::OutsideWritableDirs
        }
    }
}

pub(crate) fn is_writable_root(root: &Root, writable_dirs: &[&str]) -> bool {
    normalize(&root.path).is_ok_and(|parts| {
        WriteAccess::for_root(root, &join(&parts), &normalize_all(writable_dirs)) == WriteAccess::Allowed
    })
}

pub fn normalize_all(paths: &[&str]) -> Vec<String> {
    let normalized = paths.iter().filter_map(|path| normalize(path).ok());
    normalized.map(|parts| join(&parts)).collect()
}
