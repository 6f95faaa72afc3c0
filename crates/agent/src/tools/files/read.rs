//! `read_file`: a page of a text file.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::access::Commands;
use super::failure;
use super::roots::{Place, Roots};
use super::text::{Content, Pager, Taken};
use super::{HEAD, arguments, whole};
use sympozium_api::builtin_tool::LIST_DIRECTORY;

use crate::tools::ToolError;

pub use super::text::Wanted;

/// How much of a file is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most bytes, to find a line.
    pub scanned: u64,
    /// Bytes after the last wanted line in which the other lines are counted; beyond, there are just more.
    pub counted: u64,
}

const BOUNDS: Bounds = Bounds { scanned: 256 << 20, counted: 8 << 20 };
/// Bytes that are read at a time.
const CHUNK: usize = 32 << 10;
/// Bytes of an answer that are kept for what is said about it.
const NOTES: usize = 384;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(default, deserialize_with = "whole")]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "whole")]
    limit: Option<u64>,
}

/// `read_file`: lines of a text file as they are, without numbers, because `edit_file` needs their exact text.
///
/// UTF-8 and UTF-16 with a mark are text, everything without a NUL in its first bytes too. The answer has at most `most`
/// bytes, ends at the end of a line, and says how to read on.
///
/// A line that alone is longer than that is cut, and what is left out is counted. There is no way to read on inside of a line:
/// offsets are lines, and pieces of one that were shown as lines would not be what `edit_file` finds. A command can read it.
///
/// # Errors
/// For what is no regular file or no text, is not there, or lies outside of the roots.
pub fn read_file(roots: &Roots, given: &Map<String, Value>, most: usize) -> Result<String, ToolError> {
    let wanted: Arguments<'_> = arguments(given)?;
    let place = roots.find(&wanted.path)?;
    let page = read_page(
        &place,
        Wanted { offset: wanted.offset.unwrap_or(1), limit: wanted.limit.unwrap_or(u64::MAX), most },
    )?;
    Ok(page.into_text("continue with"))
}

/// Some lines of a file.
#[derive(Debug)]
pub(crate) struct Page {
    taken: Taken,
    offset: u64,
    /// Whether all lines of the file were seen.
    complete: bool,
    /// Why it was not looked at whole, beside its length.
    scanned: bool,
    /// What can be done about a line that is cut.
    further: &'static str,
}

/// Reads the wanted lines of what is at `place`. `most` is for the whole answer, with what is said about the page.
pub(crate) fn read_page(place: &Place<'_>, wanted: Wanted) -> Result<Page, ToolError> {
    read_within(place, wanted, BOUNDS)
}

/// As [`read_page`], with other bounds.
pub(super) fn read_within(place: &Place<'_>, wanted: Wanted, bounds: Bounds) -> Result<Page, ToolError> {
    let mut file = open_regular(place)?;
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    page_of(place, &mut file, size, wanted, bounds)
}

/// As [`read_page`], of what was read there before.
pub(crate) fn page_of_bytes(place: &Place<'_>, mut bytes: &[u8], wanted: Wanted) -> Result<Page, ToolError> {
    let size = bytes.len() as u64;
    page_of(place, &mut bytes, size, wanted, BOUNDS)
}

fn page_of(
    place: &Place<'_>,
    file: &mut impl Read,
    size: u64,
    mut wanted: Wanted,
    bounds: Bounds,
) -> Result<Page, ToolError> {
    let failed = |error: &io::Error| failure::reading(place, error);
    let mut buffer = vec![0; CHUNK];
    let filled = fill(file, &mut buffer[..HEAD]).map_err(|error| failed(&error))?;
    let head = &buffer[..filled];
    let (encoding, mark) = match Content::of(head) {
        Content::Text(encoding, mark) => (encoding, mark),
        Content::Binary(kind) => return Err(binary(place, size, kind)),
    };
    let most = wanted.most;
    wanted.most = most.saturating_sub(NOTES).max(most / 2);
    let mut pager = Pager::new(wanted, encoding);
    pager.feed(&head[mark..]);
    let mut scanned = filled as u64;
    let mut counted = 0;
    // By what was read and not by the size: a file may grow while it is read.
    let complete = loop {
        if scanned >= bounds.scanned || counted >= bounds.counted {
            break false;
        }
        let was_full = pager.is_full();
        let read = fill(file, &mut buffer).map_err(|error| failed(&error))?;
        if read == 0 {
            break true;
        }
        pager.feed(&buffer[..read]);
        scanned += read as u64;
        if was_full {
            counted += read as u64;
        }
    };
    let page = Page {
        taken: pager.finish(),
        offset: wanted.offset,
        complete,
        scanned: scanned >= bounds.scanned,
        further: beyond_a_cut(place),
    };
    page.checked(place, bounds)
}

