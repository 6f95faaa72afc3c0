//! The core of `edit_file`: replaces texts in bytes, all or none. No I/O.
//!
//! The bytes may be in any encoding that contains ASCII; the searched text is UTF-8. Valid UTF-8 starts with a byte
//! that never continues a character and consists of whole characters, so every occurrence lies inside one valid
//! stretch. That is why the standard library's string search, which is linear for every input, finds all of them.

mod hint;

use std::borrow::Cow;

pub use hint::Hint;

use super::MAX_FILE;

/// Most lines that an error about an ambiguous text names.
const MAX_NAMED_LINES: usize = 5;
const MAX_OLD: usize = 1 << 20;
/// Most bytes that the edits of a call process, one after the other: some seconds.
const MAX_WORK: usize = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit<'a> {
    pub old: &'a str,
    pub new: &'a str,
    pub scope: Scope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Once,
    All,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// The line of the first replacement at the time of the edit.
    pub line: usize,
    pub count: usize,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

/// Edits and lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("edit {0}: old_string is empty; name the text that is to be replaced")]
    Empty(usize),
    #[error("edit {0}: old_string and new_string are the same; leave the edit out")]
    Same(usize),
    #[error("edit {0}: old_string has more than {MAX_OLD} bytes; name a shorter piece")]
    TooLong(usize),
    #[error("edit {edit}: old_string was not found{hint}")]
    NotFound { edit: usize, hint: Hint },
    #[error(
        "edit {edit}: old_string is there {count} times (lines {}); add lines around it so that it is there once, or set replace_all",
        join_lines(.lines, *.count)
    )]
    Ambiguous { edit: usize, count: usize, lines: Vec<usize> },
    #[error("edit {0}: these are too many edits for a file of this size; make them in several calls")]
    TooMuch(usize),
    #[error("edit {0}: the file would have more than {MAX_FILE} bytes")]
    TooLarge(usize),
}

fn join_lines(lines: &[usize], count: usize) -> String {
    let mut numbers: Vec<String> = lines.iter().map(usize::to_string).collect();
    if count > lines.len() {
        numbers.push("…".to_owned());
    }
    numbers.join(", ")
}

