//! Finds `usage` in a JSON stream without buffering it.
//!
//! Providers report what they counted in an object `usage`: at the top level, or, at the beginning of an Anthropic
//! stream, in `message`. An answer may have many megabytes; this object has a few hundred bytes. The model's text is
//! inside strings, which are not searched, so no answer can forge its usage.

/// Maximum number of bytes of the object. A larger one is ignored.
pub const MAX_USAGE: usize = 4096;
/// The longest name that is searched for.
const MAX_NAME: usize = 7;

/// Where the object was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Top,
    Message,
}

/// The scanner. Bytes may be split anywhere.
#[derive(Debug, Default)]
pub struct Scan {
    /// Number of open containers.
    depth: usize,
    /// Whether the first two of them are objects.
    objects: [bool; 2],
    /// Whether the second is the value of `message`.
    in_message: bool,
    /// The last name, as far as it matters.
    name: Name,
    /// What the next string or value is.
    next: Next,
    string: Text,
    capture: Option<Capture>,
    found: Option<(Place, Vec<u8>)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Next {
    #[default]
    Other,
    /// A name in an object that is watched.
    Name,
    /// The value of such a name.
    Value,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

#[derive(Debug, Default)]
struct Name {
    bytes: [u8; MAX_NAME],
    /// Greater than `MAX_NAME` if the name is too long or has escapes.
    length: usize,
}

#[derive(Debug)]
struct Capture {
    place: Place,
    depth: usize,
    bytes: Vec<u8>,
}

impl Scan {
    /// Scans the next bytes.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            let taken = match self.string {
                Text::Inside => {
                    let end = bytes.iter().position(|it| matches!(it, b'"' | b'\\'));
                    let plain = end.unwrap_or(bytes.len());
                    self.inside(&bytes[..plain]);
                    if let Some(end) = end {
                        self.string = match bytes[end] {
                            b'"' => Text::Outside,
                            _ => Text::Escaped,
                        };
                        self.keep(&bytes[end..=end]);
                    }
                    end.map_or(plain, |end| end + 1)
                }
                Text::Escaped => {
                    // The names that are searched for have no escapes.
                    self.name.length = MAX_NAME + 1;
                    self.string = Text::Inside;
                    self.keep(&[byte]);
                    1
                }
                Text::Outside => {
                    self.outside(byte);
                    1
                }
            };
            bytes = if taken == 1 { rest } else { &bytes[taken..] };
        }
    }

    /// Ends the JSON text and returns what was found. Another text may follow.
    pub fn end(&mut self) -> Option<(Place, Vec<u8>)> {
        let found = self.found.take();
        *self = Self::default();
        found
    }

    fn inside(&mut self, text: &[u8]) {
        self.keep(text);
        if self.next == Next::Name && self.capture.is_none() {
            self.name.extend(text);
        }
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.string = Text::Inside;
                if self.next == Next::Name {
                    self.name.length = 0;
                }
            }
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => return self.close(byte),
            b',' => {
                let looked_at = self.watched().is_some();
                self.next = if looked_at { Next::Name } else { Next::Other };
            }
            b':' if self.next == Next::Name => self.next = Next::Value,
            _ => {}
        }
        self.keep(&[byte]);
    }

    /// The position of the current container, if its names matter.
    fn watched(&self) -> Option<Place> {
        match self.depth {
            1 if self.objects[0] => Some(Place::Top),
            2 if self.objects[1] && self.in_message => Some(Place::Message),
            _ => None,
        }
    }

    fn open(&mut self, is_object: bool) {
        let value_of = |name: &[u8]| self.next == Next::Value && self.name.is(name);
        if let Some(place) = self.watched()
            && is_object
            && self.capture.is_none()
            && value_of(b"usage")
        {
            self.capture = Some(Capture { place, depth: self.depth, bytes: Vec::new() });
        }
        if self.depth == 1 {
            self.in_message = is_object && self.objects[0] && value_of(b"message");
        }
        if let Some(object) = self.objects.get_mut(self.depth) {
            *object = is_object;
        }
        self.depth += 1;
        self.next = match self.watched() {
            Some(_) => Next::Name,
            None => Next::Other,
        };
    }

    fn close(&mut self, byte: u8) {
        self.keep(&[byte]);
        self.depth = self.depth.saturating_sub(1);
        self.next = Next::Other;
        if self.capture.as_ref().is_some_and(|it| it.depth == self.depth)
            && let Some(capture) = self.capture.take()
        {
            self.found = Some((capture.place, capture.bytes));
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some(capture) = &mut self.capture {
            if capture.bytes.len() + bytes.len() > MAX_USAGE {
                self.capture = None;
                return;
            }
            capture.bytes.extend_from_slice(bytes);
        }
    }
}

