//! Normalizes paths from tool calls and makes them printable.

use sympozium_api::run_plan::paths;
use sympozium_api::text::{Bytes, printable, truncate};

use crate::tools::ToolError;

const MAX_PATH: usize = 4096;
const MAX_SHOWN: Bytes = Bytes(512);

/// A path from a tool call: absolute, without `.`, `..` and double slashes.
#[derive(Debug)]
pub(super) struct RequestedPath {
    /// Empty for `/`.
    pub path: String,
    pub ends_in_slash: bool,
}

impl RequestedPath {
    pub(super) fn parse(path: &str) -> Result<Self, ToolError> {
        if path.is_empty() {
            return Err(ToolError("the path is empty; name a file or a directory".to_owned()));
        }
        let absolute = if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", paths::WORKSPACE) };
        Ok(Self { path: join(&normalize(&absolute)?), ends_in_slash: path.ends_with('/') })
    }

    pub(super) fn is_slash(&self) -> bool {
        self.path.is_empty()
    }

    pub(super) fn to_printable(&self) -> String {
        if self.path.is_empty() {
            return "/".to_owned();
        }
        printable_path(&self.path)
    }
}

/// The components of an absolute path. `..` goes up and stops at `/`.
pub(super) fn normalize(path: &str) -> Result<Vec<&str>, ToolError> {
    if path.len() > MAX_PATH {
        return Err(ToolError(format!("the path has {} bytes; a path has at most {MAX_PATH}", path.len())));
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

pub(super) fn join(parts: &[&str]) -> String {
    parts.iter().flat_map(|part| ["/", part]).collect()
}

/// Both must be normalized.
pub(super) fn contains(directory: &str, path: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path or name for a message: on one line, and bounded.
pub(crate) fn printable_path(path: &str) -> String {
    printable(truncate(path, MAX_SHOWN)).into_owned()
}
