//! A line for a terminal whose width is not known yet.

use sympozium_api::text::printable;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Marks where a text was truncated.
const ELLIPSIS: char = '…';
/// Columns that are left for text, however narrow the terminal and however deep the indentation.
const MIN_COLUMNS: usize = 8;
/// Below this width nothing is aligned, and the indentation is limited.
const NARROW_COLUMNS: usize = 50;
const NARROW_INDENT: usize = 4;

/// The style of a piece of text, if colours are used. Colours add no information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Attention,
}

/// What happens to a line that is wider than the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It is truncated.
    Truncate,
    /// It is wrapped: continuation lines start at `column`; after `lines` lines it is truncated.
    Wrap { column: usize, lines: usize },
}

/// One line. Every text in it passes [`printable`], so a terminal acts on nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pieces: Vec<(Style, String)>,
    fit: Fit,
}

impl Line {
    /// An empty line.
    pub const fn new(fit: Fit) -> Self {
        Self { pieces: Vec::new(), fit }
    }

    /// A line that is truncated at the edge.
    pub const fn truncated() -> Self {
        Self::new(Fit::Truncate)
    }

    /// A line that is wrapped; continuation lines start at `column`.
    pub const fn wrapped(column: usize) -> Self {
        Self::new(Fit::Wrap { column, lines: usize::MAX })
    }

    /// Appends a text.
    #[must_use]
    pub fn add(mut self, style: Style, text: &str) -> Self {
        self.pieces.push((style, printable(text).into_owned()));
        self
    }

    /// Appends a text without a style.
    #[must_use]
    pub fn plain(self, text: &str) -> Self {
        self.add(Style::Plain, text)
    }

    /// Renders the line for a width (`None`: unlimited, if there is no terminal), with or without colours.
    pub fn render(&self, columns: Option<usize>, colours: bool) -> String {
        let squeezed = squeeze_blanks(&self.pieces);
        let (pieces, most) = match columns {
            Some(columns) if columns < NARROW_COLUMNS => (&squeezed, NARROW_INDENT),
            _ => (&self.pieces, usize::MAX),
        };
        let rows = match columns {
            None => vec![pieces.clone()],
            Some(columns) => match self.fit {
                Fit::Truncate => vec![truncate_row(pieces, columns)],
                Fit::Wrap { column, lines } => wrap_row(pieces, columns, column.min(most), lines),
            },
        };
        let mut text = String::new();
        for row in rows {
            let row = trim_row(row);
            for (style, piece) in &row {
                match style.sgr_code() {
                    Some(code) if colours && !piece.is_empty() => {
                        text.push_str(&format!("\u{1b}[{code}m{piece}\u{1b}[0m"));
                    }
                    _ => text.push_str(piece),
                }
            }
            text.push('\n');
        }
        text
    }
}

impl Style {
    const fn sgr_code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Strong => Some("1"),
            Self::Faint => Some("2"),
            Self::Good => Some("32"),
            Self::Bad => Some("31"),
            Self::Attention => Some("33"),
        }
    }
}

type Row = Vec<(Style, String)>;

fn trim_row(mut row: Row) -> Row {
    while let Some((_, last)) = row.last_mut() {
        let end = last.trim_end_matches(' ').len();
        last.truncate(end);
        if end > 0 {
            break;
        }
        row.pop();
    }
    row
}

/// Removes the blanks that align columns.
fn squeeze_blanks(row: &Row) -> Row {
    let (mut blanks, mut has_words) = (0, false);
    let squeezed = row.iter().map(|(style, text)| {
        let mut result = String::with_capacity(text.len());
        for letter in text.chars() {
            blanks = if letter == ' ' { blanks + 1 } else { 0 };
            has_words |= blanks == 0;
            let most = if has_words { 1 } else { NARROW_INDENT };
            if blanks <= most {
                result.push(letter);
            }
        }
        (*style, result)
    });
    squeezed.collect()
}

/// Truncates to a width, with an ellipsis if a part is cut off.
fn truncate_row(row: &Row, columns: usize) -> Row {
    let all: usize = row.iter().map(|(_, text)| text.width()).sum();
    if all <= columns {
        return row.clone();
    }
    let mut left = columns.saturating_sub(1);
    let mut result = Row::new();
    for (style, text) in row {
        let piece = prefix_of_width(text, left);
        left -= piece.width().min(left);
        let is_whole = piece.len() == text.len();
        result.push((*style, piece.to_owned()));
        if !is_whole {
            break;
        }
    }
    if columns > 0 {
        result.push((Style::Plain, ELLIPSIS.to_string()));
    }
    result
}

/// The longest beginning of a text that is at most `columns` wide.
pub fn prefix_of_width(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, character) in text.char_indices() {
        used += character.width().unwrap_or(0);
        if used > columns {
            return &text[..at];
        }
    }
    text
}

