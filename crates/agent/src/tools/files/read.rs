//! `read_file`: a page of a text file.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags};
use serde::Deserialize;
use serde_json::{Map, Value};
use sympozium_api::builtin_tool::LIST_DIRECTORY;

use super::access::Commands;
use super::io_errors;
use super::roots::{ResolvedPath, Roots};
use super::text::{Content, PageText, Pager};
use super::{HEAD, parse_arguments, positive_integer};
use crate::tools::ToolError;

pub use super::text::LineRange;

#[derive(Debug, Clone, Copy)]
pub struct ScanLimits {
    /// Most bytes that are read to find a line.
    pub scanned: u64,
    /// Bytes after the requested lines in which further lines are counted.
    pub counted: u64,
}

const SCAN_LIMITS: ScanLimits = ScanLimits { scanned: 256 << 20, counted: 8 << 20 };
const CHUNK: usize = 32 << 10;
/// Reserved for notes.
const NOTES: usize = 384;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(default, deserialize_with = "positive_integer")]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "positive_integer")]
    limit: Option<u64>,
}

/// `read_file`: lines of a text file as they are, without numbers, because `edit_file` needs their exact text.
///
/// UTF-8, UTF-16 with a byte order mark, and everything without a NUL in its first bytes is text. The result has at
/// most `max_bytes`, ends at the end of a line, and says how to read on.
///
/// A line that alone exceeds that is cut, and the rest is counted. There is no way to read on inside of a line: offsets
/// are lines, and parts of one that are shown as lines would not be found by `edit_file`. A command can read it.
pub fn read_file(roots: &Roots, arguments: &Map<String, Value>, max_bytes: usize) -> Result<String, ToolError> {
    let requested: Arguments<'_> = parse_arguments(arguments)?;
    let path = roots.resolve_str(&requested.path)?;
    let page = read_page(
        &path,
        LineRange { offset: requested.offset.unwrap_or(1), limit: requested.limit.unwrap_or(u64::MAX), max_bytes },
    )?;
    Ok(page.into_text("continue with"))
}

#[derive(Debug)]
pub(crate) struct FilePage {
    text: PageText,
    offset: u64,
    /// Whether the whole file was read.
    is_complete: bool,
    /// Whether reading stopped at [`ScanLimits::scanned`].
    hit_scan_limit: bool,
    /// Advice about a line that is cut.
    cut_line_advice: &'static str,
}

/// `max_bytes` of the range is for the whole result, including notes.
pub(crate) fn read_page(path: &ResolvedPath<'_>, requested: LineRange) -> Result<FilePage, ToolError> {
    read_within(path, requested, SCAN_LIMITS)
}

pub(super) fn read_within(
    path: &ResolvedPath<'_>,
    requested: LineRange,
    limits: ScanLimits,
) -> Result<FilePage, ToolError> {
    let mut file = open_regular(path)?;
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    page_from(path, &mut file, size, requested, limits)
}

/// As [`read_page`], for content that was read before.
pub(crate) fn page_from_bytes(
    path: &ResolvedPath<'_>,
    mut bytes: &[u8],
    requested: LineRange,
) -> Result<FilePage, ToolError> {
    let size = bytes.len() as u64;
    page_from(path, &mut bytes, size, requested, SCAN_LIMITS)
}

