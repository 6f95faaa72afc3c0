//! `edit_file`: replaces exact texts in a file, all or none.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Read as _};

use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{EDIT_FILE, WRITE_FILE};

use super::apply::{Change, Edit, Scope, apply_with};
use super::broken_tokens::RestoredText;
use super::roots::{ResolvedPath, Roots};
use super::text::Content;
use super::write::{Target, changed_error, is_unchanged, writable};
use super::{MAX_FILE, broken_tokens, io_errors, parse_arguments};
use crate::tools::ToolError;

const MAX_EDITS: usize = 256;
const MAX_DIFF_LINES: usize = 20;
const MAX_DIFF_LINE: usize = 200;
/// Reserved for the note on edits that are not shown.
const NOTE: usize = 48;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    edits: Vec<RequestedEdit<'a>>,
}

#[derive(Deserialize)]
struct RequestedEdit<'a> {
    #[serde(borrow)]
    old_string: Cow<'a, str>,
    #[serde(borrow)]
    new_string: Cow<'a, str>,
    #[serde(default)]
    replace_all: Option<bool>,
}

/// `edit_file`: makes every edit, in order, or leaves the file unchanged. Keeps its mode.
pub fn edit_file(roots: &Roots, arguments: &Map<String, Value>, max_bytes: usize) -> Result<String, ToolError> {
    let requested: Arguments<'_> = parse_arguments(arguments)?;
    if requested.edits.is_empty() || requested.edits.len() > MAX_EDITS {
        return Err(ToolError(format!("there are {} edits; give 1 to {MAX_EDITS}", requested.edits.len())));
    }
    let edits: Vec<Edit<'_>> = requested.edits.iter().map(RequestedEdit::as_edit).collect();
    let path = writable(roots, &requested.path)?;
    let failed = |error: io::Error| io_errors::write_error(&path, &error);
    let target = look_up(&path)?;
    let bytes = content(&path, &target)?;
    let mut changes = Vec::new();
    let result = apply_with(&bytes, &edits, &mut |change| changes.push(change))
        .map_err(|error| ToolError(format!("{}: nothing was changed: {error}", path.shown)))?;
    drop(bytes);
    let temp_file = target.write(&result).map_err(failed)?;
    // A concurrent write would be lost.
    if !temp_file.target_is_unchanged() {
        return Err(failed(changed_error()));
    }
    temp_file.commit().map_err(failed)?;
    // A broken token in `old_string` was found, so the file contains it.
    let is_new = |edit: &&Edit<'_>| RestoredText::of(edit.old).is_none();
    let notes = edits.iter().filter(is_new);
    let note =
        notes.map(|edit| broken_tokens::note("new_string", edit.new)).find(|note| !note.is_empty()).unwrap_or_default();
    let mut answer = summary(&path, &changes, max_bytes.saturating_sub(note.len()));
    answer.push_str(&note);
    Ok(answer)
}

impl RequestedEdit<'_> {
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

fn look_up<'p>(path: &'p ResolvedPath<'_>) -> Result<Target<'p>, ToolError> {
    let Some((names, name)) = path.split() else {
        return Err(ToolError(format!("{} cannot be edited: it is one of your roots", path.shown)));
    };
    let directory = path
        .open_names(&names, OFlags::PATH | OFlags::DIRECTORY)
        .map_err(|error| io_errors::write_error(path, &error))?;
    let target = Target::look_up(path, directory, name)?;
    if target.existing.is_none() {
        return Err(ToolError(format!("{} does not exist; use {WRITE_FILE} to create it", path.shown)));
    }
    Ok(target)
}

fn content(path: &ResolvedPath<'_>, target: &Target<'_>) -> Result<Vec<u8>, ToolError> {
    let failed = |error: io::Error| io_errors::read_error(path, &error);
    let file = target.open(path).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(|error| failed(error.into()))?;
    let is_same = |seen| is_unchanged(seen, &stat);
    if !target.existing.as_ref().is_some_and(is_same) {
        return Err(failed(changed_error()));
    }
    let too_large = || {
        ToolError(format!(
            "{} has more than {} MiB, the most that {EDIT_FILE} takes{}",
            path.shown,
            MAX_FILE >> 20,
            path.if_commands("; use a command such as sed")
        ))
    };
    let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if size > MAX_FILE {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(size + 1);
    let max_bytes = MAX_FILE as u64 + 1;
    file.take(max_bytes).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_FILE {
        return Err(too_large());
    }
    match Content::of(&bytes) {
        Content::Text(encoding, _) if encoding == encoding_rs::UTF_8 => Ok(bytes),
        Content::Text(encoding, _) => Err(ToolError(format!(
            "{} is {} text, which {EDIT_FILE} cannot edit; {}write it whole",
            path.shown,
            encoding.name(),
            path.if_commands("convert it with a command, or ")
        ))),
        Content::Binary(kind) => Err(ToolError(format!(
            "{} is {}, not text{}",
            path.shown,
            kind.unwrap_or("binary data"),
            path.if_commands("; use execute_command with a program that changes it")
        ))),
    }
}

fn summary(path: &ResolvedPath<'_>, changes: &[Change], max_bytes: usize) -> String {
    let replacements: usize = changes.iter().map(|change| change.count).sum();
    let mut text = match replacements {
        1 => format!("edited {}: 1 replacement", path.shown),
        count => format!("edited {}: {count} replacements", path.shown),
    };
    for (index, change) in changes.iter().enumerate() {
        let shown = difference(index + 1, change);
        if text.len() + shown.len() + NOTE > max_bytes {
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
        // One line is for the count.
        let fits = lines <= MAX_DIFF_LINES / 2;
        let shown = if fits { lines } else { MAX_DIFF_LINES / 2 - 1 };
        for line in content.lines().take(shown) {
            let cut = super::prefix(line, MAX_DIFF_LINE);
            let more = if cut.len() < line.len() { "…" } else { "" };
            let _ = write!(text, "\n{sign}{cut}{more}");
        }
        if !fits {
            let _ = write!(text, "\n{sign}… ({} more lines)", lines - shown);
        }
    }
    text
}
