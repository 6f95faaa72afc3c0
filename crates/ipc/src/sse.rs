//! A parser for streams of server-sent events: the bridge counts tokens with it, and the agent reads the model's
//! answer.
//!
//! It follows the HTML standard: a line ends with a line feed, a carriage return or both; a line `data: …` adds to the
//! event's data, an empty line ends the event, a stream may begin with a byte order mark; an event that is incomplete
//! at the end of the stream is ignored. Data is passed on in the chunks in which it arrives, so memory does not grow
//! with a line.

/// Receives the data of events.
pub trait Sink {
    /// More data of the current event.
    fn data(&mut self, bytes: &[u8]);
    /// The current event is complete.
    fn end_event(&mut self);
}

/// The parser. Input may be split anywhere.
#[derive(Debug, Default)]
pub struct Reader {
    state: LineState,
    /// Bytes of the byte order mark that were read at the beginning of the stream; [`NO_BOM`] once that is decided.
    bom_bytes: usize,
    /// Whether the last byte was a carriage return: a line feed after it does not end another line.
    after_cr: bool,
    /// Data lines in the event so far, capped at two: only whether there was one matters.
    data_lines: u8,
}

const BOM: &[u8] = b"\xef\xbb\xbf";
const DATA_FIELD: &[u8] = b"data";
const NO_BOM: usize = usize::MAX;

/// The position within a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineState {
    /// This number of bytes of `data` was read; with 0 the line is empty so far.
    Name(usize),
    /// After the colon: one space belongs to it.
    Colon,
    /// In the data.
    Data,
    /// In a line with another field name.
    Other,
}

impl Default for LineState {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Reader {
    /// Parses the next bytes.
    pub fn read(&mut self, mut bytes: &[u8], sink: &mut impl Sink) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.bom_bytes != NO_BOM {
                if BOM.get(self.bom_bytes) == Some(&byte) {
                    self.bom_bytes += 1;
                    if self.bom_bytes == BOM.len() {
                        self.bom_bytes = NO_BOM;
                    }
                    bytes = rest;
                    continue;
                }
                // An incomplete byte order mark was the beginning of another line.
                if self.bom_bytes > 0 {
                    self.state = LineState::Other;
                }
                self.bom_bytes = NO_BOM;
            }
            match byte {
                b'\n' if self.after_cr => {
                    self.after_cr = false;
                    bytes = rest;
                    continue;
                }
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    self.end_line(sink);
                    bytes = rest;
                    continue;
                }
                _ => self.after_cr = false,
            }
            match self.state {
                LineState::Data | LineState::Other => {
                    let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                    let (text, after) = bytes.split_at(end.unwrap_or(bytes.len()));
                    if self.state == LineState::Data {
                        sink.data(text);
                    }
                    bytes = after;
                    continue;
                }
                LineState::Name(count) => self.read_name(count, byte, sink),
                LineState::Colon => {
                    self.state = LineState::Data;
                    if byte != b' ' {
                        continue;
                    }
                }
            }
            bytes = rest;
        }
    }

    fn read_name(&mut self, count: usize, byte: u8, sink: &mut impl Sink) {
        self.state = if DATA_FIELD.get(count) == Some(&byte) {
            LineState::Name(count + 1)
        } else if count == DATA_FIELD.len() && byte == b':' {
            self.begin_data(sink);
            LineState::Colon
        } else {
            LineState::Other
        };
    }

    /// Several data lines are one text, joined by line feeds.
    fn begin_data(&mut self, sink: &mut impl Sink) {
        if self.data_lines > 0 {
            sink.data(b"\n");
        }
        self.data_lines = (self.data_lines + 1).min(2);
    }

    fn end_line(&mut self, sink: &mut impl Sink) {
        match self.state {
            LineState::Name(0) => {
                if self.data_lines > 0 {
                    sink.end_event();
                }
                self.data_lines = 0;
            }
            // `data` without a colon is an empty data line.
            LineState::Name(count) if count == DATA_FIELD.len() => self.begin_data(sink),
            _ => {}
        }
        self.state = LineState::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The data of complete events.
    #[derive(Default)]
    struct Events {
        whole: Vec<Vec<u8>>,
        open: Vec<u8>,
    }

    impl Sink for Events {
        fn data(&mut self, bytes: &[u8]) {
            self.open.extend_from_slice(bytes);
        }

        fn end_event(&mut self) {
            self.whole.push(std::mem::take(&mut self.open));
        }
    }

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let (mut reader, mut events) = (Reader::default(), Events::default());
        for piece in pieces {
            reader.read(piece, &mut events);
        }
        let text = |event| String::from_utf8(event).expect("UTF-8 in, UTF-8 out");
        events.whole.into_iter().map(text).collect()
    }

    #[test]
    fn events_are_read_as_the_standard_has_them() {
        for (stream, expected) in [
            ("data: a\n\n", vec!["a"]),
            ("data:a\r\n\r\ndata: b\r\rdata:  c\n\n", vec!["a", "b", " c"]),
            ("event: x\ndata: a\ndata: b\nid: 1\n\n", vec!["a\nb"]),
            (": comment\n\n:\n\ndata: a\n\n", vec!["a"]),
            ("data\n\ndata\ndata\n\n", vec!["", "\n"]),
            ("\u{feff}data: a\n\n", vec!["a"]),
            ("data: \u{feff}\n\n", vec!["\u{feff}"]),
            // Incomplete, so ignored.
            ("data: a\n\ndata: b\n", vec!["a"]),
            ("dat: a\n\ndatas: b\n\n data: c\n\nDATA: d\n\n", vec![]),
            ("\n\n\r\n\n", vec![]),
        ] {
            assert_eq!(events(&[stream.as_bytes()]), expected, "{stream:?}");
        }
    }

    proptest! {
        /// In whatever chunks a stream arrives, the events are the same.
        #[test]
        fn pieces_do_not_matter(stream in "(data|: |\u{feff}|\n|\r|[a-c]|event|ö){0,40}", cuts in prop::collection::vec(0_usize..200, 0..6)) {
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            prop_assert_eq!(events(&pieces), events(&[bytes]));
        }
    }
}
