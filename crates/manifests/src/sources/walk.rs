//! Finds the manifests below a directory.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use super::super::agent_skill::FILE_NAME;
use super::super::limits::{MAX_DIRECTORY_DEPTH, MAX_DIRECTORY_ENTRIES};
use super::super::problem::Problem;
use super::super::tree::Mark;
use super::read_problem;

const EXTENSIONS: &[&str] = &["yaml", "yml", "json"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file of manifests.
    Manifest,
    /// The directory of a skill.
    Skill,
}

/// A path with its kind, or the problem with it.
type WalkEntry = (PathBuf, Result<EntryKind, Problem>);

/// Walks directories, with one bound on the entries of all of them.
pub struct Walker {
    entries_left: usize,
}

impl Default for Walker {
    fn default() -> Self {
        Self { entries_left: MAX_DIRECTORY_ENTRIES }
    }
}

impl Walker {
    pub fn find_files(&mut self, directory: &Path) -> Vec<WalkEntry> {
        let mut found = Vec::new();
        match fs::canonicalize(directory) {
            Ok(root) => self.walk(directory, &root, 0, &mut found),
            Err(error) => found.push((directory.to_owned(), Err(read_problem(&error)))),
        }
        found
    }

    /// Recurses [`MAX_DIRECTORY_DEPTH`] times at most; links to directories are not followed, so there are no loops.
    fn walk(&mut self, directory: &Path, root: &Path, depth: usize, found: &mut Vec<WalkEntry>) {
        let entries = match self.list_entries(directory) {
            Ok(entries) => entries,
            Err(problem) => return found.push((directory.to_owned(), Err(problem))),
        };
        // Everything else in the directory belongs to the skill.
        if entries.iter().any(|entry| entry.file_name() == FILE_NAME) {
            return found.push((directory.to_owned(), Ok(EntryKind::Skill)));
        }
        for entry in entries {
            let path = entry.path();
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(error) => {
                    found.push((path, Err(read_problem(&error))));
                    continue;
                }
            };
            if kind.is_dir() {
                if depth + 1 < MAX_DIRECTORY_DEPTH {
                    self.walk(&path, root, depth + 1, found);
                } else {
                    let message = format!("the directory is deeper than {MAX_DIRECTORY_DEPTH} levels and is not read");
                    let problem = Problem::error("too-deep", Mark::START, message);
                    found.push((path, Err(problem.with_hint("name the directory itself"))));
                }
            } else if is_manifest(&path) {
                let problem =
                    if kind.is_symlink() { link_problem(&path, root) } else { (!kind.is_file()).then(not_a_file) };
                found.push((path, problem.map_or(Ok(EntryKind::Manifest), Err)));
            }
        }
    }

    /// The entries of a directory, by name, without hidden ones: editors and mounted ConfigMaps keep second copies
    /// there.
    fn list_entries(&mut self, directory: &Path) -> Result<Vec<DirEntry>, Problem> {
        let mut entries = Vec::new();
        let read = |error: &io::Error| read_problem(error);
        for entry in fs::read_dir(directory).map_err(|error| read(&error))? {
            let Some(left) = self.entries_left.checked_sub(1) else {
                let message =
                    format!("the directories have more than {MAX_DIRECTORY_ENTRIES} entries; this one is not read");
                return Err(
                    Problem::error("too-large", Mark::START, message).with_hint("name the directory of the manifests")
                );
            };
            self.entries_left = left;
            let entry = entry.map_err(|error| read(&error))?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                entries.push(entry);
            }
        }
        entries.sort_by_key(DirEntry::file_name);
        Ok(entries)
    }
}

fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// A link must stay inside the directory that was named: what is checked should be what the directory contains.
fn link_problem(link: &Path, root: &Path) -> Option<Problem> {
    match fs::canonicalize(link) {
        Err(error) => Some(read_problem(&error)),
        Ok(target) if !target.starts_with(root) => Some(
            Problem::error("file", Mark::START, "a symbolic link to a file outside of the directory; it is not read")
                .with_hint("name the file itself to check it"),
        ),
        Ok(target) if target.is_file() => None,
        Ok(_) => Some(not_a_file()),
    }
}

pub fn not_a_file() -> Problem {
    Problem::error("file", Mark::START, "not a regular file; it is not read")
        .with_hint("pipe it in: sympozium validate - < FILE")
}
