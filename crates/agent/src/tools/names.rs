//! The names of tools that the agent's own texts and code name. The plan says which of them a run has.

/// Reads a page of a file.
pub const READ_FILE: &str = "read_file";
/// Writes a whole file.
pub const WRITE_FILE: &str = "write_file";
/// Replaces pieces of a file.
pub const EDIT_FILE: &str = "edit_file";
/// Lists a directory.
pub const LIST_DIRECTORY: &str = "list_directory";
/// Gives the text of a skill.
pub const LOAD_SKILL: &str = "load_skill";
/// Runs a command in a sidecar. The bridge acts on it.
pub const EXECUTE_COMMAND: &str = "execute_command";
/// Fetches a page. The bridge acts on it.
pub const FETCH_URL: &str = "fetch_url";
