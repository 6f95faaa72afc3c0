//! Why a text may not have been found, so that the model can correct its edit.

use super::{Edit, find, line_at};
use crate::tools::files::broken_tokens::RestoredText;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// It was there before an earlier edit of the call.
    ChangedBefore,
    LineEnds {
        line: usize,
    },
    /// It is there without the space that [`crate::tools::chat_tokens`] inserts.
    Broken {
        line: usize,
        bracket: char,
    },
    /// It is there but for white space at the ends of lines.
    WhiteSpace {
        line: usize,
    },
    /// The replacement is there already.
    Done {
        line: usize,
    },
    Nothing,
}

impl std::fmt::Display for Hint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ChangedBefore => formatter.write_str(
                ": it was there before an earlier edit of this call changed it; every edit sees what the ones before made",
            ),
            Self::LineEnds { line } => write!(
                formatter,
                ": the file's lines end in CRLF; with \\r\\n in place of \\n it is at line {line}"
            ),
            Self::Broken { line, bracket } => write!(
                formatter,
                ": without the space after `{bracket}` it is at line {line}; such a space is inserted when a file is shown to you, and is \
                 not in the file: leave it out, in new_string too"
            ),
            Self::WhiteSpace { line } => write!(
                formatter,
                ": but for indentation or white space at line ends it is at line {line}; read that line and copy it exactly"
            ),
            Self::Done { line } => write!(
                formatter,
                ", and new_string is already there at line {line}: it may have been replaced before"
            ),
            Self::Nothing => formatter.write_str("; read the file again and copy the text exactly"),
        }
    }
}

impl Hint {
    pub fn of(original: &[u8], current: &[u8], edit: &Edit<'_>) -> Self {
        let old = edit.old;
        if find(original, old).is_some() {
            return Self::ChangedBefore;
        }
        if old.contains('\n') && !old.contains("\r\n") {
            let offset = find(current, &old.replace('\n', "\r\n"));
            if let Some(offset) = offset {
                let line = line_at(current, offset);
                return Self::LineEnds { line };
            }
        }
        if let Some(unbroken) = RestoredText::of(old)
            && let Some(offset) = find(current, &unbroken.text)
        {
            return Self::Broken { line: line_at(current, offset), bracket: unbroken.bracket };
        }
        if let Some(line) = find_trimmed(current, old) {
            return Self::WhiteSpace { line };
        }
        match find(current, edit.new) {
            // A text of a few characters occurs in most files.
            Some(offset) if edit.new.trim().len() > 8 => Self::Done { line: line_at(current, offset) },
            _ => Self::Nothing,
        }
    }
}

/// Ignores white space at the ends of lines.
fn find_trimmed(bytes: &[u8], text: &str) -> Option<usize> {
    let requested = trimmed(text.trim());
    if requested.len() <= 2 {
        return None;
    }
    let all = trimmed(&String::from_utf8_lossy(bytes));
    let inner = requested.trim_matches('\n');
    // Prefer whole lines.
    let offset = all.find(&requested).or_else(|| {
        let offset = all.find(inner)?;
        Some(offset.saturating_sub(1))
    })?;
    let before = &all.as_bytes()[..=offset];
    Some(before.iter().filter(|byte| **byte == b'\n').count())
}

/// Trims each line; every line starts with a line break, and one more follows the last.
fn trimmed(text: &str) -> String {
    let mut result = String::with_capacity(text.len() + 2);
    for line in text.lines() {
        result.push('\n');
        result.push_str(line.trim());
    }
    result.push('\n');
    result
}
