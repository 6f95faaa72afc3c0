//! The way to a program: whether the identity that runs commands could change where it leads.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, Stat};

use super::access::Runner;
use crate::beneath::Passed;

/// What was passed so far.
///
/// Whoever can write a directory can put something else into it. In a sticky one, as `/tmp` is, only its owner and the owner
/// of an entry can replace what is there; so a directory in it that is somebody else's leads on to what it always did. Only
/// a directory: a file or a link of somebody else could have been put there as a hard link, under a name of the runner's
/// choice.
pub(super) struct Way<'r> {
    runner: &'r Runner,
    /// Whose programs these are: besides root, the only one who is believed to have made a directory where everybody can.
    operator: u32,
    /// Sticky directories in which the runner may make entries, and not replace those of others.
    shared: Vec<PathBuf>,
    /// The first thing that the runner could write.
    writable: Option<PathBuf>,
}

impl<'r> Way<'r> {
    pub(super) fn new(runner: &'r Runner) -> Self {
        Self { runner, operator: rustix::process::geteuid().as_raw(), shared: Vec::new(), writable: None }
    }

    /// A directory or a link on the way.
    pub(super) fn pass(&mut self, passed: &Passed<'_>) {
        if self.writable.is_some() {
            return;
        }
        let could_write = self.runner.could_write(passed.fd, passed.stat);
        if !could_write && self.shared.is_empty() {
            return;
        }
        let path = (passed.path)();
        if let Some(shared) = self.shared_parent(&path)
            && !self.is_kept(passed.stat)
        {
            self.writable = Some(shared);
        } else if could_write && self.is_sticky_of_another(passed.stat) {
            self.shared.push(path);
        } else if could_write {
            self.writable = Some(path);
        }
    }

    /// The program itself. Gives what the runner could write, there or on the way.
    pub(super) fn arrive(mut self, file: BorrowedFd<'_>, stat: &Stat, path: &Path) -> Option<PathBuf> {
        if self.writable.is_none() {
            self.writable = self.shared_parent(path);
        }
        if self.writable.is_none() && self.runner.could_write(file, stat) {
            self.writable = Some(path.to_owned());
        }
        self.writable
    }

    fn shared_parent(&self, path: &Path) -> Option<PathBuf> {
        let parent = path.parent()?;
        self.shared.iter().find(|it| *it == parent).cloned()
    }

    fn is_sticky_of_another(&self, stat: &Stat) -> bool {
        is_directory(stat) && Mode::from_raw_mode(stat.st_mode).contains(Mode::SVTX) && stat.st_uid != self.runner.uid
    }

    /// Whether an entry of a sticky directory stays what it is, and was not planted.
    fn is_kept(&self, stat: &Stat) -> bool {
        is_directory(stat) && [0, self.operator].contains(&stat.st_uid)
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}
