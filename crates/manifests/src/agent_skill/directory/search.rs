//! Finds the skills below a directory such as `.agents/skills`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use sympozium_api::text::quote;

use super::super::super::limits::MAX_DIRECTORY_ENTRIES;
use super::super::super::problem::Problem;
use super::super::super::tree::Mark;
use super::super::FILE_NAME;
use super::super::limits::{MAX_DEPTH, MAX_DIRECTORIES, MAX_SKILLS};
use super::{list_names, open_below, path_problem};

/// A directory with an entry called `SKILL.md`.
#[derive(Debug)]
pub struct FoundSkill {
    /// Below the directory that was searched; empty for that directory itself.
    pub path: PathBuf,
    pub directory: OwnedFd,
}

/// The skills of `root`, in the order of names: itself if it is one, else those below it.
///
/// Hidden directories and links are skipped, and skills are not searched for further skills.
///
/// # Errors
/// When a bound is exceeded, or a directory cannot be read.
pub fn search(root: OwnedFd) -> Result<Vec<FoundSkill>, Problem> {
    let mut search = Search { directories: 0, entries: 0, found: Vec::new() };
    search.enter(root, PathBuf::new(), 0)?;
    Ok(search.found)
}

struct Search {
    directories: usize,
    entries: usize,
    found: Vec<FoundSkill>,
}

impl Search {
    /// Recurses [`MAX_DEPTH`] times at most.
    fn enter(&mut self, directory: OwnedFd, path: PathBuf, depth: usize) -> Result<(), Problem> {
        self.directories += 1;
        if self.directories > MAX_DIRECTORIES {
            return Err(limit_problem(&format!("more than {MAX_DIRECTORIES} directories")));
        }
        let left = MAX_DIRECTORY_ENTRIES - self.entries;
        let shown = quote(&path.to_string_lossy());
        let names = list_names(&directory, left).map_err(|error| path_problem(&shown, &error))?;
        let Some(names) = names else {
            return Err(limit_problem(&format!("more than {MAX_DIRECTORY_ENTRIES} directory entries")));
        };
        self.entries += names.len();
        if names.iter().any(|name| name == FILE_NAME) {
            if self.found.len() == MAX_SKILLS {
                return Err(limit_problem(&format!("more than {MAX_SKILLS} skills, the maximum of a pack")));
            }
            self.found.push(FoundSkill { path, directory });
            return Ok(());
        }
        for name in names {
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            if is_hidden || depth == MAX_DEPTH {
                continue;
            }
            let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW);
            let is_directory = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if stat.is_ok_and(is_directory) {
                let below = path.join(&name);
                let opened = open_below(&directory, Path::new(&name));
                let inner = opened.map_err(|error| path_problem(&quote(&below.to_string_lossy()), &error))?;
                self.enter(inner, below, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn limit_problem(what: &str) -> Problem {
    Problem::error("too-large", Mark::START, format!("the directory has {what}; it is not read"))
        .with_hint("name the directory of the skills, or one skill")
}
