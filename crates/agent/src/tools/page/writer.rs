//! Lays out text: collapses white space, writes lines, lists, quotes and rows of tables.
//!
//! The separation between two words is decided when the second one comes, so nothing is written after the last word.

use sympozium_api::text::is_prose;

use super::bounded_text::BoundedText;

/// Indentation stops at this depth.
const MAX_LEVELS: usize = 8;

/// Most consecutive empty cells.
const MAX_EMPTY_CELLS: usize = 16;

/// The separation before the next word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Break {
    None,
    Space,
    Line,
    Paragraph,
}

/// The prefix of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    None,
    Text(&'static str),
    Number(u32),
}

#[derive(Debug)]
pub struct Writer {
    output: BoundedText,
    pending: Break,
    marker: Marker,
    /// Cells that began since the last word of this row.
    cells: usize,
    row: bool,
    /// Whether the cell is still empty.
    cell_is_empty: bool,
    /// The next number of each open list; `None` for one without numbers.
    lists: Vec<Option<u32>>,
    /// Whether the outermost list has no item yet.
    list_is_empty: bool,
    /// Open lists beyond `MAX_LEVELS`.
    lists_beyond_max: usize,
    quotes: usize,
    /// Open `pre` elements.
    literal: usize,
    /// Whether the code fence is written.
    fenced: bool,
    line_start: bool,
    link: Link,
}

#[derive(Debug)]
enum Link {
    None,
    /// Its text has not begun.
    Waiting(String),
    Open(String),
}

impl Writer {
    pub fn new(output: BoundedText) -> Self {
        Self {
            output,
            pending: Break::None,
            marker: Marker::None,
            cells: 0,
            row: false,
            cell_is_empty: false,
            lists: Vec::new(),
            list_is_empty: false,
            lists_beyond_max: 0,
            quotes: 0,
            literal: 0,
            fenced: false,
            line_start: true,
            link: Link::None,
        }
    }

    pub fn end(mut self) -> BoundedText {
        self.link_end();
        self.literal = self.literal.min(1);
        self.literal_end();
        self.output
    }

    pub fn is_empty(&self) -> bool {
        self.output.is_empty()
    }

    /// Requires at least this separation before the next word.
    pub fn break_at_least(&mut self, at_least: Break) {
        // The first block of an item, heading or cell stays on its line.
        let begins = self.marker != Marker::None || self.cell_is_empty;
        if !(begins && at_least > Break::Space) {
            self.pending = self.pending.max(at_least);
        }
    }

    pub fn heading(&mut self, marker: &'static str) {
        self.break_at_least(Break::Paragraph);
        if self.marker == Marker::None {
            self.marker = Marker::Text(marker);
        }
    }

    /// An empty block leaves no marker behind.
    pub fn block_end(&mut self) {
        self.marker = Marker::None;
        self.break_at_least(Break::Paragraph);
    }

    pub fn list(&mut self, first: Option<u32>) {
        let outer = self.lists.is_empty();
        self.list_is_empty = outer;
        self.marker = Marker::None;
        self.break_at_least(if outer { Break::Paragraph } else { Break::Line });
        if self.lists.len() < MAX_LEVELS {
            self.lists.push(first);
        } else {
            self.lists_beyond_max += 1;
        }
    }

    pub fn list_end(&mut self) {
        self.marker = Marker::None;
        if self.lists_beyond_max > 0 {
            self.lists_beyond_max -= 1;
        } else {
            self.lists.pop();
        }
        self.break_at_least(if self.lists.is_empty() { Break::Paragraph } else { Break::Line });
    }

    pub fn item(&mut self) {
        self.marker = Marker::None;
        // Items of one list are not separated by blank lines.
        self.pending =
            if std::mem::take(&mut self.list_is_empty) { self.pending.max(Break::Line) } else { Break::Line };
        self.marker = match self.lists.last_mut() {
            Some(Some(number)) => {
                let this = *number;
                *number = number.saturating_add(1);
                Marker::Number(this)
            }
            _ => Marker::Text("- "),
        };
    }

    pub fn quote(&mut self) {
        self.break_at_least(Break::Paragraph);
        self.quotes += 1;
    }

    pub fn quote_end(&mut self) {
        self.quotes = self.quotes.saturating_sub(1);
        self.break_at_least(Break::Paragraph);
    }

