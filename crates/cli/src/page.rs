//! Text for a terminal: paragraphs and tables that fit its width, whatever manifests contain.
//!
//! Every text passes [`printable`], so that no manifest can move the cursor, hide text or forge a line of the output.

use sympozium_api::text::printable;
use unicode_width::UnicodeWidthStr as _;

/// The default width of terminals. It is fixed, so that two outputs can be compared.
pub const WIDTH: usize = 80;

/// The minimum width of a table's column when others need room.
const MIN_COLUMN_WIDTH: usize = 8;

/// Blanks between two columns of a table.
const GAP: usize = 2;

#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Adds a heading, preceded by an empty line.
    pub fn section(&mut self, title: &str) {
        self.blank_line();
        self.paragraph(0, &title.to_uppercase());
    }

    /// Adds an empty line, unless the page is empty.
    pub fn blank_line(&mut self) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
    }

    /// Adds a paragraph, indented by `indent` columns. Continuation lines are indented by two more, so that no text of
    /// a manifest can start where a line of ours starts.
    pub fn paragraph(&mut self, indent: usize, text: &str) {
        self.wrap(indent, "", 2, text);
    }

    /// Adds a paragraph after a mark such as `- `; continuation lines are aligned with its first word.
    pub fn list_item(&mut self, indent: usize, mark: &str, text: &str) {
        self.wrap(indent, mark, mark.width(), text);
    }

    fn wrap(&mut self, indent: usize, mark: &str, further: usize, text: &str) {
        let inner = indent + further.max(mark.width());
        let lines = wrap_text(&printable(text), WIDTH.saturating_sub(inner));
        for (number, line) in lines.iter().enumerate() {
            let start = match number {
                0 => format!("{:indent$}{mark}", ""),
                _ => " ".repeat(inner),
            };
            self.push_line(&format!("{start}{line}"));
        }
    }

    /// Adds a table. Columns are as wide as their cells; if that is too wide, the widest columns are wrapped.
    pub fn table(&mut self, titles: &[&str], rows: &[Vec<String>]) {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| printable(cell).into_owned()).collect()).collect();
        let widths = column_widths(titles, &rows);
        let titles = titles.iter().map(|it| (*it).to_owned()).collect();
        for row in std::iter::once(&titles).chain(&rows) {
            self.row(&widths, row);
        }
    }

    fn row(&mut self, widths: &[usize], row: &[String]) {
        let cells: Vec<Vec<String>> = row.iter().zip(widths).map(|(cell, width)| wrap_text(cell, *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for number in 0..height {
            let mut line = String::from("  ");
            for (cell, width) in cells.iter().zip(widths) {
                let part = cell.get(number).map_or("", String::as_str);
                line.push_str(part);
                let missing = width.saturating_sub(part.width()) + GAP;
                line.extend(std::iter::repeat_n(' ', missing));
            }
            self.push_line(&line);
        }
    }

    fn push_line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    pub fn finish(self) -> String {
        self.text
    }
}

/// The widths of the columns: that of the widest cell; while the sum is too large, the widest column shrinks.
fn column_widths(titles: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = titles
        .iter()
        .enumerate()
        .map(|(number, title)| {
            let cells = rows.iter().filter_map(|row| row.get(number));
            let widest = cells.map(|it| it.width()).max().unwrap_or(0);
            widest.max(title.width())
        })
        .collect();
    let room = WIDTH.saturating_sub(GAP * widths.len());
    while widths.iter().sum::<usize>() > room {
        let Some(widest) = widths.iter_mut().max() else {
            break;
        };
        if *widest <= MIN_COLUMN_WIDTH {
            break;
        }
        *widest -= 1;
    }
    widths
}

/// Breaks a text into lines of at most `width` columns, between words, or within a word that is longer.
fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let gap = usize::from(!line.is_empty());
        if !line.is_empty() && line.width() + gap + word.width() > width {
            lines.push(std::mem::take(&mut line));
        } else if gap == 1 {
            line.push(' ');
        }
        if word.width() <= width {
            line.push_str(word);
            continue;
        }
        for piece in split_word(word, width) {
            if !line.is_empty() && line.width() + piece.width() > width {
                lines.push(std::mem::take(&mut line));
            }
            line.push_str(piece);
        }
    }
    lines.push(line);
    lines
}

/// Splits a long word into pieces that fit: after separators such as slashes if there are any, otherwise by character.
fn split_word(word: &str, width: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    for piece in word.split_inclusive(['/', ':', ',', '@', '-', '_']) {
        if piece.width() <= width {
            pieces.push(piece);
        } else {
            let ends = piece.char_indices().map(|(at, it)| (at, at + it.len_utf8()));
            pieces.extend(ends.map(|(start, end)| &piece[start..end]));
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_within_long_ones() {
        assert_eq!(wrap_text("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap_text("a abcdefghij b", 4), ["a", "abcd", "efgh", "ij b"]);
        assert_eq!(wrap_text("", 4), [""]);
        assert_eq!(wrap_text("example.com/team/image:1.0", 14), ["example.com/", "team/image:1.0"]);
        // A character can take two columns.
        assert_eq!(wrap_text("日本語", 4), ["日本", "語"]);
    }

    #[test]
    fn tables_fit_and_keep_their_columns() {
        let mut page = Page::default();
        let long = "word ".repeat(30);
        page.table(&["NAME", "WHAT"], &[vec!["日本".to_owned(), long], vec!["b".to_owned(), "x".repeat(200)]]);
        let text = page.finish();
        assert!(text.lines().all(|line| line.width() <= WIDTH), "{text}");
        let starts: Vec<&str> = text.lines().take(2).collect();
        assert_eq!(starts[0], "  NAME  WHAT");
        assert!(starts[1].starts_with("  日本  word word"), "{text}");
    }

    #[test]
    fn line_breaks_in_values_are_escaped() {
        let mut page = Page::default();
        page.paragraph(0, "a\nRUN team/other\r\u{1b}[2J\u{2028}b");
        page.table(&["A"], &[vec!["x\ny".to_owned()]]);
        assert_eq!(page.finish(), "a\\nRUN team/other\\r\\u{1b}[2J\\u{2028}b\n  A\n  x\\ny\n");
    }
}