impl Name {
    fn extend(&mut self, text: &[u8]) {
        let end = self.length + text.len();
        match self.bytes.get_mut(self.length..end) {
            Some(room) => {
                room.copy_from_slice(text);
                self.length = end;
            }
            None => self.length = MAX_NAME + 1,
        }
    }

    fn is(&self, name: &[u8]) -> bool {
        self.bytes.get(..self.length) == Some(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(pieces: &[&[u8]]) -> Option<(Place, String)> {
        let mut scan = Scan::default();
        for piece in pieces {
            scan.read(piece);
        }
        let (place, bytes) = scan.end()?;
        Some((place, String::from_utf8(bytes).expect("UTF-8")))
    }

    #[test]
    fn usage_is_found_where_providers_put_it_and_nowhere_else() {
        let usage = r#"{"a": [1, {"b": "}\""}]}"#;
        for (before, after, expected) in [
            (r#"{"usage":"#, "}", Some(Place::Top)),
            (r#" { "id" : "x\\" , "usage" : "#, r#" , "z": {} } "#, Some(Place::Top)),
            (r#"{"choices":[{"usage":{}}],"usage":"#, "}", Some(Place::Top)),
            (r#"{"message":{"id":1,"usage":"#, "}}", Some(Place::Message)),
            (r#"{"x":{"usage":"#, "}}", None),
            (r#"{"message":[{"usage":"#, "}]}", None),
            (r#"{"message":{"x":{"usage":"#, "}}}", None),
            (r#"{"usages":"#, "}", None),
            (r#"{"usag":"#, "}", None),
            (r#"{"us\u0061ge":"#, "}", None),
            (r#"[{"usage":"#, "}]", None),
            (r#"{"usage":["#, "]}", None),
            (r#"{"text":"{\"usage\":", "x":"#, "}", None),
            (r#"{"usage":null,"message":null,"x":"#, "}", None),
        ] {
            let json = format!("{before}{usage}{after}");
            let expected = expected.map(|place| (place, usage.to_owned()));
            assert_eq!(found(&[json.as_bytes()]), expected, "{json}");
            let bytes: Vec<&[u8]> = json.as_bytes().chunks(1).collect();
            assert_eq!(found(&bytes), expected, "{json} byte by byte");
        }
    }

    #[test]
    fn the_last_one_counts_and_a_large_one_is_none() {
        assert_eq!(found(&[br#"{"usage":{"a":1},"usage":{"a":2}}"#]), Some((Place::Top, r#"{"a":2}"#.to_owned())));
        for (length, is_found) in [(MAX_USAGE, true), (MAX_USAGE + 1, false)] {
            let text = "x".repeat(length - r#"{"a":""}"#.len());
            let json = format!(r#"{{"usage":{{"a":"{text}"}}}}"#);
            assert_eq!(found(&[json.as_bytes()]).is_some(), is_found, "{length}");
        }
    }

    proptest! {
        /// For all bytes: the result does not depend on how they are split, and memory is bounded.
        #[test]
        fn pieces_do_not_matter(text in r#"([{}\[\],:"\\a]|"usage":|"message":|\{"u":1\}){0,40}"#, cut in 0_usize..400) {
            let bytes = text.as_bytes();
            let (before, after) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(found(&[before, after]), found(&[bytes]));
        }
    }
}
