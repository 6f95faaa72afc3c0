//! Finds the program to execute, and decides whether it may be executed.
//!
//! An ELF file is executed by the descriptor that is found here, so what was checked is what runs. A script can only be
//! executed by its path (its interpreter opens it again, by name), so the identity that runs commands must not be able
//! to put another file there: neither the script, nor a link or directory in its path, may be writable by it (except
//! for a sticky directory of another user, whose entries it cannot replace). For skills ([`find_skill`]) the rule
//! applies to ELF files too.

mod access;
mod error;
mod path_trust;
mod skill_name;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use crate::beneath::{self, Links, Resolve};
pub use access::Runner;
pub use error::LookupError;
use path_trust::PathTrust;
pub use skill_name::{SkillName, SkillNameError};

/// A program that may be executed.
#[derive(Debug)]
pub struct Program {
    /// The file, open for reading, closed on exec.
    pub file: OwnedFd,
    /// How it is executed.
    pub kind: ProgramKind,
    /// Where it was found, before links were followed: the program's name in messages.
    pub path: PathBuf,
}

/// How a program is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramKind {
    /// By descriptor: `execveat(file, "", …, AT_EMPTY_PATH)`.
    Elf,
    /// By path, because the interpreter of a `#!` script opens it again.
    Script {
        /// Absolute within the root of the lookup, without links.
        path: PathBuf,
    },
}

/// Finds `name` in the first of the `search` directories that has a program of that name.
///
/// Like `execvp(3)`, it continues past entries that are not regular files or not executable by `runner`; an unknown
/// format or an untrusted script ends the search. Relative search directories are skipped: they would depend on the
/// working directory of the command.
///
/// # Caller's duties
/// `root` is the root directory of the view in which the command will run, and `runner` the identity that will run it
/// as the calling process sees it. A read-only mount counts as not writable: its content must not be reachable by a
/// writable path in the same view.
///
/// # Errors
/// [`LookupError`]; when nothing was found, the first refusal says more than "not found" and is returned instead.
pub fn find(root: BorrowedFd<'_>, search: &[PathBuf], name: &OsStr, runner: &Runner) -> Result<Program, LookupError> {
    let bytes = name.as_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(LookupError::Name { name: name.to_owned() });
    }
    let mut refusal = None;
    for directory in search.iter().filter(|directory| directory.is_absolute()) {
        match find_at_path(root, &directory.join(name), runner) {
            Err(LookupError::NotFound { .. }) => {}
            Err(error) if error.continues_search() => refusal = refusal.or(Some(error)),
            answer => return answer,
        }
    }
    Err(refusal.unwrap_or_else(|| LookupError::NotFound { path: name.into() }))
}

/// Finds the program at an absolute path within `root`; rules and duties as for [`find`].
///
/// # Errors
/// [`LookupError`].
pub fn find_at_path(root: BorrowedFd<'_>, path: &Path, runner: &Runner) -> Result<Program, LookupError> {
    let candidate = Candidate { dir: root, path, runner };
    candidate.require_absolute()?;
    let entry = candidate.open(path, OFlags::PATH, Resolve::IN_ROOT)?;
    let (file, format) = candidate.inspect(entry.as_fd(), path, Resolve::IN_ROOT)?;
    match format {
        Format::Elf => Ok(Program { file, kind: ProgramKind::Elf, path: path.to_owned() }),
        Format::Script => candidate.find_trusted(ModeBits::Any),
    }
}

/// Finds the program at a path relative to `directory`, the command's own working directory, and not outside it.
///
/// Only ELF files: the directory's path may have changed since it was opened, and a script needs one.
///
/// # Errors
/// [`LookupError`]; a path that leaves the directory is [`LookupError::Open`] with `EXDEV`.
pub fn find_in_directory(directory: BorrowedFd<'_>, path: &Path, runner: &Runner) -> Result<Program, LookupError> {
    let candidate = Candidate { dir: directory, path, runner };
    let entry = candidate.open(path, OFlags::PATH, Resolve::BENEATH)?;
    match candidate.inspect(entry.as_fd(), path, Resolve::BENEATH)? {
        (file, Format::Elf) => Ok(Program { file, kind: ProgramKind::Elf, path: path.to_owned() }),
        (_, Format::Script) => Err(LookupError::ScriptWithoutPath { path: path.to_owned() }),
    }
}