/// Wraps to a width, between words, or within a word that is longer than a row.
fn wrap_row(row: &Row, columns: usize, column: usize, lines: usize) -> Vec<Row> {
    // On a narrow terminal text is more important than indentation.
    let column = column.min(columns.saturating_sub(MIN_COLUMNS));
    let mut rows: Vec<Row> = Vec::new();
    let mut current = Row::new();
    let mut used = 0;
    for (style, text) in row {
        for word in text.split_inclusive(' ') {
            let mut word = word;
            let bare = word.trim_end_matches(' ').width();
            let begins = if rows.is_empty() { 0 } else { column };
            if used > begins && used + bare > columns {
                rows.push(std::mem::replace(&mut current, indent_row(column)));
                used = column;
            }
            // A word that is longer than a row.
            while word.trim_end_matches(' ').width() > columns.saturating_sub(used).max(1) {
                let mut piece = prefix_of_width(word, columns.saturating_sub(used).max(1));
                if piece.is_empty() {
                    // A wide character on a terminal with one column.
                    let first = word.chars().next().map_or(0, char::len_utf8);
                    piece = &word[..first];
                }
                current.push((*style, piece.to_owned()));
                word = &word[piece.len()..];
                rows.push(std::mem::replace(&mut current, indent_row(column)));
                used = column;
            }
            current.push((*style, word.to_owned()));
            used += word.width();
        }
    }
    rows.push(current);
    if rows.len() > lines {
        rows.truncate(lines);
        if let Some(last) = rows.last_mut() {
            let mut result = trim_row(std::mem::take(last));
            result.push((Style::Plain, ELLIPSIS.to_string()));
            *last = truncate_row(&result, columns);
        }
    }
    rows
}

fn indent_row(column: usize) -> Row {
    vec![(Style::Plain, " ".repeat(column))]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_ends_at_the_edge() {
        let line = Line::truncated().plain("one ").add(Style::Strong, "日本語");
        assert_eq!(line.render(None, false), "one 日本語\n");
        assert_eq!(line.render(Some(10), false), "one 日本語\n");
        assert_eq!(line.render(Some(9), false), "one 日本…\n");
        assert_eq!(line.render(Some(8), false), "one 日…\n");
        assert_eq!(line.render(Some(1), false), "…\n");
        assert_eq!(line.render(Some(8), true), "one \u{1b}[1m日\u{1b}[0m…\n");
    }

    #[test]
    fn a_line_goes_on_below_where_it_may() {
        let line = Line::wrapped(4).plain("  > ").plain("one two three four");
        assert_eq!(line.render(Some(12), false), "  > one two\n    three\n    four\n");
        let line = Line::wrapped(2).plain("a ").plain(&"x".repeat(12));
        assert_eq!(line.render(Some(10), false), "a\n  xxxxxxxx\n  xxxx\n");
        let most = Fit::Wrap { column: 0, lines: 2 };
        let line = Line::new(most).plain("one two three four five");
        assert_eq!(line.render(Some(9), false), "one two\nthree…\n");
    }

    #[test]
    fn a_narrow_terminal_has_no_room_for_alignment() {
        let line = Line::truncated().plain("  ok       ").plain("    3 ms  read_file");
        assert_eq!(line.render(Some(NARROW_COLUMNS - 1), false), "  ok 3 ms read_file\n");
        let aligned = "  ok           3 ms  read_file\n";
        assert_eq!(line.render(Some(NARROW_COLUMNS), false), aligned);
        assert_eq!(line.render(None, false), aligned);
        let line = Line::wrapped(22).plain(&" ".repeat(22)).plain("a reason in many words");
        assert_eq!(line.render(Some(16), false), "    a reason in\n    many words\n");
    }

    #[test]
    fn nothing_in_a_line_makes_a_terminal_act() {
        let line = Line::truncated().plain("a\u{1b}[2J\r\n\u{202e}b");
        let text = line.render(None, true);
        assert_eq!(text, "a\\u{1b}[2J\\r\\n\\u{202e}b\n");
    }

    proptest! {
        #[test]
        fn rows_fit_whatever_is_in_them(
            texts in proptest::collection::vec("\\PC{0,30}|[a-z ]{0,40}|[日本語🦀 ]{0,20}", 0..5),
            columns in 2_usize..120,
            column in 0_usize..30,
            lines in 1_usize..5,
        ) {
            for fit in [Fit::Truncate, Fit::Wrap { column, lines }] {
                let line = texts.iter().fold(Line::new(fit), |line, text| line.plain(text));
                let text = line.render(Some(columns), false);
                for row in text.lines() {
                    prop_assert!(row.width() <= columns, "{row:?} in {columns}");
                }
                let most = if fit == Fit::Truncate { 1 } else { lines };
                prop_assert!(text.lines().count() <= most);
            }
        }
    }
}
