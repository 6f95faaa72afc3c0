//! Paths as models name them, made plain in their text, and how they are shown.

use sympozium_api::run_plan::paths;
use sympozium_api::text::{Bytes, printable, truncate};

use crate::tools::ToolError;

/// Most bytes of a path.
const MOST_PATH: usize = 4096;
/// Maximum length of a path in a message.
const MOST_SHOWN: Bytes = Bytes(512);

/// A path that a model named, made plain: absolute, without `.`, `..` and double slashes.
#[derive(Debug)]
pub(super) struct Named {
    /// Empty for the root of all.
    pub path: String,
    /// Whether it said that it means a directory.
    pub ends_in_slash: bool,
}

impl Named {
    pub(super) fn parse(path: &str) -> Result<Self, ToolError> {
        if path.is_empty() {
            return Err(ToolError("the path is empty; name a file or a directory".to_owned()));
        }
        let absolute = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", paths::WORKSPACE) };
        Ok(Self { path: joined(&plain(&absolute)?), ends_in_slash: path.ends_with('/') })
    }

    pub(super) fn is_root_of_all(&self) -> bool {
        self.path.is_empty()
    }

    pub(super) fn shown(&self) -> String {
        if self.path.is_empty() {
            return "/".to_owned();
        }
        shown(&self.path)
    }
}

/// The names on the way along an absolute path. `..` goes up, and stops at the top.
pub(super) fn plain(path: &str) -> Result<Vec<&str>, ToolError> {
    if path.len() > MOST_PATH {
        return Err(ToolError(format!("the path has {} bytes; a path has at most {MOST_PATH}", path.len())));
    }
    if path.contains('\0') {
        return Err(ToolError("the path has a NUL byte in it, which no path can have".to_owned()));
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    Ok(parts)
}

pub(super) fn joined(parts: &[&str]) -> String {
    parts.iter().flat_map(|part| ["/", part]).collect()
}

/// Whether `path` is `directory` or below it, both plain.
pub(super) fn holds(directory: &str, path: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path or a name in a message: on one line, and not too long.
pub(crate) fn shown(path: &str) -> String {
    printable(truncate(path, MOST_SHOWN)).into_owned()
}
