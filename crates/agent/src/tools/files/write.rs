//! `write_file`, and atomic replacement through a temporary file.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Map, Value};
use sympozium_api::builtin_tool::WRITE_FILE;

use super::roots::{ResolvedPath, Roots};
use super::{MAX_FILE, broken_tokens, io_errors, parse_arguments};
use crate::tools::ToolError;

const MAX_NEW_DIRECTORIES: usize = 64;
/// Attempts to find a free temporary name.
const MAX_ATTEMPTS: usize = 8;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

/// `write_file`: replaces the file atomically; on an error it is unchanged. Creates missing parent directories.
pub fn write_file(roots: &Roots, arguments: &Map<String, Value>, _max_bytes: usize) -> Result<String, ToolError> {
    let requested: Arguments<'_> = parse_arguments(arguments)?;
    let named = roots.parse_path(&requested.path)?;
    let path = writable(roots, &requested.path)?;
    if named.ends_in_slash {
        return Err(ToolError(format!(
            "{}/ names a directory; {WRITE_FILE} needs the name of a file, and makes the directories on the way",
            path.shown
        )));
    }
    if requested.content.len() > MAX_FILE {
        return Err(ToolError(format!(
            "the content has {} bytes; {WRITE_FILE} writes at most {MAX_FILE}",
            requested.content.len()
        )));
    }
    let Some((names, name)) = path.split() else {
        return Err(ToolError(format!("{} cannot be replaced: it is one of your roots", path.shown)));
    };
    let failed = |error: io::Error| io_errors::write_error(&path, &error);
    let directory = make_directories(&path, &names)?;
    let target = Target::look_up(&path, directory, name)?;
    let replaces = target.existing.is_some();
    let temp_file = target.write(requested.content.as_bytes()).map_err(failed)?;
    temp_file.commit().map_err(failed)?;
    let what = if replaces { "replaced" } else { "created" };
    Ok(format!(
        "wrote {} bytes to {} ({what}){}",
        requested.content.len(),
        path.shown,
        broken_tokens::note("the content", &requested.content)
    ))
}

pub fn writable<'r>(roots: &'r Roots, path: &str) -> Result<ResolvedPath<'r>, ToolError> {
    let path = roots.resolve_str(path)?;
    if path.is_writable() { Ok(path) } else { Err(roots.not_writable_error(&path)) }
}

/// Opens the directory, creating missing components.
///
/// Existing components are resolved by the kernel as for reading. New ones are created by name in an open directory and
/// entered without following links: a link that appears meanwhile causes an error, not a directory elsewhere.
fn make_directories(path: &ResolvedPath<'_>, names: &[&str]) -> Result<OwnedFd, ToolError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let failed = |error: io::Error| io_errors::write_error(path, &error);
    let mut present = names.len();
    let mut directory = loop {
        match path.open_names(&names[..present], flags) {
            Ok(directory) => break directory,
            Err(error) if present > 0 && Errno::from_io_error(&error) == Some(Errno::NOENT) => {
                present -= 1;
            }
            Err(error) => return Err(failed(error)),
        }
        if names.len() - present > MAX_NEW_DIRECTORIES {
            return Err(ToolError(format!(
                "cannot write {}: more than {MAX_NEW_DIRECTORIES} directories on the way do not exist",
                path.shown
            )));
        }
    };
    for name in &names[present..] {
        match rustix::fs::mkdirat(&directory, *name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error.into())),
        }
        directory = path.open_beneath(&directory, name, flags).map_err(failed)?;
    }
    Ok(directory)
}

/// A name in an open directory, and the regular file that has it.
pub struct Target<'n> {
    directory: OwnedFd,
    name: &'n str,
    pub existing: Option<Stat>,
}

