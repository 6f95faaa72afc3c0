//! The core of `edit_file`: pieces of text replaced in bytes, all of them or none. No I/O.
//!
//! The bytes may be in any encoding that has ASCII in it; what is looked for is UTF-8. A piece of UTF-8 starts with a byte that
//! never continues a character and consists of whole characters, so wherever it occurs it lies inside one stretch of valid
//! UTF-8. That is why the standard library's search in strings, which is linear whatever the text, finds all of them.

mod hint;

use std::borrow::Cow;

pub use hint::Hint;

use super::MOST_WRITTEN;

/// Most lines of a place that an error names, and of matches that it counts up to.
const PLACES: usize = 5;
/// Most bytes of a text that is looked for.
const MOST_OLD: usize = 1 << 20;
/// Most bytes that the edits of a call go through, one after the other: some seconds.
const MOST_WORK: usize = 1 << 30;

/// One replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit<'a> {
    pub old: &'a str,
    pub new: &'a str,
    pub scope: Scope,
}

/// How often the text may be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Once,
    All,
}

/// What an edit did, for showing it.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// The line of the first replacement, when it was made.
    pub line: usize,
    pub count: usize,
    /// The lines around the first replacement, before and after.
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

/// Why nothing was changed. Edits and lines are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("edit {0}: old_string is empty; name the text that is to be replaced")]
    Empty(usize),
    #[error("edit {0}: old_string and new_string are the same; leave the edit out")]
    Same(usize),
    #[error("edit {0}: old_string has more than {MOST_OLD} bytes; name a shorter piece")]
    TooLong(usize),
    #[error("edit {edit}: old_string was not found{hint}")]
    NotFound { edit: usize, hint: Hint },
    #[error(
        "edit {edit}: old_string is there {count} times (lines {}); add lines around it so that it is there once, or set replace_all",
        lines(.places, *.count)
    )]
    Ambiguous { edit: usize, count: usize, places: Vec<usize> },
    #[error("edit {0}: these are too many edits for a file of this size; make them in several calls")]
    TooMuch(usize),
    #[error("edit {0}: the file would have more than {MOST_WRITTEN} bytes")]
    TooLarge(usize),
}

fn lines(places: &[usize], count: usize) -> String {
    let mut text: Vec<String> = places.iter().map(usize::to_string).collect();
    if count > places.len() {
        text.push("…".to_owned());
    }
    text.join(", ")
}

