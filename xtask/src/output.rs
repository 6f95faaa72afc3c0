//! What a person sees: results on standard output, everything else on standard error.

use std::io::Write as _;
use std::process::ExitCode;

/// Prints a line of results. A closed pipe is the reader's choice and no reason to stop.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Says what is going on.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// An error with the next thing to try.
#[derive(Debug)]
pub struct Hinted {
    message: String,
    hint: String,
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// An error with the next thing to try.
pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Hinted { message: message.into(), hint: hint.into() }.into()
}

/// Prints an error as `error: …` with its causes, then its `hint: …`; exit code 1.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    note(&format!("error: {error:#}"));
    if let Some(Hinted { hint, .. }) = error.chain().find_map(|cause| cause.downcast_ref::<Hinted>()) {
        note(&format!("hint: {hint}"));
    }
    ExitCode::FAILURE
}

/// Rows as columns of equal width, the first row being the head.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "b"], ["long", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a     b\nlong  x\n");
    }
}
