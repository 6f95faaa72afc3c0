//! What is wrong in a file, before anybody knows what the file is about.

use sympozium_api::text;

use super::limits::MAX_FINDINGS;
use super::tree::Mark;

/// Whether a terminal shows a character for what it is.
pub use sympozium_api::text::is_visible as is_printable;

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

/// `value` in backquotes, fit for a terminal: cut where it is long, and with every control character escaped, because
/// a manifest must not be able to repaint the screen of whoever checks it.
pub fn quoted(value: &str) -> String {
    let mut shown = String::from("`");
    for (index, character) in value.chars().enumerate() {
        if index == SHOWN_CHARACTERS {
            shown.push('…');
            break;
        }
        text::push_escaped(&mut shown, character);
    }
    shown.push('`');
    shown
}

/// The whole of `value`, with every character escaped that is not seen.
pub fn printable(value: &str) -> String {
    text::escape(value).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_cannot_repaint_a_terminal() {
        assert_eq!(quoted("a\u{1b}[2Jb\n"), "`a\\u{1b}[2Jb\\n`");
        assert_eq!(quoted("x\u{202e}y"), "`x\\u{202e}y`");
        assert_eq!(printable("naïve\r"), "naïve\\r");
        // Blank, though letters and marks by their category.
        assert_eq!(printable("\u{2800}\u{17b4}\u{fe01}"), "\\u{2800}\\u{17b4}\\u{fe01}");
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
