//! `list_directory`: kind, size and name of each entry.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use serde::Deserialize;
use serde_json::{Map, Value};
use sympozium_api::text::printable;

use super::path::Named;
use super::roots::{Place, Roots};
use super::{arguments, failure};
use sympozium_api::builtin_tool::READ_FILE;

use crate::tools::ToolError;

/// Most entries that are shown: the first ones, when all are sorted.
const MOST_ENTRIES: usize = 2_000;
/// Most entries that are looked at; beyond, there are just more.
const MOST_COUNTED: usize = 200_000;
/// Most bytes of where a link leads.
const MOST_TARGET: usize = 256;
/// Bytes of the answer that are kept for how many entries are not shown.
const NOTE: usize = 64;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
}

/// `list_directory`: directories first, then by name. The root of all has the roots; so has what is above some of them.
///
/// # Errors
/// For what is no directory, is not there, or lies outside of the roots.
pub fn list_directory(roots: &Roots, given: &Map<String, Value>, most: usize) -> Result<String, ToolError> {
    let wanted: Arguments<'_> = arguments(given)?;
    let named = roots.named(&wanted.path)?;
    let Some(place) = roots.place(&named) else {
        return Lines::of_roots(roots, &named, most).ok_or_else(|| roots.outside(&named));
    };
    let mut lines = Lines::new(most);
    if named.is_root_of_all() {
        lines.roots(roots, &named);
    }
    let listing = entries(&place)?;
    for entry in &listing.entries {
        let inside =
            Named { path: format!("{}/{}", named.path, String::from_utf8_lossy(&entry.name)), ends_in_slash: false };
        // What is closed is not shown either, and what is a root was.
        let is_open = roots.place(&inside).is_some();
        if !named.is_root_of_all() || is_open && roots.below(&inside).is_empty() {
            lines.push(&entry.line(&listing.directory));
        }
    }
    lines.left_out += listing.more;
    lines.uncounted = listing.uncounted;
    Ok(lines.into_text())
}

/// What is in a directory.
pub(crate) struct Listing {
    directory: OwnedFd,
    pub entries: Vec<Entry>,
    /// Entries that were counted and not kept.
    pub more: usize,
    /// Whether there were some that were not even counted.
    uncounted: bool,
}

/// An entry of a directory.
pub(crate) struct Entry {
    pub name: Vec<u8>,
    kind: FileType,
}

/// The first entries of the directory at `place`.
pub(crate) fn entries(place: &Place<'_>) -> Result<Listing, ToolError> {
    let failed = |error: &io::Error| match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::NOTDIR) => not_a_directory(place),
        _ => failure::reading(place, error),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let directory = place.open(flags).map_err(|error| failed(&error))?;
    let read = Dir::read_from(&directory).map_err(|error| failed(&error.into()))?;
    // Sorted while reading, so that no more is kept than is shown.
    let mut kept: BTreeMap<(bool, Vec<u8>), FileType> = BTreeMap::new();
    let mut counted = 0;
    let mut uncounted = false;
    for entry in read {
        let entry = entry.map_err(|error| failed(&error.into()))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if counted == MOST_COUNTED {
            uncounted = true;
            break;
        }
        counted += 1;
        let kind = match entry.file_type() {
            FileType::Unknown => look(&directory, name).map_or(FileType::Unknown, |it| it.0),
            kind => kind,
        };
        let is_other = kind != FileType::Directory;
        kept.insert((is_other, name.to_bytes().to_vec()), kind);
        if kept.len() > MOST_ENTRIES {
            kept.pop_last();
        }
    }
    Ok(Listing {
        more: counted.saturating_sub(MOST_ENTRIES),
        entries: kept.into_iter().map(|((_, name), kind)| Entry { name, kind }).collect(),
        uncounted,
        directory,
    })
}

fn not_a_directory(place: &Place<'_>) -> ToolError {
    match place.open(OFlags::PATH).map(rustix::fs::fstat) {
        Ok(Ok(stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            ToolError(format!("{} is a file; use {READ_FILE} to read it", place.shown))
        }
        _ => ToolError(format!("{} is not a directory", place.shown)),
    }
}

fn look(directory: &OwnedFd, name: impl rustix::path::Arg) -> Option<(FileType, i64)> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((FileType::from_raw_mode(stat.st_mode), stat.st_size))
}

impl Entry {
    fn line(&self, directory: &OwnedFd) -> String {
        let name = escaped(&self.name);
        match self.kind {
            FileType::Directory => format!("dir - {name}"),
            FileType::RegularFile => match look(directory, self.name.as_slice()) {
                Some((_, size)) => format!("file {size} {name}"),
                None => format!("file ? {name}"),
            },
            FileType::Symlink => match rustix::fs::readlinkat(directory, self.name.as_slice(), Vec::new()) {
                Ok(target) => {
                    let target = escaped(target.to_bytes());
                    let cut = super::start(&target, MOST_TARGET);
                    let more = if cut.len() < target.len() { "…" } else { "" };
                    format!("link - {name} -> {cut}{more}")
                }
                Err(_) => format!("link - {name} -> ?"),
            },
            _ => format!("other - {name}"),
        }
    }
}

/// A name on one line, whatever bytes it has.
fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The lines of an answer, as many as there is room for.
struct Lines {
    text: String,
    most: usize,
    left_out: usize,
    uncounted: bool,
}

impl Lines {
    fn new(most: usize) -> Self {
        Self { text: String::new(), most: most.saturating_sub(NOTE), left_out: 0, uncounted: false }
    }

    /// The roots at or below a path that is in none; `None` where there are none.
    fn of_roots(roots: &Roots, named: &Named, most: usize) -> Option<String> {
        let mut lines = Self::new(most);
        lines.roots(roots, named);
        let is_something = named.is_root_of_all() || !lines.text.is_empty() || lines.left_out > 0;
        is_something.then(|| lines.into_text())
    }

    fn roots(&mut self, roots: &Roots, named: &Named) {
        for root in roots.below(named) {
            if root.shown == "/" {
                continue;
            }
            let Some(stat) = root.open(OFlags::PATH).ok().and_then(|file| rustix::fs::fstat(file).ok()) else {
                continue;
            };
            let rights = if root.is_writable() { "writable" } else { "read-only" };
            let path = &root.shown;
            self.push(&match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => format!("dir - {path} ({rights})"),
                FileType::RegularFile => format!("file {} {path} ({rights})", stat.st_size),
                _ => format!("other - {path} ({rights})"),
            });
        }
    }

    fn push(&mut self, line: &str) {
        // After one that did not fit, none does: what is shown has no holes.
        if self.left_out > 0 || self.text.len() + line.len() + 1 > self.most {
            self.left_out += 1;
            return;
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn into_text(mut self) -> String {
        let least = if self.uncounted { "at least " } else { "" };
        if self.left_out > 0 {
            let _ = write!(self.text, "… and {least}{} more", self.left_out);
        } else if self.text.is_empty() {
            self.text.push_str("(empty directory)");
        } else {
            self.text.pop();
        }
        self.text
    }
}
