//! Extracts lines from the bytes of a file, in bounded memory.

use encoding_rs::{Decoder, Encoding, UTF_8, UTF_16BE, UTF_16LE};

use super::HEAD;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Text, after a byte order mark of this many bytes.
    Text(&'static Encoding, usize),
    /// Not text, with its kind if known.
    Binary(Option<&'static str>),
}

impl Content {
    /// Looks at the first [`HEAD`] bytes.
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
            // UTF-32 starts like UTF-16 followed by a NUL character, which no text has.
            [0xff, 0xfe, 0, 0, ..] => Self::Binary(Some("UTF-32 text")),
            [0xff, 0xfe, ..] => Self::Text(UTF_16LE, 2),
            [0xfe, 0xff, ..] => Self::Text(UTF_16BE, 2),
            _ if head.contains(&0) => Self::Binary(None),
            [0xef, 0xbb, 0xbf, ..] => Self::Text(UTF_8, 3),
            _ => Self::Text(UTF_8, 0),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct LineRange {
    /// The first line, from 1.
    pub offset: u64,
    pub limit: u64,
    pub max_bytes: usize,
}

/// Takes the requested lines out of what it is fed, and counts the others.
pub struct Pager {
    requested: LineRange,
    decoder: Decoder,
    decoded: String,
    state: State,
    text: String,
    /// Where the current line starts in `text`.
    line_start: usize,
    /// The line of the next character, from 1.
    line: u64,
    /// Whether that line has a character yet.
    line_begun: bool,
    taken: u64,
    /// Bytes cut from a line that exceeds the room.
    omitted: u64,
    /// Whether invalid bytes were replaced in taken lines.
    replaced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before or in the requested lines.
    Taking,
    /// In a line that alone exceeds the room.
    Cutting,
    /// After the requested lines.
    Counting,
}

#[derive(Debug, PartialEq, Eq)]
pub struct PageText {
    pub text: String,
    /// Includes a cut one.
    pub lines: u64,
    /// Bytes cut from the end of the only line.
    pub omitted: u64,
    /// Lines of everything that was fed.
    pub total_lines: u64,
    pub replaced: bool,
}

impl Pager {
    pub fn new(requested: LineRange, encoding: &'static Encoding) -> Self {
        Self {
            requested,
            decoder: encoding.new_decoder_without_bom_handling(),
            decoded: String::new(),
            state: State::Taking,
            text: String::new(),
            line_start: 0,
            line: 1,
            line_begun: false,
            taken: 0,
            omitted: 0,
            replaced: false,
        }
    }

    /// Whether further input is only counted.
    pub fn is_full(&self) -> bool {
        self.state == State::Counting
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.decode(bytes, false);
    }

    pub fn finish(mut self) -> PageText {
        self.decode(&[], true);
        let is_taking = self.state != State::Counting && self.line >= self.requested.offset;
        if self.line_begun && is_taking {
            self.taken += 1;
        }
        PageText {
            text: self.text,
            lines: self.taken,
            omitted: self.omitted,
            total_lines: self.line - 1 + u64::from(self.line_begun),
            replaced: self.replaced,
        }
    }

    fn decode(&mut self, bytes: &[u8], last: bool) {
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        if let Some(max_bytes) = self.decoder.max_utf8_buffer_length(bytes.len()) {
            decoded.reserve(max_bytes);
        }
        let was_full = self.is_full();
        let (_, _, replaced) = self.decoder.decode_to_string(bytes, &mut decoded, last);
        self.lines(&decoded);
        self.replaced |= replaced && !was_full && self.line >= self.requested.offset;
        self.decoded = decoded;
    }

    fn lines(&mut self, mut text: &str) {
        if self.line < self.requested.offset {
            let ends = count(text);
            if self.line + ends < self.requested.offset {
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

    fn pass(&mut self, text: &str, ends: u64) {
        self.line += ends;
        if !text.is_empty() {
            self.line_begun = !text.ends_with('\n');
        }
    }

    fn piece(&mut self, piece: &str) {
        let is_wanted = self.line >= self.requested.offset;
        if is_wanted && self.state == State::Taking {
            self.take(piece);
        } else if self.state == State::Cutting {
            self.omitted += piece.len() as u64;
        }
        self.line_begun = !piece.ends_with('\n');
        if self.line_begun {
            return;
        }
        self.line += 1;
        if is_wanted && self.state != State::Counting {
            self.taken += 1;
            self.line_start = self.text.len();
            if self.state == State::Cutting || self.taken >= self.requested.limit {
                self.state = State::Counting;
            }
        }
    }

    fn take(&mut self, piece: &str) {
        let room = self.requested.max_bytes - self.text.len();
        if piece.len() <= room {
            self.text.push_str(piece);
        } else if self.line_start == 0 {
            let fitting = super::prefix(piece, room);
            self.text.push_str(fitting);
            self.omitted = (piece.len() - fitting.len()) as u64;
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