/// Finds the skill `name` in `skills`, a directory given by its absolute path within `root`.
///
/// Stricter than [`find`], because the caller of a skill is not the identity that runs commands: no setuid or setgid
/// bit, not world-writable, and for ELF files as for scripts no component of the path (from `root` down, links and
/// their targets included) that `runner` could write. Links may lead out of `skills`.
///
/// # Errors
/// [`LookupError`].
pub fn find_skill(
    root: BorrowedFd<'_>,
    skills: &Path,
    name: &SkillName,
    runner: &Runner,
) -> Result<Program, LookupError> {
    let path = skills.join(name.as_str());
    let candidate = Candidate { dir: root, path: &path, runner };
    candidate.require_absolute()?;
    candidate.find_trusted(ModeBits::Harmless)
}

enum Format {
    Elf,
    Script,
}

enum ModeBits {
    Any,
    /// No setuid, no setgid, not world-writable.
    Harmless,
}

/// A path that may be a program.
struct Candidate<'a> {
    dir: BorrowedFd<'a>,
    path: &'a Path,
    runner: &'a Runner,
}

impl Candidate<'_> {
    fn require_absolute(&self) -> Result<(), LookupError> {
        if self.path.is_absolute() { Ok(()) } else { Err(LookupError::NotAbsolute { path: self.path.to_owned() }) }
    }

    /// The program, if the runner can write neither the file itself nor a component of its path.
    fn find_trusted(&self, allowed: ModeBits) -> Result<Program, LookupError> {
        let mut way = PathTrust::new(self.runner);
        // Always our own walk: openat2 does not report the components.
        let arrived =
            beneath::walk(self.dir, self.path, OFlags::PATH, Resolve::IN_ROOT, &mut |passed| way.visit(passed))
                .map_err(|source| self.open_error(source))?;
        let straight = Resolve { links: Links::Refuse, ..Resolve::IN_ROOT };
        let (file, format) = self.inspect(arrived.file.as_fd(), &arrived.path, straight)?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.open_error(errno.into()))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        let path = || self.path.to_owned();
        match allowed {
            ModeBits::Harmless if mode.intersects(Mode::SUID | Mode::SGID) => {
                return Err(LookupError::SetId { path: path() });
            }
            ModeBits::Harmless if mode.contains(Mode::WOTH) => {
                return Err(LookupError::WorldWritable { path: path() });
            }
            ModeBits::Harmless | ModeBits::Any => {}
        }
        if let Some(what) = way.finish(file.as_fd(), &stat, &arrived.path) {
            return Err(LookupError::Writable { path: self.path.to_owned(), what, uid: self.runner.uid });
        }
        let kind = match format {
            Format::Elf => ProgramKind::Elf,
            Format::Script => ProgramKind::Script { path: arrived.path },
        };
        Ok(Program { file, kind, path: self.path.to_owned() })
    }

    /// Checks `entry` without opening it, and opens only a regular file: opening a device can have effects and opening
    /// a FIFO can block. `entry` is what `path` resolved to.
    fn inspect(&self, entry: BorrowedFd<'_>, path: &Path, resolve: Resolve) -> Result<(OwnedFd, Format), LookupError> {
        let failed = |errno: Errno| self.open_error(errno.into());
        let stat = rustix::fs::fstat(entry).map_err(failed)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(LookupError::NotAFile { path: self.path.to_owned(), kind: kind_name(kind) });
        }
        if !self.runner.may_execute(&stat) {
            return Err(LookupError::NotExecutable { path: self.path.to_owned(), uid: self.runner.uid });
        }
        if rustix::fs::fstatvfs(entry).map_err(failed)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(LookupError::NoExecMount { path: self.path.to_owned() });
        }
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, resolve)?;
        let opened = rustix::fs::fstat(&file).map_err(failed)?;
        if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(LookupError::Replaced { path: self.path.to_owned() });
        }
        let mut magic = [0; 4];
        let length = rustix::io::pread(&file, &mut magic, 0).map_err(failed)?;
        match &magic[..length] {
            b"\x7fELF" => Ok((file, Format::Elf)),
            [b'#', b'!', ..] => Ok((file, Format::Script)),
            _ => Err(LookupError::Format { path: self.path.to_owned() }),
        }
    }

    fn open(&self, path: &Path, flags: OFlags, resolve: Resolve) -> Result<OwnedFd, LookupError> {
        beneath::open(self.dir, path, flags, Mode::empty(), resolve).map_err(|source| self.open_error(source))
    }

    fn open_error(&self, source: io::Error) -> LookupError {
        let path = self.path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT | Errno::NOTDIR) => LookupError::NotFound { path },
            _ => LookupError::Open { path, source },
        }
    }
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "directory",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::RegularFile | FileType::Symlink | FileType::Unknown => "special file",
    }
}

#[cfg(test)]
mod tests;
