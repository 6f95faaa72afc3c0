//! Tables and lines for a terminal. Text of models and tools is escaped.

use std::io::{self, StdoutLock, Write as _};

use anyhow::Context as _;
use sympozium_api::text::{Columns, printable, truncate};
use unicode_width::UnicodeWidthStr as _;

use crate::failure::Failure;

/// The maximum width of a cell: a name in a manifest may be long, and a row is one line.
const MAX_CELL: Columns = Columns(40);
/// Replaces a tab.
const TAB_BLANKS: &str = "    ";

/// Formats a table: one line per row, each column as wide as its widest cell. The last column is not truncated.
pub fn format_table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let last = titles.len().saturating_sub(1);
    let cells = |row: &[String]| -> Vec<String> {
        let format_cell = |(column, cell): (usize, &String)| match column == last {
            true => printable(cell).into_owned(),
            false => truncate(printable(cell), MAX_CELL).into_owned(),
        };
        row.iter().enumerate().map(format_cell).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| cells(row)).collect();
    let titles: Vec<String> = titles.iter().map(|title| title.to_uppercase()).collect();
    let all = || std::iter::once(&titles).chain(&rows);
    let width = |column: usize| {
        let widths = all().filter_map(|row| row.get(column)).map(|it| it.width());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width()) + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats foreign text as lines that begin with `margin`. Line breaks stay; other characters that a terminal would
/// act on are escaped.
pub fn indent_lines(margin: &str, text: &str) -> String {
    let mut indented = String::new();
    for line in text.trim_end().split('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let line = printable(line.replace('\t', TAB_BLANKS));
        indented.push_str(format!("{margin}{line}").trim_end());
        indented.push('\n');
    }
    indented
}

/// Buffered output to stdout, locked while this exists.
pub struct Printer {
    stdout: StdoutLock<'static>,
}

impl Printer {
    pub fn new() -> Self {
        Self { stdout: io::stdout().lock() }
    }

    pub fn print(&mut self, text: &str) -> io::Result<()> {
        self.stdout.write_all(text.as_bytes())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

/// A reader that closes the pipe early is not a failure.
pub fn ignore_broken_pipe(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other
            .context("cannot write to stdout")
            .map_err(|error| Failure::new(error, "check that the disk of the output is not full")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_one_line() {
        let rows = vec![vec!["a\nb\u{1b}[2J".to_owned(), "x".repeat(50)], vec!["é".repeat(50), "y".to_owned()]];
        let name = format!("{}…", "é".repeat(39));
        let expected = format!(
            "NAME{}  LAST\na\\nb\\u{{1b}}[2J{}  {}\n{name}  y\n",
            " ".repeat(36),
            " ".repeat(27),
            "x".repeat(50),
        );
        assert_eq!(format_table(&["name", "last"], &rows), expected);
    }

    #[test]
    fn wide_characters_count_as_two_columns() {
        assert_eq!(truncate("日本語日本語", Columns(7)), "日本語…");
        assert_eq!(truncate("short", Columns(7)), "short");
    }

    #[test]
    fn foreign_lines_are_escaped_and_indented() {
        let text = "one\r\n\ttwo\rthree\u{202e}\n\nfour\n\n";
        let expected = "| one\n|     two\\rthree\\u{202e}\n|\n| four\n";
        assert_eq!(indent_lines("| ", text), expected);
    }
}
