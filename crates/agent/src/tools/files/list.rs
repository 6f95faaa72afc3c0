//! `list_directory`: kind, size and name of each entry.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use serde::Deserialize;
use serde_json::{Map, Value};
use sympozium_api::builtin_tool::READ_FILE;
use sympozium_api::text::printable;

use super::path::RequestedPath;
use super::roots::{ResolvedPath, Roots};
use super::{io_errors, parse_arguments};
use crate::tools::ToolError;

/// Most entries that are shown, after sorting.
const MAX_ENTRIES: usize = 2_000;
const MAX_COUNTED: usize = 200_000;
const MAX_TARGET: usize = 256;
/// Reserved for the note on entries that are not shown.
const NOTE: usize = 64;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
}

/// `list_directory`: directories first, then by name. `/` and directories above several roots list those roots.
pub fn list_directory(roots: &Roots, arguments: &Map<String, Value>, max_bytes: usize) -> Result<String, ToolError> {
    let requested: Arguments<'_> = parse_arguments(arguments)?;
    let named = roots.parse_path(&requested.path)?;
    let Some(path) = roots.resolve(&named) else {
        return Lines::of_roots(roots, &named, max_bytes).ok_or_else(|| roots.outside_error(&named));
    };
    let mut lines = Lines::new(max_bytes);
    if named.is_slash() {
        lines.roots(roots, &named);
    }
    let listing = list_entries(&path)?;
    for entry in &listing.entries {
        let inside = RequestedPath {
            path: format!("{}/{}", named.path, String::from_utf8_lossy(&entry.name)),
            ends_in_slash: false,
        };
        // Closed paths are hidden, and roots were listed above.
        let is_open = roots.resolve(&inside).is_some();
        if !named.is_slash() || is_open && roots.roots_below(&inside).is_empty() {
            lines.push(&entry.line(&listing.directory));
        }
    }
    lines.omitted += listing.more;
    lines.uncounted = listing.uncounted;
    Ok(lines.into_text())
}

pub(crate) struct Listing {
    directory: OwnedFd,
    pub entries: Vec<Entry>,
    /// Entries that were counted but dropped.
    pub more: usize,
    /// Whether the count is incomplete.
    uncounted: bool,
}

pub(crate) struct Entry {
    pub name: Vec<u8>,
    kind: FileType,
}

pub(crate) fn list_entries(path: &ResolvedPath<'_>) -> Result<Listing, ToolError> {
    let failed = |error: &io::Error| match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::NOTDIR) => not_a_directory(path),
        _ => io_errors::read_error(path, error),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let directory = path.open(flags).map_err(|error| failed(&error))?;
    let read = Dir::read_from(&directory).map_err(|error| failed(&error.into()))?;
    // Sorted while reading, to keep no more than is shown.
    let mut sorted: BTreeMap<(bool, Vec<u8>), FileType> = BTreeMap::new();
    let mut counted = 0;
    let mut uncounted = false;
    for entry in read {
        let entry = entry.map_err(|error| failed(&error.into()))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if counted == MAX_COUNTED {
            uncounted = true;
            break;
        }
        counted += 1;
        let kind = match entry.file_type() {
            FileType::Unknown => look_up(&directory, name).map_or(FileType::Unknown, |found| found.0),
            kind => kind,
        };
        let is_other = kind != FileType::Directory;
        sorted.insert((is_other, name.to_bytes().to_vec()), kind);
        if sorted.len() > MAX_ENTRIES {
            sorted.pop_last();
        }
    }
    Ok(Listing {
        more: counted.saturating_sub(MAX_ENTRIES),
        entries: sorted.into_iter().map(|((_, name), kind)| Entry { name, kind }).collect(),
        uncounted,
        directory,
    })
}

fn not_a_directory(path: &ResolvedPath<'_>) -> ToolError {
    match path.open(OFlags::PATH).map(rustix::fs::fstat) {
        Ok(Ok(stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            ToolError(format!("{} is a file; use {READ_FILE} to read it", path.shown))
        }
        _ => ToolError(format!("{} is not a directory", path.shown)),
    }
}

fn look_up(directory: &OwnedFd, name: impl rustix::path::Arg) -> Option<(FileType, i64)> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((FileType::from_raw_mode(stat.st_mode), stat.st_size))
}

impl Entry {
    fn line(&self, directory: &OwnedFd) -> String {
        let name = escaped(&self.name);
        match self.kind {
            FileType::Directory => format!("dir - {name}"),
            FileType::RegularFile => match look_up(directory, self.name.as_slice()) {
                Some((_, size)) => format!("file {size} {name}"),
                None => format!("file ? {name}"),
            },
            FileType::Symlink => match rustix::fs::readlinkat(directory, self.name.as_slice(), Vec::new()) {
                Ok(target) => {
                    let target = escaped(target.to_bytes());
                    let shortened = super::prefix(&target, MAX_TARGET);
                    let more = if shortened.len() < target.len() { "…" } else { "" };
                    format!("link - {name} -> {shortened}{more}")
                }
                Err(_) => format!("link - {name} -> ?"),
            },
            _ => format!("other - {name}"),
        }
    }
}

fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

struct Lines {
    text: String,
    max_bytes: usize,
    omitted: usize,
    uncounted: bool,
}

impl Lines {
    fn new(max_bytes: usize) -> Self {
        Self { text: String::new(), max_bytes: max_bytes.saturating_sub(NOTE), omitted: 0, uncounted: false }
    }

    /// The roots at or below a path outside of every root; `None` if there are none.
    fn of_roots(roots: &Roots, named: &RequestedPath, max_bytes: usize) -> Option<String> {
        let mut lines = Self::new(max_bytes);
        lines.roots(roots, named);
        let is_something = named.is_slash() || !lines.text.is_empty() || lines.omitted > 0;
        is_something.then(|| lines.into_text())
    }

    fn roots(&mut self, roots: &Roots, named: &RequestedPath) {
        for root in roots.roots_below(named) {
            if root.shown == "/" {
                continue;
            }
            let Some(stat) = root.open(OFlags::PATH).ok().and_then(|file| rustix::fs::fstat(file).ok()) else {
                continue;
            };
            let access = if root.is_writable() { "writable" } else { "read-only" };
            let path = &root.shown;
            self.push(&match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => format!("dir - {path} ({access})"),
                FileType::RegularFile => format!("file {} {path} ({access})", stat.st_size),
                _ => format!("other - {path} ({access})"),
            });
        }
    }

    fn push(&mut self, line: &str) {
        // After one that did not fit, none does: the listing has no gaps.
        if self.omitted > 0 || self.text.len() + line.len() + 1 > self.max_bytes {
            self.omitted += 1;
            return;
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn into_text(mut self) -> String {
        let least = if self.uncounted { "at least " } else { "" };
        if self.omitted > 0 {
            let _ = write!(self.text, "… and {least}{} more", self.omitted);
        } else if self.text.is_empty() {
            self.text.push_str("(empty directory)");
        } else {
            self.text.pop();
        }
        self.text
    }
}