/// What a model can do about the rest of a line that is cut. Where it has no commands it cannot read it, but can change what it
/// knows to be there.
fn beyond_a_cut(place: &Place<'_>) -> &'static str {
    match (place.commands(), place.is_writable()) {
        (Commands::Offered, _) => "; use a command such as cut to read them",
        (Commands::NotOffered, true) => "; read_file cannot show them, and edit_file can replace text in them",
        (Commands::NotOffered, false) => "; read_file cannot show them",
    }
}

impl Page {
    fn checked(self, place: &Place<'_>, bounds: Bounds) -> Result<Self, ToolError> {
        let path = &place.shown;
        let nothing_wanted = self.taken.seen == 0 && self.offset == 1;
        if self.taken.lines > 0 || nothing_wanted {
            return Ok(self);
        }
        if !self.complete {
            return Err(ToolError(format!(
                "line {} of {path} is not within its first {} MiB{}",
                self.offset,
                bounds.scanned >> 20,
                place.by_command("; use a command such as sed to read there")
            )));
        }
        Err(ToolError(match self.taken.seen {
            0 => format!("{path} is empty"),
            1 => format!("{path} has 1 line; offset={} is beyond it", self.offset),
            lines => format!("{path} has {lines} lines; offset={} is beyond them", self.offset),
        }))
    }

    /// Whether this is all of the file.
    fn is_whole(&self) -> bool {
        self.offset == 1 && self.complete && self.taken.lines == self.taken.seen && self.taken.left_out == 0
    }

    /// The text, and what there is to say about it. `go_on` is what stands before the offset of the next line.
    pub fn into_text(self, go_on: &str) -> String {
        let whole = self.is_whole();
        let Taken { mut text, lines, left_out, seen, replaced } = self.taken;
        if seen == 0 {
            return "(empty file)".to_owned();
        }
        let last = self.offset + lines - 1;
        let mut note = |words: std::fmt::Arguments<'_>| {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            // Writing to a string does not fail.
            let _ = write!(text, "({words})");
        };
        if left_out > 0 {
            let least = if self.scanned { "at least " } else { "" };
            let further = self.further;
            note(format_args!("line {last} goes on for {least}{left_out} bytes that are left out{further}"));
        }
        if replaced {
            note(format_args!("this is not all UTF-8: bytes that are no text are shown as \u{fffd}"));
        }
        if !whole {
            let of = if self.complete { seen.to_string() } else { "more".to_owned() };
            let offset = self.offset;
            if self.complete && last >= seen {
                note(format_args!("lines {offset}–{last} of {of}"));
            } else {
                let next = last + 1;
                note(format_args!("lines {offset}–{last} of {of}; {go_on} offset={next}"));
            }
        }
        text
    }
}

impl Roots {
    /// Opens the regular file that a model means by `path`, for a tool that reads it in its own way. How much of it is
    /// read is the tool's to bound: the file may be of any size, and may grow meanwhile.
    ///
    /// # Errors
    /// For what is no regular file, is not there, or lies outside of the roots.
    pub fn open_file(&self, path: &str) -> Result<File, ToolError> {
        open_regular(&self.find(path)?)
    }
}

/// Opens a regular file for reading, and nothing else.
fn open_regular(place: &Place<'_>) -> Result<File, ToolError> {
    let failed = |error: io::Error| failure::reading(place, &error);
    let kind = |file: &OwnedFd| {
        let stat = rustix::fs::fstat(file).map_err(|error| failed(error.into()))?;
        regular(place, FileType::from_raw_mode(stat.st_mode))
    };
    // Opening a device can set it going, and opening a FIFO lets a writer go on: look first, by what opens neither.
    kind(&place.open(OFlags::PATH).map_err(failed)?)?;
    // It may have become one since; then nothing waits for whoever is at its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = place.open(flags).map_err(failed)?;
    kind(&file)?;
    Ok(File::from(file))
}

/// What a regular file holds, if it has exactly so many bytes; `None` if it has others.
pub(crate) fn exactly(place: &Place<'_>, bytes: u64) -> Result<Option<Vec<u8>>, ToolError> {
    let mut content = Vec::new();
    // One more than there should be tells that there are more.
    let mut file = open_regular(place)?.take(bytes.saturating_add(1));
    file.read_to_end(&mut content).map_err(|error| failure::reading(place, &error))?;
    Ok((content.len() as u64 == bytes).then_some(content))
}

/// The bytes of a regular file; `None` for all else.
pub(crate) fn regular_size(place: &Place<'_>) -> Option<i64> {
    let stat = rustix::fs::fstat(place.open(OFlags::PATH).ok()?).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then_some(stat.st_size)
}

/// That what is at `place` is a regular file, or what else it is.
pub fn regular(place: &Place<'_>, kind: FileType) -> Result<(), ToolError> {
    let kind = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => {
            return Err(ToolError(format!(
                "{} is a directory; use {LIST_DIRECTORY} to see what is in it",
                place.shown
            )));
        }
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink => "a link",
        FileType::Unknown => "something else",
    };
    Err(ToolError(format!("{} is {kind}, not a regular file", place.shown)))
}

fn binary(place: &Place<'_>, size: u64, kind: Option<&str>) -> ToolError {
    let kind = kind.unwrap_or("binary data");
    ToolError(format!(
        "{} is {kind} of {size} bytes, not text{}",
        place.shown,
        place.by_command("; use execute_command with a program that reads it")
    ))
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
