//! Decides whether the identity that runs commands could change what the path of a program leads to.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, Stat};

use super::access::Runner;
use crate::beneath::VisitedEntry;

/// The components of a path that were visited so far.
///
/// An identity that can write a directory can put another entry into it. In a sticky one, such as `/tmp`, only its
/// owner and the owner of an entry can replace that entry; so a directory in it that belongs to another user always
/// leads to the same place. Only a directory: a file or a link of another user could have been put there as a hard
/// link, under a name of the runner's choice.
pub(super) struct PathTrust<'r> {
    runner: &'r Runner,
    /// The owner of the programs: besides root, the only one who is trusted to have created a directory where everyone
    /// can.
    operator: u32,
    /// Sticky directories in which the runner may create entries, but not replace those of others.
    sticky: Vec<PathBuf>,
    /// The first component that the runner could write.
    writable: Option<PathBuf>,
}

impl<'r> PathTrust<'r> {
    pub(super) fn new(runner: &'r Runner) -> Self {
        Self { runner, operator: rustix::process::geteuid().as_raw(), sticky: Vec::new(), writable: None }
    }

    /// Adds a directory or a link of the path.
    pub(super) fn visit(&mut self, passed: &VisitedEntry<'_>) {
        if self.writable.is_some() {
            return;
        }
        let could_write = self.runner.could_write(passed.fd, passed.stat);
        if !could_write && self.sticky.is_empty() {
            return;
        }
        let path = (passed.path)();
        if let Some(shared) = self.sticky_parent(&path)
            && !self.is_trusted_entry(passed.stat)
        {
            self.writable = Some(shared);
        } else if could_write && self.is_sticky_of_another(passed.stat) {
            self.sticky.push(path);
        } else if could_write {
            self.writable = Some(path);
        }
    }

    /// Adds the program itself. Returns the component that the runner could write, if there is one.
    pub(super) fn finish(mut self, file: BorrowedFd<'_>, stat: &Stat, path: &Path) -> Option<PathBuf> {
        if self.writable.is_none() {
            self.writable = self.sticky_parent(path);
        }
        if self.writable.is_none() && self.runner.could_write(file, stat) {
            self.writable = Some(path.to_owned());
        }
        self.writable
    }

    fn sticky_parent(&self, path: &Path) -> Option<PathBuf> {
        let parent = path.parent()?;
        self.sticky.iter().find(|directory| *directory == parent).cloned()
    }

    fn is_sticky_of_another(&self, stat: &Stat) -> bool {
        is_directory(stat) && Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX) && stat.st_uid != self.runner.uid
    }

    /// Whether an entry of a sticky directory cannot be replaced, and was not planted.
    fn is_trusted_entry(&self, stat: &Stat) -> bool {
        is_directory(stat) && [0, self.operator].contains(&stat.st_uid)
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}
