//! `edit_file`: exact pieces of a file replaced, all or none.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Read as _};

use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::apply::{Change, Edit, Scope, apply_with};
use super::broken::Unbroken;
use super::roots::{Place, Roots};
use super::text::Content;
use super::write::{Target, changed, is_unchanged, writable};
use super::{MOST_WRITTEN, arguments, broken, failure};
use sympozium_api::builtin_tool::{EDIT_FILE, WRITE_FILE};

use crate::tools::ToolError;

/// Most edits in a call.
const MOST_EDITS: usize = 256;
/// Most lines of one edit in the answer.
const MOST_LINES: usize = 20;
/// Most bytes of a line in the answer.
const MOST_LINE: usize = 200;
/// Bytes of the answer that are kept for how many edits are not shown.
const NOTE: usize = 48;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    edits: Vec<Wanted<'a>>,
}

#[derive(Deserialize)]
struct Wanted<'a> {
    #[serde(borrow)]
    old_string: Cow<'a, str>,
    #[serde(borrow)]
    new_string: Cow<'a, str>,
    #[serde(default)]
    replace_all: Option<bool>,
}

/// `edit_file`: every edit is made, in order, or the file stays as it is. Its mode is kept.
///
/// # Errors
/// As for writing; when a text is not there, or more often than once; when the file changed meanwhile.
pub fn edit_file(roots: &Roots, given: &Map<String, Value>, most: usize) -> Result<String, ToolError> {
    let wanted: Arguments<'_> = arguments(given)?;
    if wanted.edits.is_empty() || wanted.edits.len() > MOST_EDITS {
        return Err(ToolError(format!("there are {} edits; give 1 to {MOST_EDITS}", wanted.edits.len())));
    }
    let edits: Vec<Edit<'_>> = wanted.edits.iter().map(Wanted::as_edit).collect();
    let place = writable(roots, &wanted.path)?;
    let failed = |error: io::Error| failure::writing(&place, &error);
    let target = look(&place)?;
    let bytes = content(&place, &target)?;
    let mut changes = Vec::new();
    let made = apply_with(&bytes, &edits, &mut |change| changes.push(change))
        .map_err(|error| ToolError(format!("{}: nothing was changed: {error}", place.shown)))?;
    drop(bytes);
    let beside = target.write(&made).map_err(failed)?;
    // What was edited is what was read; who wrote meanwhile would lose it.
    if !beside.replaces_the_same() {
        return Err(failed(changed()));
    }
    beside.take_name().map_err(failed)?;
    // Where the old text had it, the file did.
    let is_new = |edit: &&Edit<'_>| Unbroken::of(edit.old).is_none();
    let notes = edits.iter().filter(is_new);
    let note = notes.map(|edit| broken::note("new_string", edit.new)).find(|note| !note.is_empty()).unwrap_or_default();
    let mut answer = summary(&place, &changes, most.saturating_sub(note.len()));
    answer.push_str(&note);
    Ok(answer)
}

impl Wanted<'_> {
    fn as_edit(&self) -> Edit<'_> {
        Edit {
            old: &self.old_string,
            new: &self.new_string,
            scope: match self.replace_all {
                Some(true) => Scope::All,
                Some(false) | None => Scope::Once,
            },
        }
    }
}

/// The file to edit, which must be there.
fn look<'p>(place: &'p Place<'_>) -> Result<Target<'p>, ToolError> {
    let Some((names, name)) = place.split() else {
        return Err(ToolError(format!("{} cannot be edited: it is one of your roots", place.shown)));
    };
    let directory =
        place.open_names(&names, OFlags::PATH | OFlags::DIRECTORY).map_err(|error| failure::writing(place, &error))?;
    let target = Target::look(place, directory, name)?;
    if target.existing.is_none() {
        return Err(ToolError(format!("{} does not exist; use {WRITE_FILE} to create it", place.shown)));
    }
    Ok(target)
}

/// What the file holds, if it is text of a size that can be edited.
fn content(place: &Place<'_>, target: &Target<'_>) -> Result<Vec<u8>, ToolError> {
    let failed = |error: io::Error| failure::reading(place, &error);
    let file = target.open(place).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(|error| failed(error.into()))?;
    let is_seen = |seen| is_unchanged(seen, &stat);
    if !target.existing.as_ref().is_some_and(is_seen) {
        return Err(failed(changed()));
    }
    let too_large = || {
        ToolError(format!(
            "{} has more than {} MiB, the most that {EDIT_FILE} takes{}",
            place.shown,
            MOST_WRITTEN >> 20,
            place.by_command("; use a command such as sed")
        ))
    };
    let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if size > MOST_WRITTEN {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(size + 1);
    let most = MOST_WRITTEN as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MOST_WRITTEN {
        return Err(too_large());
    }
    match Content::of(&bytes) {
        Content::Text(encoding, _) if encoding == encoding_rs::UTF_8 => Ok(bytes),
        Content::Text(encoding, _) => Err(ToolError(format!(
            "{} is {} text, which {EDIT_FILE} cannot edit; {}write it whole",
            place.shown,
            encoding.name(),
            place.by_command("convert it with a command, or ")
        ))),
        Content::Binary(kind) => Err(ToolError(format!(
            "{} is {}, not text{}",
            place.shown,
            kind.unwrap_or("binary data"),
            place.by_command("; use execute_command with a program that changes it")
        ))),
    }
}

/// What was changed, in lines as a diff has them.
fn summary(place: &Place<'_>, changes: &[Change], most: usize) -> String {
    let replacements: usize = changes.iter().map(|change| change.count).sum();
    let mut text = match replacements {
        1 => format!("edited {}: 1 replacement", place.shown),
        count => format!("edited {}: {count} replacements", place.shown),
    };
    for (index, change) in changes.iter().enumerate() {
        let shown = difference(index + 1, change);
        if text.len() + shown.len() + NOTE > most {
            // Writing to a string does not fail.
            let _ = write!(text, "\n… and {} more edits", changes.len() - index);
            break;
        }
        text.push_str(&shown);
    }
    text
}

fn difference(number: usize, change: &Change) -> String {
    let mut text = format!("\nedit {number}, line {}", change.line);
    if change.count > 1 {
        let _ = write!(text, " and {} more places", change.count - 1);
    }
    text.push(':');
    for (sign, bytes) in [('-', &change.before), ('+', &change.after)] {
        let content = String::from_utf8_lossy(bytes);
        let lines = content.lines().count();
        // One of the lines says how many there are.
        let fits = lines <= MOST_LINES / 2;
        let shown = if fits { lines } else { MOST_LINES / 2 - 1 };
        for line in content.lines().take(shown) {
            let cut = super::start(line, MOST_LINE);
            let more = if cut.len() < line.len() { "…" } else { "" };
            let _ = write!(text, "\n{sign}{cut}{more}");
        }
        if !fits {
            let _ = write!(text, "\n{sign}… ({} more lines)", lines - shown);
        }
    }
    text
}
