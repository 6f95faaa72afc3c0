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
pub enum UsagePosition {
    Top,
    Message,
}

/// The scanner. Bytes may be split anywhere.
#[derive(Debug, Default)]
pub struct UsageScanner {
    /// Number of open containers.
    depth: usize,
    /// Whether the first two of them are objects.
    objects: [bool; 2],
    /// Whether the second is the value of `message`.
    in_message: bool,
    /// The last name, as far as it matters.
    name: Name,
    /// What the next string or value is.
    expected: Expected,
    state: StringState,
    capture: Option<Capture>,
    found: Option<(UsagePosition, Vec<u8>)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Expected {
    #[default]
    Other,
    /// A name in an object that is watched.
    Name,
    /// The value of such a name.
    Value,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum StringState {
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
    position: UsagePosition,
    depth: usize,
    bytes: Vec<u8>,
}

impl UsageScanner {
    /// Scans the next bytes.
    pub fn scan(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            let taken = match self.state {
                StringState::Inside => {
                    let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                    let plain = end.unwrap_or(bytes.len());
                    self.scan_text(&bytes[..plain]);
                    if let Some(end) = end {
                        self.state = match bytes[end] {
                            b'"' => StringState::Outside,
                            _ => StringState::Escaped,
                        };
                        self.capture_bytes(&bytes[end..=end]);
                    }
                    end.map_or(plain, |end| end + 1)
                }
                StringState::Escaped => {
                    // The names that are searched for have no escapes.
                    self.name.length = MAX_NAME + 1;
                    self.state = StringState::Inside;
                    self.capture_bytes(&[byte]);
                    1
                }
                StringState::Outside => {
                    self.scan_structure(byte);
                    1
                }
            };
            bytes = if taken == 1 { rest } else { &bytes[taken..] };
        }
    }

    /// Ends the JSON text and returns what was found. Another text may follow.
    pub fn finish(&mut self) -> Option<(UsagePosition, Vec<u8>)> {
        let found = self.found.take();
        *self = Self::default();
        found
    }

    fn scan_text(&mut self, text: &[u8]) {
        self.capture_bytes(text);
        if self.expected == Expected::Name && self.capture.is_none() {
            self.name.extend(text);
        }
    }

    fn scan_structure(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.state = StringState::Inside;
                if self.expected == Expected::Name {
                    self.name.length = 0;
                }
            }
            b'{' | b'[' => self.open_container(byte == b'{'),
            b'}' | b']' => return self.close_container(byte),
            b',' => {
                let looked_at = self.watched_position().is_some();
                self.expected = if looked_at { Expected::Name } else { Expected::Other };
            }
            b':' if self.expected == Expected::Name => self.expected = Expected::Value,
            _ => {}
        }
        self.capture_bytes(&[byte]);
    }

    /// The position of the current container, if its names matter.
    fn watched_position(&self) -> Option<UsagePosition> {
        match self.depth {
            1 if self.objects[0] => Some(UsagePosition::Top),
            2 if self.objects[1] && self.in_message => Some(UsagePosition::Message),
            _ => None,
        }
    }

    fn open_container(&mut self, is_object: bool) {
        let value_of = |name: &[u8]| self.expected == Expected::Value && self.name.equals(name);
        if let Some(place) = self.watched_position()
            && is_object
            && self.capture.is_none()
            && value_of(b"usage")
        {
            self.capture = Some(Capture { position: place, depth: self.depth, bytes: Vec::new() });
        }
        if self.depth == 1 {
            self.in_message = is_object && self.objects[0] && value_of(b"message");
        }
        if let Some(object) = self.objects.get_mut(self.depth) {
            *object = is_object;
        }
        self.depth += 1;
        self.expected = match self.watched_position() {
            Some(_) => Expected::Name,
            None => Expected::Other,
        };
    }

    fn close_container(&mut self, byte: u8) {
        self.capture_bytes(&[byte]);
        self.depth = self.depth.saturating_sub(1);
        self.expected = Expected::Other;
        if self.capture.as_ref().is_some_and(|capture| capture.depth == self.depth)
            && let Some(capture) = self.capture.take()
        {
            self.found = Some((capture.position, capture.bytes));
        }
    }

    fn capture_bytes(&mut self, bytes: &[u8]) {
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

    fn equals(&self, name: &[u8]) -> bool {
        self.bytes.get(..self.length) == Some(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(pieces: &[&[u8]]) -> Option<(UsagePosition, String)> {
        let mut scan = UsageScanner::default();
        for piece in pieces {
            scan.scan(piece);
        }
        let (place, bytes) = scan.finish()?;
        Some((place, String::from_utf8(bytes).expect("UTF-8")))
    }

    #[test]
    fn usage_is_found_where_providers_put_it_and_nowhere_else() {
        let usage = r#"{"a": [1, {"b": "}\""}]}"#;
        for (before, after, expected) in [
            (r#"{"usage":"#, "}", Some(UsagePosition::Top)),
            (r#" { "id" : "x\\" , "usage" : "#, r#" , "z": {} } "#, Some(UsagePosition::Top)),
            (r#"{"choices":[{"usage":{}}],"usage":"#, "}", Some(UsagePosition::Top)),
            (r#"{"message":{"id":1,"usage":"#, "}}", Some(UsagePosition::Message)),
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
        assert_eq!(
            found(&[br#"{"usage":{"a":1},"usage":{"a":2}}"#]),
            Some((UsagePosition::Top, r#"{"a":2}"#.to_owned()))
        );
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
