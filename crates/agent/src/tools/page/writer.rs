//! Text as it is laid out: white space made one, lines, lists, quotes, rows of tables.
//!
//! Everything between two words is only decided when the second one comes: what is never followed by a word is never written.

use sympozium_api::text::is_prose;

use super::kept::Kept;

/// Most levels of lists and of quotes that are shown by indentation. Deeper ones are read as if they were at this one.
const MOST_LEVELS: usize = 8;

/// Most cells of a row between two words of it.
const MOST_EMPTY_CELLS: usize = 16;

/// What stands between what was written and what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Break {
    None,
    Space,
    Line,
    Paragraph,
}

/// What stands at the start of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    None,
    Text(&'static str),
    Number(u32),
}

#[derive(Debug)]
pub struct Writer {
    kept: Kept,
    pending: Break,
    marker: Marker,
    /// Cells that began since the last word of this row.
    cells: usize,
    /// Whether this row has a cell.
    row: bool,
    /// Whether nothing of the cell was written yet.
    cell_begins: bool,
    /// The number of the next item for each list that we are in; none for one without numbers.
    lists: Vec<Option<u32>>,
    /// Whether the outermost list has no item yet.
    list_begins: bool,
    /// Lists beyond those.
    deeper: usize,
    quotes: usize,
    /// `pre` elements that we are in.
    literal: usize,
    /// Whether the fence of the outermost one is written.
    fenced: bool,
    line_start: bool,
    /// A link whose text has begun.
    link: Link,
}

#[derive(Debug)]
enum Link {
    None,
    /// Nothing of its text was there yet.
    Waiting(String),
    /// Its bracket is written.
    Open(String),
}

impl Writer {
    pub fn new(kept: Kept) -> Self {
        Self {
            kept,
            pending: Break::None,
            marker: Marker::None,
            cells: 0,
            row: false,
            cell_begins: false,
            lists: Vec::new(),
            list_begins: false,
            deeper: 0,
            quotes: 0,
            literal: 0,
            fenced: false,
            line_start: true,
            link: Link::None,
        }
    }

    /// What was written.
    pub fn end(mut self) -> Kept {
        self.link_end();
        self.literal = self.literal.min(1);
        self.literal_end();
        self.kept
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// At least this much space before the next word.
    pub fn break_at_least(&mut self, at_least: Break) {
        // The item or the heading has not begun: its first block is on its line. So is the first block of a cell.
        let begins = self.marker != Marker::None || self.cell_begins;
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

    /// The end of a block that had a marker: one without text leaves none behind.
    pub fn block_end(&mut self) {
        self.marker = Marker::None;
        self.break_at_least(Break::Paragraph);
    }

    pub fn list(&mut self, first: Option<u32>) {
        let outer = self.lists.is_empty();
        self.list_begins = outer;
        self.marker = Marker::None;
        self.break_at_least(if outer { Break::Paragraph } else { Break::Line });
        if self.lists.len() < MOST_LEVELS {
            self.lists.push(first);
        } else {
            self.deeper += 1;
        }
    }

    pub fn list_end(&mut self) {
        self.marker = Marker::None;
        if self.deeper > 0 {
            self.deeper -= 1;
        } else {
            self.lists.pop();
        }
        self.break_at_least(if self.lists.is_empty() { Break::Paragraph } else { Break::Line });
    }

    pub fn item(&mut self) {
        self.marker = Marker::None;
        // Items of one list are on lines of their own, with nothing between them.
        self.pending = if std::mem::take(&mut self.list_begins) { self.pending.max(Break::Line) } else { Break::Line };
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
            // The last block of a row leaves no gap before the next one.
            self.pending = self.pending.min(Break::Line);
        }
        self.cells = 0;
        self.row = false;
        self.cell_begins = false;
        self.break_at_least(Break::Line);
    }

    pub fn cell(&mut self) {
        if self.row {
            // The last block of the cell before does not end the row.
            self.pending = Break::None;
            self.cells = (self.cells + 1).min(MOST_EMPTY_CELLS);
        } else {
            self.pending = self.pending.max(Break::Line);
        }
        self.row = true;
        self.cell_begins = true;
    }

    /// The end of a table: what follows is in no row.
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
            self.kept.push("```");
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

    /// A link begins. The one before ends, if it did not.
    pub fn link(&mut self, target: Option<String>) {
        self.link_end();
        if let Some(target) = target
            && self.literal == 0
        {
            self.link = Link::Waiting(target);
        }
    }

    pub fn link_end(&mut self) {
        // Right behind the last word: what is pending comes after the link.
        if let Link::Open(target) = std::mem::replace(&mut self.link, Link::None) {
            self.kept.push("](");
            self.kept.push(&target);
            self.kept.push(")");
        }
    }

    /// Characters that belong to a word, such as a mark around it.
    pub fn word(&mut self, word: &str) {
        self.begin();
        self.kept.push(word);
    }

    /// Characters that end a word: right behind it, whatever is pending.
    pub fn close_word(&mut self, word: &str) {
        if !self.kept.is_empty() {
            self.kept.push(word);
        }
    }

    /// One character of the page's text.
    pub fn character(&mut self, character: char) {
        if self.literal > 0 {
            return self.literal_character(character);
        }
        if character.is_whitespace() {
            self.pending = self.pending.max(Break::Space);
        } else if is_prose(character) {
            self.begin();
            self.kept.push_char(character);
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
            self.begin();
            self.kept.push("```");
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
        self.kept.push_char(character);
        self.line_start = false;
    }

    /// Writes what is pending before a word.
    fn begin(&mut self) {
        let pending = std::mem::replace(&mut self.pending, Break::None);
        self.cell_begins = false;
        if self.cells > 0 {
            // A row is one line: what begins its cell has no mark of its own.
            self.marker = Marker::None;
            for _ in 0..std::mem::take(&mut self.cells) {
                self.kept.push(" | ");
            }
        } else if self.kept.is_empty() {
            self.marker();
        } else if pending >= Break::Line {
            if pending == Break::Paragraph {
                self.kept.push("\n");
            }
            self.new_line();
            self.marker();
        } else if pending == Break::Space {
            self.kept.push(" ");
        }
        self.line_start = false;
        self.link = match std::mem::replace(&mut self.link, Link::None) {
            Link::Waiting(target) => {
                self.kept.push("[");
                Link::Open(target)
            }
            other => other,
        };
    }

    fn new_line(&mut self) {
        self.kept.push("\n");
        for _ in 0..self.quotes.min(MOST_LEVELS) {
            self.kept.push("> ");
        }
        // An item's own line is less far in than what follows in it.
        let levels = self.lists.len().saturating_sub(usize::from(self.marker != Marker::None));
        for _ in 0..levels {
            self.kept.push("  ");
        }
        self.line_start = true;
    }

    fn marker(&mut self) {
        match std::mem::replace(&mut self.marker, Marker::None) {
            Marker::None => {}
            Marker::Text(text) => self.kept.push(text),
            Marker::Number(number) => self.kept.push(&format!("{number}. ")),
        }
    }
}