/// As [`apply_with`], without a callback.
#[cfg(any(test, feature = "fuzzing"))]
pub fn apply(bytes: &[u8], edits: &[Edit<'_>]) -> Result<Vec<u8>, EditError> {
    apply_with(bytes, edits, &mut |_| ())
}

/// Applies the edits in order, each to the result of the one before, with a callback for each change: all of them, or
/// none. Linear in the bytes for each edit.
pub fn apply_with(bytes: &[u8], edits: &[Edit<'_>], on_change: &mut dyn FnMut(Change)) -> Result<Vec<u8>, EditError> {
    apply_within(MAX_WORK, bytes, edits, on_change)
}

fn apply_within(
    max_work: usize,
    bytes: &[u8],
    edits: &[Edit<'_>],
    on_change: &mut dyn FnMut(Change),
) -> Result<Vec<u8>, EditError> {
    let mut current = Cow::Borrowed(bytes);
    let mut work = 0;
    for (index, edit) in edits.iter().enumerate() {
        let number = index + 1;
        check(number, edit)?;
        work += current.len();
        if work > max_work {
            return Err(EditError::TooMuch(number));
        }
        let matches = Matches::of(&current, edit);
        let Some(first) = matches.first else {
            let hint = Hint::of(bytes, &current, edit);
            return Err(EditError::NotFound { edit: number, hint });
        };
        if matches.count > 1 && edit.scope == Scope::Once {
            return Err(EditError::Ambiguous { edit: number, count: matches.count, lines: matches.lines(&current) });
        }
        let size = current.len() - matches.count * edit.old.len();
        let size = edit.new.len().checked_mul(matches.count).map(|new| size.saturating_add(new));
        let Some(size) = size.filter(|size| *size <= MAX_FILE) else {
            return Err(EditError::TooLarge(number));
        };
        let next = replace(&current, edit, first, size);
        on_change(change(&current, &next, edit, first, matches.count));
        current = Cow::Owned(next);
    }
    Ok(current.into_owned())
}

fn check(number: usize, edit: &Edit<'_>) -> Result<(), EditError> {
    if edit.old.is_empty() {
        Err(EditError::Empty(number))
    } else if edit.old.len() > MAX_OLD {
        Err(EditError::TooLong(number))
    } else if edit.old == edit.new {
        Err(EditError::Same(number))
    } else {
        Ok(())
    }
}

struct Matches {
    first: Option<usize>,
    count: usize,
    offsets: Vec<usize>,
}

impl Matches {
    fn of(bytes: &[u8], edit: &Edit<'_>) -> Self {
        if let Scope::Once = edit.scope {
            return Self::once(bytes, edit.old);
        }
        Self::all(bytes, edit.old)
    }

    /// A single pass when the text occurs once.
    fn once(bytes: &[u8], old: &str) -> Self {
        let first = find(bytes, old);
        let second = first.and_then(|first| {
            // `aa` occurs twice in `aaa`, and it is ambiguous which one is meant.
            let next = first + old.chars().next().map_or(1, char::len_utf8);
            Some(next + find(&bytes[next..], old)?)
        });
        let Some(second) = second else {
            return Self { first, count: usize::from(first.is_some()), offsets: first.into_iter().collect() };
        };
        let mut matches = Self::all(bytes, old);
        if matches.count == 1 {
            matches.count = 2;
            matches.offsets.push(second);
        }
        matches
    }

    fn all(bytes: &[u8], old: &str) -> Self {
        let mut count = 0;
        let mut offsets = Vec::new();
        for offset in occurrences(bytes, old) {
            count += 1;
            if offsets.len() < MAX_NAMED_LINES {
                offsets.push(offset);
            }
        }
        Self { first: offsets.first().copied(), count, offsets }
    }

    fn lines(&self, bytes: &[u8]) -> Vec<usize> {
        self.offsets.iter().map(|at| line_at(bytes, *at)).collect()
    }
}

/// Offsets of `text` without overlaps.
fn occurrences<'b>(bytes: &'b [u8], text: &'b str) -> impl Iterator<Item = usize> + 'b {
    let mut end = 0;
    bytes
        .utf8_chunks()
        .map(move |chunk| {
            let prefix = end;
            end += chunk.valid().len() + chunk.invalid().len();
            (prefix, chunk.valid())
        })
        // Preparing a search costs as much as the text is long; skip it where the text cannot be.
        .filter(|(_, valid)| valid.len() >= text.len())
        .flat_map(move |(prefix, valid)| valid.match_indices(text).map(move |(at, _)| prefix + at))
}

fn find(bytes: &[u8], text: &str) -> Option<usize> {
    occurrences(bytes, text).next()
}

fn replace(bytes: &[u8], edit: &Edit<'_>, first: usize, size: usize) -> Vec<u8> {
    let mut result = Vec::with_capacity(size);
    result.extend_from_slice(&bytes[..first]);
    result.extend_from_slice(edit.new.as_bytes());
    let mut end = first + edit.old.len();
    if let Scope::All = edit.scope {
        let rest = end;
        for offset in occurrences(&bytes[rest..], edit.old) {
            result.extend_from_slice(&bytes[end..rest + offset]);
            result.extend_from_slice(edit.new.as_bytes());
            end = rest + offset + edit.old.len();
        }
    }
    result.extend_from_slice(&bytes[end..]);
    result
}

fn line_at(bytes: &[u8], offset: usize) -> usize {
    bytes[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
}

const MAX_EXCERPT: usize = 4 << 10;

fn change(before: &[u8], after: &[u8], edit: &Edit<'_>, first: usize, count: usize) -> Change {
    let prefix = line_start(before, first);
    let (old_end, new_end) = (first + edit.old.len(), first + edit.new.len());
    let is_whole_file = |text: &str| text.ends_with('\n') || text.is_empty() && first == prefix;
    // Replaced whole lines are shown alone; otherwise the rest of the line is shown, too.
    let excerpt = if is_whole_file(edit.old) && is_whole_file(edit.new) { read_exact } else { to_line_end };
    Change {
        line: line_at(before, first),
        count,
        before: excerpt(before, prefix, old_end),
        after: excerpt(after, prefix, new_end),
    }
}

fn line_start(bytes: &[u8], offset: usize) -> usize {
    let from = offset.saturating_sub(MAX_EXCERPT);
    let prefix = bytes[from..offset].iter().rposition(|byte| *byte == b'\n');
    prefix.map_or(from, |prefix| from + prefix + 1)
}

fn read_exact(bytes: &[u8], prefix: usize, end: usize) -> Vec<u8> {
    bytes[prefix..end.min(prefix + 2 * MAX_EXCERPT)].to_vec()
}

fn to_line_end(bytes: &[u8], prefix: usize, end: usize) -> Vec<u8> {
    let last = bytes.len().min(end + MAX_EXCERPT);
    let rest = bytes[end..last].iter().position(|byte| *byte == b'\n');
    read_exact(bytes, prefix, rest.map_or(last, |rest| end + rest))
}

#[cfg(test)]
mod tests;
