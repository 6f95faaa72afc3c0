//! From the bytes of a file to a page of its lines, in bounded memory.

use encoding_rs::{Decoder, Encoding, UTF_8, UTF_16BE, UTF_16LE};

use super::HEAD;

/// What the first bytes of a file say that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Text, after a mark of so many bytes.
    Text(&'static Encoding, usize),
    /// Not text; what it is where that is known.
    Binary(Option<&'static str>),
}

impl Content {
    /// Judges by the first [`HEAD`] bytes.
    pub fn of(head: &[u8]) -> Self {
        const MAGIC: [(&[u8], &str); 9] = [
            (b"\x89PNG\r\n\x1a\n", "a PNG image"),
            (b"\xff\xd8\xff", "a JPEG image"),
            (b"GIF8", "a GIF image"),
            (b"\x1f\x8b", "gzip data"),
            (b"\x28\xb5\x2f\xfd", "zstd data"),
            (b"\x7fELF", "a program (ELF)"),
            (b"%PDF-", "a PDF document"),
            (b"PK\x03\x04", "a zip archive or an office document"),
            (b"SQLite format 3\0", "an SQLite database"),
        ];
        let head = &head[..head.len().min(HEAD)];
        let magic = MAGIC.iter().find(|(magic, _)| head.starts_with(magic));
        if let Some((_, kind)) = magic {
            return Self::Binary(Some(kind));
        }
        match head {
            // UTF-32 begins as UTF-16 does, with a first character that no text has.
            [0xff, 0xfe, 0, 0, ..] => Self::Binary(Some("UTF-32 text")),
            [0xff, 0xfe, ..] => Self::Text(UTF_16LE, 2),
            [0xfe, 0xff, ..] => Self::Text(UTF_16BE, 2),
            _ if head.contains(&0) => Self::Binary(None),
            [0xef, 0xbb, 0xbf, ..] => Self::Text(UTF_8, 3),
            _ => Self::Text(UTF_8, 0),
        }
    }
}

/// Which lines are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The first, from 1.
    pub offset: u64,
    /// How many lines at most.
    pub limit: u64,
    /// How many bytes at most.
    pub most: usize,
}

/// Takes the wanted lines out of what it is fed, and counts the rest.
pub struct Pager {
    wanted: Wanted,
    decoder: Decoder,
    decoded: String,
    state: State,
    text: String,
    /// Where the line that is being taken starts in `text`.
    line_start: usize,
    /// The line that the next character belongs to, from 1.
    line: u64,
    /// Whether that line has a character.
    begun: bool,
    taken: u64,
    /// Bytes of the only line that had no room.
    left_out: u64,
    /// Whether bytes that are no text came while lines were taken.
    replaced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first wanted line, or in the wanted ones.
    Taking,
    /// In a line that alone is longer than what there is room for.
    Cutting,
    /// After the last wanted line.
    Counting,
}

/// What a [`Pager`] took.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    pub text: String,
    /// Lines taken, a cut one included.
    pub lines: u64,
    /// Bytes that were cut from the end of the only line.
    pub left_out: u64,
    /// Lines of all that was fed.
    pub seen: u64,
    pub replaced: bool,
}

impl Pager {
    pub fn new(wanted: Wanted, encoding: &'static Encoding) -> Self {
        Self {
            wanted,
            decoder: encoding.new_decoder_without_bom_handling(),
            decoded: String::new(),
            state: State::Taking,
            text: String::new(),
            line_start: 0,
            line: 1,
            begun: false,
            taken: 0,
            left_out: 0,
            replaced: false,
        }
    }

    /// Whether all wanted lines were taken: what comes is only counted.
    pub fn is_full(&self) -> bool {
        self.state == State::Counting
    }

    /// The next bytes, of which there may be none.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.decode(bytes, false);
    }

    /// The end of the bytes, or of those that are looked at.
    pub fn finish(mut self) -> Taken {
        self.decode(&[], true);
        let is_taking = self.state != State::Counting && self.line >= self.wanted.offset;
        if self.begun && is_taking {
            self.taken += 1;
        }
        Taken {
            text: self.text,
            lines: self.taken,
            left_out: self.left_out,
            seen: self.line - 1 + u64::from(self.begun),
            replaced: self.replaced,
        }
    }

    fn decode(&mut self, bytes: &[u8], last: bool) {
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        if let Some(most) = self.decoder.max_utf8_buffer_length(bytes.len()) {
            decoded.reserve(most);
        }
        let was_full = self.is_full();
        let (_, _, replaced) = self.decoder.decode_to_string(bytes, &mut decoded, last);
        self.lines(&decoded);
        self.replaced |= replaced && !was_full && self.line >= self.wanted.offset;
        self.decoded = decoded;
    }

    fn lines(&mut self, mut text: &str) {
        if self.line < self.wanted.offset {
            let ends = count(text);
            if self.line + ends < self.wanted.offset {
                return self.pass(text, ends);
            }
        }
        while !text.is_empty() {
            if self.is_full() {
                return self.pass(text, count(text));
            }
            let end = text.find('\n').map_or(text.len(), |end| end + 1);
            let (piece, rest) = text.split_at(end);
            self.piece(piece);
            text = rest;
        }
    }

    /// Text without a wanted line.
    fn pass(&mut self, text: &str, ends: u64) {
        self.line += ends;
        if !text.is_empty() {
            self.begun = !text.ends_with('\n');
        }
    }

    /// A line or a part of one.
    fn piece(&mut self, piece: &str) {
        let is_wanted = self.line >= self.wanted.offset;
        if is_wanted && self.state == State::Taking {
            self.take(piece);
        } else if self.state == State::Cutting {
            self.left_out += piece.len() as u64;
        }
        self.begun = !piece.ends_with('\n');
        if self.begun {
            return;
        }
        self.line += 1;
        if is_wanted && self.state != State::Counting {
            self.taken += 1;
            self.line_start = self.text.len();
            if self.state == State::Cutting || self.taken >= self.wanted.limit {
                self.state = State::Counting;
            }
        }
    }

    fn take(&mut self, piece: &str) {
        let room = self.wanted.most - self.text.len();
        if piece.len() <= room {
            self.text.push_str(piece);
        } else if self.line_start == 0 {
            let kept = super::start(piece, room);
            self.text.push_str(kept);
            self.left_out = (piece.len() - kept.len()) as u64;
            self.state = State::Cutting;
        } else {
            self.text.truncate(self.line_start);
            self.state = State::Counting;
        }
    }
}

fn count(text: &str) -> u64 {
    text.bytes().filter(|byte| *byte == b'\n').count() as u64
}