    pub fn row(&mut self) {
        if self.row {
            // The last block of a row adds no gap.
            self.pending = self.pending.min(Break::Line);
        }
        self.cells = 0;
        self.row = false;
        self.cell_is_empty = false;
        self.break_at_least(Break::Line);
    }

    pub fn cell(&mut self) {
        if self.row {
            // The last block of a cell does not end the row.
            self.pending = Break::None;
            self.cells = (self.cells + 1).min(MAX_EMPTY_CELLS);
        } else {
            self.pending = self.pending.max(Break::Line);
        }
        self.row = true;
        self.cell_is_empty = true;
    }

    pub fn table_end(&mut self) {
        self.row();
        self.break_at_least(Break::Paragraph);
    }

    pub fn literal(&mut self) {
        if self.literal == 0 {
            self.break_at_least(Break::Paragraph);
        }
        self.literal += 1;
    }

    pub fn literal_end(&mut self) {
        if self.literal == 1 && self.fenced {
            if !self.line_start {
                self.new_line();
            }
            self.output.push("```");
            self.line_start = false;
            self.fenced = false;
        }
        self.literal = self.literal.saturating_sub(1);
        if self.literal == 0 {
            self.pending = Break::None;
            self.break_at_least(Break::Paragraph);
        }
    }

    pub fn is_literal(&self) -> bool {
        self.literal > 0
    }

    /// Starts a link and ends an open one.
    pub fn link(&mut self, target: Option<String>) {
        self.link_end();
        if let Some(target) = target
            && self.literal == 0
        {
            self.link = Link::Waiting(target);
        }
    }

    pub fn link_end(&mut self) {
        // Directly after the last word: pending separation follows the link.
        if let Link::Open(target) = std::mem::replace(&mut self.link, Link::None) {
            self.output.push("](");
            self.output.push(&target);
            self.output.push(")");
        }
    }

    /// Text that is attached to the next word.
    pub fn word(&mut self, word: &str) {
        self.write_pending();
        self.output.push(word);
    }

    /// Text that is attached to the last word.
    pub fn close_word(&mut self, word: &str) {
        if !self.output.is_empty() {
            self.output.push(word);
        }
    }

    pub fn character(&mut self, character: char) {
        if self.literal > 0 {
            return self.literal_character(character);
        }
        if character.is_whitespace() {
            self.pending = self.pending.max(Break::Space);
        } else if is_prose(character) {
            self.write_pending();
            self.output.push_char(character);
        }
    }

    fn literal_character(&mut self, character: char) {
        if character == '\n' && !self.fenced {
            return;
        }
        if character != '\n' && character != '\t' && !is_prose(character) {
            return;
        }
        if !self.fenced {
            self.write_pending();
            self.output.push("```");
            self.fenced = true;
            self.new_line();
        }
        if character == '\n' {
            self.new_line();
            return;
        }
        if self.pending >= Break::Line {
            self.new_line();
        }
        self.pending = Break::None;
        self.output.push_char(character);
        self.line_start = false;
    }

    fn write_pending(&mut self) {
        let pending = std::mem::replace(&mut self.pending, Break::None);
        self.cell_is_empty = false;
        if self.cells > 0 {
            // A row is one line, so blocks in cells have no markers.
            self.marker = Marker::None;
            for _ in 0..std::mem::take(&mut self.cells) {
                self.output.push(" | ");
            }
        } else if self.output.is_empty() {
            self.marker();
        } else if pending >= Break::Line {
            if pending == Break::Paragraph {
                self.output.push("\n");
            }
            self.new_line();
            self.marker();
        } else if pending == Break::Space {
            self.output.push(" ");
        }
        self.line_start = false;
        self.link = match std::mem::replace(&mut self.link, Link::None) {
            Link::Waiting(target) => {
                self.output.push("[");
                Link::Open(target)
            }
            other => other,
        };
    }

    fn new_line(&mut self) {
        self.output.push("\n");
        for _ in 0..self.quotes.min(MAX_LEVELS) {
            self.output.push("> ");
        }
        // An item's first line is indented less than what follows in it.
        let levels = self.lists.len().saturating_sub(usize::from(self.marker != Marker::None));
        for _ in 0..levels {
            self.output.push("  ");
        }
        self.line_start = true;
    }

    fn marker(&mut self) {
        match std::mem::replace(&mut self.marker, Marker::None) {
            Marker::None => {}
            Marker::Text(text) => self.output.push(text),
            Marker::Number(number) => self.output.push(&format!("{number}. ")),
        }
    }
}