/// As [`apply_with`], without reporting changes.
#[cfg(any(test, feature = "fuzzing"))]
pub fn apply(bytes: &[u8], edits: &[Edit<'_>]) -> Result<Vec<u8>, EditError> {
    apply_with(bytes, edits, &mut |_| ())
}

/// Applies the edits in order, each to the result of the one before, and reports each change. All of them, or an error.
///
/// The work is linear in the bytes for each edit.
///
/// # Errors
/// For the first edit that cannot be applied.
pub fn apply_with(bytes: &[u8], edits: &[Edit<'_>], tell: &mut dyn FnMut(Change)) -> Result<Vec<u8>, EditError> {
    apply_within(MOST_WORK, bytes, edits, tell)
}

fn apply_within(
    most_work: usize,
    bytes: &[u8],
    edits: &[Edit<'_>],
    tell: &mut dyn FnMut(Change),
) -> Result<Vec<u8>, EditError> {
    let mut current = Cow::Borrowed(bytes);
    let mut work = 0;
    for (index, edit) in edits.iter().enumerate() {
        let number = index + 1;
        check(number, edit)?;
        work += current.len();
        if work > most_work {
            return Err(EditError::TooMuch(number));
        }
        let found = Found::of(&current, edit);
        let Some(first) = found.first else {
            let hint = Hint::of(bytes, &current, edit);
            return Err(EditError::NotFound { edit: number, hint });
        };
        if found.count > 1 && edit.scope == Scope::Once {
            return Err(EditError::Ambiguous { edit: number, count: found.count, places: found.lines(&current) });
        }
        let size = current.len() - found.count * edit.old.len();
        let size = edit.new.len().checked_mul(found.count).map(|new| size.saturating_add(new));
        let Some(size) = size.filter(|size| *size <= MOST_WRITTEN) else {
            return Err(EditError::TooLarge(number));
        };
        let next = replace(&current, edit, first, size);
        tell(change(&current, &next, edit, first, found.count));
        current = Cow::Owned(next);
    }
    Ok(current.into_owned())
}

fn check(number: usize, edit: &Edit<'_>) -> Result<(), EditError> {
    if edit.old.is_empty() {
        Err(EditError::Empty(number))
    } else if edit.old.len() > MOST_OLD {
        Err(EditError::TooLong(number))
    } else if edit.old == edit.new {
        Err(EditError::Same(number))
    } else {
        Ok(())
    }
}

/// Where a text is.
struct Found {
    first: Option<usize>,
    count: usize,
    places: Vec<usize>,
}

impl Found {
    fn of(bytes: &[u8], edit: &Edit<'_>) -> Self {
        if let Scope::Once = edit.scope {
            return Self::once(bytes, edit.old);
        }
        Self::all(bytes, edit.old)
    }

    /// Looks no further than it must: one time through the bytes where the text is there once.
    fn once(bytes: &[u8], old: &str) -> Self {
        let first = find(bytes, old);
        let second = first.and_then(|first| {
            // `aa` is in `aaa` twice, and which one is meant is not clear.
            let next = first + old.chars().next().map_or(1, char::len_utf8);
            Some(next + find(&bytes[next..], old)?)
        });
        let Some(second) = second else {
            return Self { first, count: usize::from(first.is_some()), places: first.into_iter().collect() };
        };
        let mut found = Self::all(bytes, old);
        if found.count == 1 {
            found.count = 2;
            found.places.push(second);
        }
        found
    }

    fn all(bytes: &[u8], old: &str) -> Self {
        let mut count = 0;
        let mut places = Vec::new();
        for place in occurrences(bytes, old) {
            count += 1;
            if places.len() < PLACES {
                places.push(place);
            }
        }
        Self { first: places.first().copied(), count, places }
    }

    fn lines(&self, bytes: &[u8]) -> Vec<usize> {
        self.places.iter().map(|at| line_at(bytes, *at)).collect()
    }
}

/// Where `text` is, without overlaps, from the start.
fn occurrences<'b>(bytes: &'b [u8], text: &'b str) -> impl Iterator<Item = usize> + 'b {
    let mut end = 0;
    bytes
        .utf8_chunks()
        .map(move |chunk| {
            let start = end;
            end += chunk.valid().len() + chunk.invalid().len();
            (start, chunk.valid())
        })
        // Preparing a search costs as much as the text is long; not where it cannot be.
        .filter(|(_, valid)| valid.len() >= text.len())
        .flat_map(move |(start, valid)| valid.match_indices(text).map(move |(at, _)| start + at))
}

fn find(bytes: &[u8], text: &str) -> Option<usize> {
    occurrences(bytes, text).next()
}

/// Makes an edit that was found, first at `first`, into so many bytes.
fn replace(bytes: &[u8], edit: &Edit<'_>, first: usize, size: usize) -> Vec<u8> {
    let mut made = Vec::with_capacity(size);
    made.extend_from_slice(&bytes[..first]);
    made.extend_from_slice(edit.new.as_bytes());
    let mut end = first + edit.old.len();
    if let Scope::All = edit.scope {
        let rest = end;
        for place in occurrences(&bytes[rest..], edit.old) {
            made.extend_from_slice(&bytes[end..rest + place]);
            made.extend_from_slice(edit.new.as_bytes());
            end = rest + place + edit.old.len();
        }
    }
    made.extend_from_slice(&bytes[end..]);
    made
}

/// The number of the line that the byte at `place` is in.
fn line_at(bytes: &[u8], place: usize) -> usize {
    bytes[..place].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Most bytes of an excerpt on either side of a replacement, and of one itself.
const EXCERPT: usize = 4 << 10;

fn change(before: &[u8], after: &[u8], edit: &Edit<'_>, first: usize, count: usize) -> Change {
    let start = line_start(before, first);
    let (old_end, new_end) = (first + edit.old.len(), first + edit.new.len());
    let is_whole = |text: &str| text.ends_with('\n') || text.is_empty() && first == start;
    // Whole lines for whole lines need nothing after them; all else is shown with the rest of its line.
    let excerpt = if is_whole(edit.old) && is_whole(edit.new) { exactly } else { to_line_end };
    Change {
        line: line_at(before, first),
        count,
        before: excerpt(before, start, old_end),
        after: excerpt(after, start, new_end),
    }
}

fn line_start(bytes: &[u8], place: usize) -> usize {
    let from = place.saturating_sub(EXCERPT);
    let start = bytes[from..place].iter().rposition(|byte| *byte == b'\n');
    start.map_or(from, |start| from + start + 1)
}

fn exactly(bytes: &[u8], start: usize, end: usize) -> Vec<u8> {
    bytes[start..end.min(start + 2 * EXCERPT)].to_vec()
}

/// With the rest of the line that `end` is in.
fn to_line_end(bytes: &[u8], start: usize, end: usize) -> Vec<u8> {
    let last = bytes.len().min(end + EXCERPT);
    let rest = bytes[end..last].iter().position(|byte| *byte == b'\n');
    exactly(bytes, start, rest.map_or(last, |rest| end + rest))
}

#[cfg(test)]
mod tests;
