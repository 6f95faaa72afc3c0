//! `write_file`, and how a file is replaced: by another one that is written beside it and then takes its name.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::roots::{Place, Roots};
use super::{MOST_WRITTEN, arguments, broken, failure};
use sympozium_api::builtin_tool::WRITE_FILE;

use crate::tools::ToolError;

/// Most directories that are made on the way to a file.
const MOST_NEW_DIRECTORIES: usize = 64;
/// Names that are tried for the file beside.
const TRIES: usize = 8;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

/// `write_file`: the file holds `content` afterwards, or is as it was. Directories on the way are made.
///
/// # Errors
/// Outside of what may be written, for links and for what is no regular file, and when the file system refuses.
pub fn write_file(roots: &Roots, given: &Map<String, Value>, _most: usize) -> Result<String, ToolError> {
    let wanted: Arguments<'_> = arguments(given)?;
    let named = roots.named(&wanted.path)?;
    let place = writable(roots, &wanted.path)?;
    if named.ends_in_slash {
        return Err(ToolError(format!(
            "{}/ names a directory; {WRITE_FILE} needs the name of a file, and makes the directories on the way",
            place.shown
        )));
    }
    if wanted.content.len() > MOST_WRITTEN {
        return Err(ToolError(format!(
            "the content has {} bytes; {WRITE_FILE} writes at most {MOST_WRITTEN}",
            wanted.content.len()
        )));
    }
    let Some((names, name)) = place.split() else {
        return Err(ToolError(format!("{} cannot be replaced: it is one of your roots", place.shown)));
    };
    let failed = |error: io::Error| failure::writing(&place, &error);
    let directory = make_directories(&place, &names)?;
    let target = Target::look(&place, directory, name)?;
    let replaces = target.existing.is_some();
    let beside = target.write(wanted.content.as_bytes()).map_err(failed)?;
    beside.take_name().map_err(failed)?;
    let what = if replaces { "replaced" } else { "created" };
    Ok(format!(
        "wrote {} bytes to {} ({what}){}",
        wanted.content.len(),
        place.shown,
        broken::note("the content", &wanted.content)
    ))
}

/// The place that a model means, if it may be written to.
pub fn writable<'r>(roots: &'r Roots, path: &str) -> Result<Place<'r>, ToolError> {
    let place = roots.find(path)?;
    if place.is_writable() { Ok(place) } else { Err(roots.unwritable(&place)) }
}

/// Opens the directory at these names, and makes what is missing of it.
///
/// What is there is resolved by the kernel as for reading. What is made, is made by name in a directory that is held open, and
/// entered without following a link: whoever puts one there meanwhile gets an error, not a directory elsewhere.
fn make_directories(place: &Place<'_>, names: &[&str]) -> Result<OwnedFd, ToolError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let failed = |error: io::Error| failure::writing(place, &error);
    let mut there = names.len();
    let mut directory = loop {
        match place.open_names(&names[..there], flags) {
            Ok(directory) => break directory,
            Err(error) if there > 0 && Errno::from_io_error(&error) == Some(Errno::NOENT) => {
                there -= 1;
            }
            Err(error) => return Err(failed(error)),
        }
        if names.len() - there > MOST_NEW_DIRECTORIES {
            return Err(ToolError(format!(
                "cannot write {}: more than {MOST_NEW_DIRECTORIES} directories on the way do not exist",
                place.shown
            )));
        }
    };
    for name in &names[there..] {
        match rustix::fs::mkdirat(&directory, *name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error.into())),
        }
        directory = place.open_in(&directory, name, flags).map_err(failed)?;
    }
    Ok(directory)
}

/// A name in a directory that is open, and the regular file that has it.
pub struct Target<'n> {
    directory: OwnedFd,
    name: &'n str,
    pub existing: Option<Stat>,
}

impl<'n> Target<'n> {
    /// Looks at what has the name. Only a regular file may be replaced.
    pub fn look(place: &Place<'_>, directory: OwnedFd, name: &'n str) -> Result<Self, ToolError> {
        let existing = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(failure::writing(place, &error.into())),
        };
        if let Some(stat) = &existing {
            replaceable(place, FileType::from_raw_mode(stat.st_mode))?;
        }
        Ok(Self { directory, name, existing })
    }

    /// Writes `content` to a new file beside, with the mode of the one that it is to replace.
    pub fn write(self, content: &[u8]) -> io::Result<Beside<'n>> {
        let (file, name) = self.create()?;
        let beside = Beside { target: self, name };
        let mut file = File::from(file);
        file.write_all(content)?;
        if let Some(stat) = &beside.target.existing {
            // Not the bits that lend somebody's rights: the new file is ours, whoever had the old one.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        }
        Ok(beside)
    }

    fn create(&self) -> io::Result<(OwnedFd, String)> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let name = unlikely_name()?;
            match rustix::fs::openat(&self.directory, &name, flags, Mode::from_raw_mode(0o644)) {
                Err(Errno::EXIST) => {}
                answer => return Ok((answer?, name)),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Opens the file that has the name, and no link.
    pub fn open(&self, place: &Place<'_>) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        Ok(File::from(place.open_in(&self.directory, self.name, flags)?))
    }
}

/// Whether both tell of the same file with the same content, as far as can be told without reading it.
pub fn is_unchanged(before: &Stat, now: &Stat) -> bool {
    let content = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    identity(before) == identity(now) && content(before) == content(now)
}

/// Which file it is, and that it is one.
fn identity(stat: &Stat) -> (u64, u64, FileType) {
    let kind = FileType::from_raw_mode(stat.st_mode);
    (stat.st_dev, stat.st_ino, kind)
}

fn replaceable(place: &Place<'_>, kind: FileType) -> Result<(), ToolError> {
    let path = &place.shown;
    match kind {
        FileType::Symlink => Err(ToolError(format!(
            "{path} is a link, and files are not written through links; write to the file that it leads to"
        ))),
        FileType::Directory => Err(ToolError(format!("{path} is a directory; name a file in it"))),
        kind => super::read::regular(place, kind),
    }
}

fn unlikely_name() -> io::Result<String> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".writing-{:016x}", u64::from_ne_bytes(random)))
}

/// A file that was written beside the one that it is to replace. It is removed again unless it takes the name.
pub struct Beside<'n> {
    target: Target<'n>,
    name: String,
}

impl Beside<'_> {
    /// Whether the name still has the file that was looked at, with what it held then.
    pub fn replaces_the_same(&self) -> bool {
        let Target { directory, name, existing } = &self.target;
        let now = rustix::fs::statat(directory, *name, AtFlags::SYMLINK_NOFOLLOW);
        matches!((existing, now), (Some(before), Ok(now)) if is_unchanged(before, &now))
    }

    /// Gives it the name. What appeared under a name that was free stays, and so does what is no longer the file that was
    /// looked at: a link, for one.
    pub fn take_name(mut self) -> io::Result<()> {
        let Target { directory, name, existing } = &self.target;
        if existing.is_none() {
            match rustix::fs::renameat_with(directory, &self.name, directory, *name, RenameFlags::NOREPLACE) {
                // Not every file system knows it; then the look just before has to do.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                Err(Errno::EXIST) => return Err(changed()),
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
            return Err(changed());
        }
        rustix::fs::renameat(directory, &self.name, directory, *name)?;
        self.name.clear();
        Ok(())
    }
}

pub fn changed() -> io::Error {
    io::Error::other("it was changed by something else meanwhile, and stays as it is; look at it again")
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // There is nobody to tell, and the name says what it is.
            let _ = rustix::fs::unlinkat(&self.target.directory, &self.name, AtFlags::empty());
        }
    }
}