impl<'n> Target<'n> {
    /// Only a regular file may be replaced.
    pub fn look_up(path: &ResolvedPath<'_>, directory: OwnedFd, name: &'n str) -> Result<Self, ToolError> {
        let existing = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(io_errors::write_error(path, &error.into())),
        };
        if let Some(stat) = &existing {
            check_replaceable(path, FileType::from_raw_mode(stat.st_mode))?;
        }
        Ok(Self { directory, name, existing })
    }

    /// Writes `content` to a temporary file in the same directory, with the mode of the file to replace.
    pub fn write(self, content: &[u8]) -> io::Result<TempFile<'n>> {
        let (file, name) = self.create()?;
        let temp_file = TempFile { target: self, name };
        let mut file = File::from(file);
        file.write_all(content)?;
        if let Some(stat) = &temp_file.target.existing {
            // Without setuid and setgid: the new file belongs to us, not to the owner of the old one.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        }
        Ok(temp_file)
    }

    fn create(&self) -> io::Result<(OwnedFd, String)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..MAX_ATTEMPTS {
            let name = random_name()?;
            match rustix::fs::openat(&self.directory, &name, flags, Mode::from_raw_mode(0o644)) {
                Err(Errno::EXIST) => {}
                answer => return Ok((answer?, name)),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Refuses links.
    pub fn open(&self, path: &ResolvedPath<'_>) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        Ok(File::from(path.open_beneath(&self.directory, self.name, flags)?))
    }
}

/// Compares identity, size and modification time.
pub fn is_unchanged(before: &Stat, now: &Stat) -> bool {
    let content = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    identity(before) == identity(now) && content(before) == content(now)
}

fn identity(stat: &Stat) -> (u64, u64, FileType) {
    let kind = FileType::from_raw_mode(stat.st_mode);
    (stat.st_dev, stat.st_ino, kind)
}

fn check_replaceable(resolved: &ResolvedPath<'_>, kind: FileType) -> Result<(), ToolError> {
    let path = &resolved.shown;
    match kind {
        FileType::Symlink => Err(ToolError(format!(
            "{path} is a link, and files are not written through links; write to the file that it leads to"
        ))),
        FileType::Directory => Err(ToolError(format!("{path} is a directory; name a file in it"))),
        kind => super::read::check_regular(resolved, kind),
    }
}

fn random_name() -> io::Result<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".writing-{:016x}", u64::from_ne_bytes(random)))
}

/// A temporary file in the directory of its target. Removed on drop unless committed.
pub struct TempFile<'n> {
    target: Target<'n>,
    name: String,
}

impl TempFile<'_> {
    /// Whether the target is still the file that was looked at, with the same content.
    pub fn target_is_unchanged(&self) -> bool {
        let Target { directory, name, existing } = &self.target;
        let now = rustix::fs::statat(directory, *name, AtFlags::SYMLINK_NOFOLLOW);
        matches!((existing, now), (Some(before), Ok(now)) if is_unchanged(before, &now))
    }

    /// Renames it to the target. Fails if a file appeared under a free name, or if the existing one was replaced, for
    /// example by a link.
    pub fn commit(mut self) -> io::Result<()> {
        let Target { directory, name, existing } = &self.target;
        if existing.is_none() {
            match rustix::fs::renameat_with(directory, &self.name, directory, *name, RenameFlags::NOREPLACE) {
                // Not every file system supports it; then the check before must do.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                Err(Errno::EXIST) => return Err(changed_error()),
                answer => {
                    answer?;
                    self.name.clear();
                    return Ok(());
                }
            }
        }
        let now = rustix::fs::statat(directory, *name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_same = match (existing, &now) {
            (Some(before), Some(now)) => identity(before) == identity(now),
            (None, None) => true,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_same {
            return Err(changed_error());
        }
        rustix::fs::renameat(directory, &self.name, directory, *name)?;
        self.name.clear();
        Ok(())
    }
}

pub fn changed_error() -> io::Error {
    io::Error::other("another process changed it, so it was not replaced; look at it again")
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // An error cannot be reported from drop; the name identifies the file as temporary.
            let _ = rustix::fs::unlinkat(&self.target.directory, &self.name, AtFlags::empty());
        }
    }
}
