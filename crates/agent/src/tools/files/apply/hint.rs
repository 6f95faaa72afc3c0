//! Why a text that is to be replaced may not have been found, so that the model finds it next time.

use super::{Edit, find, line_at};
use crate::tools::files::broken::Unbroken;

/// Why a text may not have been found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// It is there, before an earlier edit.
    ChangedBefore,
    /// The file has CRLF where the text has LF.
    LineEnds {
        line: usize,
    },
    /// It is there without a space that was put in when the file was shown.
    Broken {
        line: usize,
        bracket: char,
    },
    /// It is there but for white space at the ends of lines.
    WhiteSpace {
        line: usize,
    },
    /// What was to stand there does already.
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
                ": without the space after `{bracket}` it is at line {line}; such a space is put in when a file is shown to you, and is \
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
    /// For a text that is not in `current`, which earlier edits made of `original`.
    pub fn of(original: &[u8], current: &[u8], edit: &Edit<'_>) -> Self {
        let old = edit.old;
        if find(original, old).is_some() {
            return Self::ChangedBefore;
        }
        if old.contains('\n') && !old.contains("\r\n") {
            let place = find(current, &old.replace('\n', "\r\n"));
            if let Some(place) = place {
                let line = line_at(current, place);
                return Self::LineEnds { line };
            }
        }
        if let Some(unbroken) = Unbroken::of(old)
            && let Some(place) = find(current, &unbroken.text)
        {
            return Self::Broken { line: line_at(current, place), bracket: unbroken.bracket };
        }
        if let Some(line) = find_trimmed(current, old) {
            return Self::WhiteSpace { line };
        }
        match find(current, edit.new) {
            // A new text of a few characters is somewhere in most files.
            Some(place) if edit.new.trim().len() > 8 => Self::Done { line: line_at(current, place) },
            _ => Self::Nothing,
        }
    }
}

/// The line at which `text` is, when white space at the ends of lines is not looked at.
fn find_trimmed(bytes: &[u8], text: &str) -> Option<usize> {
    let wanted = trimmed(text.trim());
    if wanted.len() <= 2 {
        return None;
    }
    let all = trimmed(&String::from_utf8_lossy(bytes));
    let inner = wanted.trim_matches('\n');
    // Whole lines first; else a part of some.
    let place = all.find(&wanted).or_else(|| {
        let place = all.find(inner)?;
        Some(place.saturating_sub(1))
    })?;
    let before = &all.as_bytes()[..=place];
    Some(before.iter().filter(|byte| **byte == b'\n').count())
}

/// The lines without white space at their ends, each after a line end and one more at the end of all.
fn trimmed(text: &str) -> String {
    let mut made = String::with_capacity(text.len() + 2);
    for line in text.lines() {
        made.push('\n');
        made.push_str(line.trim());
    }
    made.push('\n');
    made
}
