//! What is wrong in a file, before anybody knows what the file is about.

use super::limits::MAX_FINDINGS;
use super::tree::Mark;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub severity: Severity,
    pub at: Mark,
    /// A short name that stays the same, for filters and searches.
    pub rule: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

impl Problem {
    pub fn error(rule: &'static str, at: Mark, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, at, rule, message: message.into(), hint: None }
    }

    pub fn warning(rule: &'static str, at: Mark, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(rule, at, message) }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The problems of one file. A file can be wrong in a million places: the first ones are kept, the rest counted.
#[derive(Debug, Default)]
pub struct Problems {
    pub kept: Vec<Problem>,
    pub errors_left_out: usize,
    pub warnings_left_out: usize,
}

impl Problems {
    pub fn add(&mut self, problem: Problem) {
        if self.kept.len() < MAX_FINDINGS {
            self.kept.push(problem);
            return;
        }
        match problem.severity {
            Severity::Error => self.errors_left_out += 1,
            Severity::Warning => self.warnings_left_out += 1,
        }
    }
}

/// Characters of a value that a message shows.
const SHOWN_CHARACTERS: usize = 60;

/// `text` in backquotes, fit for a terminal: cut where it is long, and with every control character escaped, because
/// a manifest must not be able to repaint the screen of whoever checks it.
pub fn quoted(text: &str) -> String {
    let mut shown = String::from("`");
    for (index, character) in text.chars().enumerate() {
        if index == SHOWN_CHARACTERS {
            shown.push('…');
            break;
        }
        push_printable(&mut shown, character);
    }
    shown.push('`');
    shown
}

/// The whole of `text`, with control characters escaped.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|it| push_printable(&mut shown, it));
    shown
}

fn push_printable(shown: &mut String, character: char) {
    if is_printable(character) {
        shown.push(character);
    } else {
        shown.extend(character.escape_default());
    }
}

/// Whether a terminal shows a character for what it is: it moves nothing, turns no line and is not invisible. The marks
/// that turn the direction of text can make one line look like another, and what is not seen cannot be compared.
pub fn is_printable(character: char) -> bool {
    let is_hidden = matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !character.is_control() && !is_hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_cannot_repaint_a_terminal() {
        assert_eq!(quoted("a\u{1b}[2Jb\n"), "`a\\u{1b}[2Jb\\n`");
        assert_eq!(quoted("x\u{202e}y"), "`x\\u{202e}y`");
        assert_eq!(printable("naïve\r"), "naïve\\r");
    }

    #[test]
    fn what_is_long_is_cut() {
        assert_eq!(quoted(&"é".repeat(60)), format!("`{}`", "é".repeat(60)));
        assert_eq!(quoted(&"é".repeat(61)), format!("`{}…`", "é".repeat(60)));
    }

    #[test]
    fn problems_beyond_the_bound_are_counted() {
        let mut problems = Problems::default();
        for _ in 0..MAX_FINDINGS + 2 {
            problems.add(Problem::error("x", Mark::START, ""));
        }
        problems.add(Problem::warning("x", Mark::START, ""));
        assert_eq!(problems.kept.len(), MAX_FINDINGS);
        assert_eq!((problems.errors_left_out, problems.warnings_left_out), (2, 1));
    }
}