fn page_from(
    path: &ResolvedPath<'_>,
    file: &mut impl Read,
    size: u64,
    mut requested: LineRange,
    limits: ScanLimits,
) -> Result<FilePage, ToolError> {
    let failed = |error: &io::Error| io_errors::read_error(path, error);
    let mut buffer = vec![0; CHUNK];
    let filled = fill(file, &mut buffer[..HEAD]).map_err(|error| failed(&error))?;
    let head = &buffer[..filled];
    let (encoding, mark) = match Content::of(head) {
        Content::Text(encoding, mark) => (encoding, mark),
        Content::Binary(kind) => return Err(binary(path, size, kind)),
    };
    let max_bytes = requested.max_bytes;
    requested.max_bytes = max_bytes.saturating_sub(NOTES).max(max_bytes / 2);
    let mut pager = Pager::new(requested, encoding);
    pager.feed(&head[mark..]);
    let mut scanned = filled as u64;
    let mut counted = 0;
    // By the bytes read and not by the size: a file may grow while it is read.
    let is_complete = loop {
        if scanned >= limits.scanned || counted >= limits.counted {
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
    let page = FilePage {
        text: pager.finish(),
        offset: requested.offset,
        is_complete,
        hit_scan_limit: scanned >= limits.scanned,
        cut_line_advice: cut_line_advice(path),
    };
    page.check(path, limits)
}

/// Advice about the rest of a line that is cut. Without commands a model cannot read it, but may change text that it
/// knows to be there.
fn cut_line_advice(path: &ResolvedPath<'_>) -> &'static str {
    match (path.commands(), path.is_writable()) {
        (Commands::Offered, _) => "; use a command such as cut to read them",
        (Commands::NotOffered, true) => "; read_file cannot show them, and edit_file can replace text in them",
        (Commands::NotOffered, false) => "; read_file cannot show them",
    }
}

impl FilePage {
    fn check(self, resolved: &ResolvedPath<'_>, limits: ScanLimits) -> Result<Self, ToolError> {
        let path = &resolved.shown;
        let is_empty_file = self.text.total_lines == 0 && self.offset == 1;
        if self.text.lines > 0 || is_empty_file {
            return Ok(self);
        }
        if !self.is_complete {
            return Err(ToolError(format!(
                "line {} of {path} is not within its first {} MiB{}",
                self.offset,
                limits.scanned >> 20,
                resolved.if_commands("; use a command such as sed to read there")
            )));
        }
        Err(ToolError(match self.text.total_lines {
            0 => format!("{path} is empty"),
            1 => format!("{path} has 1 line; offset={} is beyond it", self.offset),
            lines => format!("{path} has {lines} lines; offset={} is beyond them", self.offset),
        }))
    }

    fn is_whole_file(&self) -> bool {
        self.offset == 1 && self.is_complete && self.text.lines == self.text.total_lines && self.text.omitted == 0
    }

    /// The text with its notes. `continue_hint` precedes the offset of the next line.
    pub fn into_text(self, continue_hint: &str) -> String {
        let is_whole_file = self.is_whole_file();
        let PageText { mut text, lines, omitted, total_lines, replaced } = self.text;
        if total_lines == 0 {
            return "(empty file)".to_owned();
        }
        let last = self.offset + lines - 1;
        let mut note = |words: std::fmt::Arguments<'_>| {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            let _ = write!(text, "({words})");
        };
        if omitted > 0 {
            let least = if self.hit_scan_limit { "at least " } else { "" };
            let advice = self.cut_line_advice;
            note(format_args!("line {last} goes on for {least}{omitted} bytes that are left out{advice}"));
        }
        if replaced {
            note(format_args!("this is not all UTF-8: bytes that are no text are shown as \u{fffd}"));
        }
        if !is_whole_file {
            let of = if self.is_complete { total_lines.to_string() } else { "more".to_owned() };
            let offset = self.offset;
            if self.is_complete && last >= total_lines {
                note(format_args!("lines {offset}–{last} of {of}"));
            } else {
                let next = last + 1;
                note(format_args!("lines {offset}–{last} of {of}; {continue_hint} offset={next}"));
            }
        }
        text
    }
}

impl Roots {
    /// Opens the regular file at `path`, for custom tools. The caller must bound how much it reads: the file may have
    /// any size, and may grow.
    pub fn open_file(&self, path: &str) -> Result<File, ToolError> {
        open_regular(&self.resolve_str(path)?)
    }
}

fn open_regular(path: &ResolvedPath<'_>) -> Result<File, ToolError> {
    let failed = |error: io::Error| io_errors::read_error(path, &error);
    let kind = |file: &OwnedFd| {
        let stat = rustix::fs::fstat(file).map_err(|error| failed(error.into()))?;
        check_regular(path, FileType::from_raw_mode(stat.st_mode))
    };
    // Opening a device can have effects, and opening a FIFO unblocks a writer: check with `O_PATH` first.
    kind(&path.open(OFlags::PATH).map_err(failed)?)?;
    // It may have been replaced since: O_NONBLOCK keeps a FIFO from blocking.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = path.open(flags).map_err(failed)?;
    kind(&file)?;
    Ok(File::from(file))
}

/// The content of a regular file if it has exactly `bytes`; `None` otherwise.
pub(crate) fn read_exact(path: &ResolvedPath<'_>, bytes: u64) -> Result<Option<Vec<u8>>, ToolError> {
    let mut content = Vec::new();
    // One more byte reveals a larger file.
    let mut file = open_regular(path)?.take(bytes.saturating_add(1));
    file.read_to_end(&mut content).map_err(|error| io_errors::read_error(path, &error))?;
    Ok((content.len() as u64 == bytes).then_some(content))
}

/// `None` for everything but regular files.
pub(crate) fn regular_size(path: &ResolvedPath<'_>) -> Option<i64> {
    let stat = rustix::fs::fstat(path.open(OFlags::PATH).ok()?).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then_some(stat.st_size)
}

/// An error that names the kind, for everything but regular files.
pub fn check_regular(path: &ResolvedPath<'_>, kind: FileType) -> Result<(), ToolError> {
    let kind = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => {
            return Err(ToolError(format!("{} is a directory; use {LIST_DIRECTORY} to see what is in it", path.shown)));
        }
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink => "a link",
        FileType::Unknown => "something else",
    };
    Err(ToolError(format!("{} is {kind}, not a regular file", path.shown)))
}

fn binary(path: &ResolvedPath<'_>, size: u64, kind: Option<&str>) -> ToolError {
    let kind = kind.unwrap_or("binary data");
    ToolError(format!(
        "{} is {kind} of {size} bytes, not text{}",
        path.shown,
        path.if_commands("; use execute_command with a program that reads it")
    ))
}

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
