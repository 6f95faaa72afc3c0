//! Measures the text in a JSON stream without buffering it: tokens are estimated from it if the provider does not
//! report them.
//!
//! On the wire a token of a streamed answer takes some 300 bytes, nearly all of them the envelope of the event: names,
//! numbers, the ID of the answer, the name of the model. Text is what is in strings. In a request all strings count,
//! including names, because a model reads the names in a schema. In an answer, names and the short strings of the
//! envelope do not count. A long string counts in every field, so that no answer is free because of the field that it
//! is in.

/// Fields of the envelope: no model wrote their values.
const ENVELOPE_FIELDS: &[&[u8]] = &[
    b"id",
    b"object",
    b"model",
    b"role",
    b"type",
    b"system_fingerprint",
    b"service_tier",
    b"finish_reason",
    b"stop_reason",
    b"provider",
    // Padding, so that the lengths of events on the wire reveal less about the text.
    b"obfuscation",
];
/// The longest of these names.
const MAX_NAME: usize = 18;
/// Strings of the envelope, and names in an answer, are not counted up to this number of bytes. Longer ones are counted
/// entirely.
const MAX_ENVELOPE_BYTES: u64 = 64;
/// Containers whose kind is stored. Deeper ones are treated as lists, where all strings count.
const MAX_DEPTH: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// All strings.
    Request,
    /// Strings that a model wrote.
    Answer,
}

/// The measurement. Bytes may be split anywhere.
#[derive(Debug)]
pub struct TextLength {
    counting: Counting,
    /// Whether each open container is an object, one bit each; the outermost is the lowest bit.
    objects: u128,
    depth: usize,
    /// Whether the next string in an object is a name.
    expects_name: bool,
    state: State,
    /// Unescaped bytes of the current string.
    length: u64,
    name: Name,
    total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
    /// In `\uXXXX`: number of missing digits, and the value so far.
    UnicodeEscape(u8, u16),
}

/// The last name in an object, as far as it can be one of the envelope.
#[derive(Debug, Default)]
struct Name {
    bytes: [u8; MAX_NAME],
    /// Greater than `MAX_NAME` if the name is too long.
    length: usize,
}

impl TextLength {
    /// Measures any number of JSON texts, one after the other.
    pub const fn new(kind: Counting) -> Self {
        Self {
            counting: kind,
            objects: 0,
            depth: 0,
            expects_name: false,
            state: State::Outside,
            length: 0,
            name: Name { bytes: [0; MAX_NAME], length: 0 },
            total: 0,
        }
    }

    /// Bytes of text so far, including an unfinished string.
    pub fn bytes(&self) -> u64 {
        match self.state {
            State::Outside => self.total,
            _ => self.total.saturating_add(self.counted_length()),
        }
    }

    /// Measures the next bytes.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.state {
                State::Inside => {
                    let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                    let plain = &bytes[..end.unwrap_or(bytes.len())];
                    self.length = self.length.saturating_add(plain.len() as u64);
                    if self.is_name() {
                        self.name.extend(plain);
                    }
                    let Some(end) = end else { return };
                    match bytes[end] {
                        b'"' => self.end_string(),
                        _ => self.state = State::Escaped,
                    }
                    bytes = &bytes[end + 1..];
                    continue;
                }
                State::Escaped => {
                    // No name of the envelope has escapes.
                    self.name.length = MAX_NAME + 1;
                    if byte == b'u' {
                        self.state = State::UnicodeEscape(4, 0);
                    } else {
                        self.length = self.length.saturating_add(1);
                        self.state = State::Inside;
                    }
                }
                State::UnicodeEscape(missing, code) => {
                    let digit = char::from(byte).to_digit(16).unwrap_or(0);
                    let code = code << 4 | u16::try_from(digit).unwrap_or(0);
                    self.state = match missing {
                        1 => {
                            self.length = self.length.saturating_add(encoded_length(code));
                            State::Inside
                        }
                        _ => State::UnicodeEscape(missing - 1, code),
                    };
                }
                State::Outside => self.scan_structure(byte),
            }
            bytes = rest;
        }
    }

    /// Ends the JSON text, complete or not. Another may follow.
    pub fn finish(&mut self) {
        *self = Self { total: self.bytes(), ..Self::new(self.counting) };
    }

    fn scan_structure(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.state = State::Inside;
                self.length = 0;
                if self.is_name() {
                    self.name.length = 0;
                }
            }
            b'{' | b'[' => {
                if self.depth < MAX_DEPTH {
                    let bit = 1 << self.depth;
                    match byte {
                        b'{' => self.objects |= bit,
                        _ => self.objects &= !bit,
                    }
                }
                self.depth += 1;
                self.expects_name = true;
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' => self.expects_name = true,
            b':' => self.expects_name = false,
            _ => {}
        }
    }

    /// Whether the string at this position is a name.
    fn is_name(&self) -> bool {
        self.is_in_object() && self.expects_name
    }

    fn is_in_object(&self) -> bool {
        match self.depth {
            0 => false,
            depth if depth > MAX_DEPTH => false,
            depth => self.objects >> (depth - 1) & 1 == 1,
        }
    }

    fn end_string(&mut self) {
        self.total = self.total.saturating_add(self.counted_length());
        self.state = State::Outside;
    }

    /// How many bytes of the current string count.
    fn counted_length(&self) -> u64 {
        let is_envelope = self.counting == Counting::Answer
            && self.length <= MAX_ENVELOPE_BYTES
            && self.is_in_object()
            && (self.expects_name || self.name.is_envelope_field());
        if is_envelope { 0 } else { self.length }
    }
}

/// Bytes of a UTF-16 code unit in UTF-8; half of the pair's bytes for a surrogate.
const fn encoded_length(code: u16) -> u64 {
    match code {
        0..0x80 => 1,
        0x80..0x800 | 0xd800..0xe000 => 2,
        _ => 3,
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

    fn is_envelope_field(&self) -> bool {
        let name = self.bytes.get(..self.length);
        name.is_some_and(|name| ENVELOPE_FIELDS.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn length(kind: Counting, pieces: &[&[u8]]) -> u64 {
        let mut text = TextLength::new(kind);
        pieces.iter().for_each(|piece| text.read(piece));
        text.finish();
        text.bytes()
    }

    #[test]
    fn only_text_is_counted() {
        let long = "x".repeat(65);
        for (json, request, answer) in [
            (r#"{"content":"Hello"}"#.to_owned(), 12, 5),
            (
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}]}"#.to_owned(),
                104,
                2,
            ),
            // A text may begin with the name of a field, and be in a list.
            (r#"{"stop":["a","b"],"x":[["c"]]}"#.to_owned(), 8, 3),
            (r#"{"a":"\n\u0041\u00e4\u20ac\ud83d\ude00\""}"#.to_owned(), 13, 12),
            // The position of a long text does not matter.
            (format!(r#"{{"id":"{long}"}}"#), 67, 65),
            (format!(r#"{{"{long}":1}}"#), 65, 65),
            (r#"{"id":{"x":"abc"},"y":"d"}"#.to_owned(), 8, 4),
            (r#"{"id":["abc","def"]}"#.to_owned(), 8, 6),
            // Not JSON.
            ("[DONE]".to_owned(), 0, 0),
            (r#"{"content":"cut off"#.to_owned(), 14, 7),
            ("}}]]\"text\"".to_owned(), 4, 4),
        ] {
            for (kind, expected) in [(Counting::Request, request), (Counting::Answer, answer)] {
                assert_eq!(length(kind, &[json.as_bytes()]), expected, "{kind:?} {json}");
            }
        }
        let deep = format!("{}{}", r#"{"id":"#.repeat(1000), r#""abc""#);
        assert!(length(Counting::Answer, &[deep.as_bytes()]) >= 3);
    }

    /// All strings of a value.
    fn strings(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.len() as u64,
            Value::Array(all) => all.iter().map(strings).sum(),
            Value::Object(all) => {
                let entries = all.iter();
                entries.map(|(name, value)| name.len() as u64 + strings(value)).sum()
            }
            _ => 0,
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<i32>().prop_map(Value::from), ".{0,80}".prop_map(Value::String),];
        let name = prop_oneof![Just("id".to_owned()), Just("text".to_owned()), ".{0,3}"];
        leaf.prop_recursive(5, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                prop::collection::vec((name.clone(), inner), 0..5)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_request_is_all_its_strings(value in value()) {
            let json = value.to_string();
            prop_assert_eq!(length(Counting::Request, &[json.as_bytes()]), strings(&value));
            prop_assert!(length(Counting::Answer, &[json.as_bytes()]) <= strings(&value));
        }

        #[test]
        fn pieces_do_not_matter(
            json in r#"([{}\[\],:"\\aü]|"id":|"x":|\\u00e4){0,40}"#,
            cut in 0_usize..200,
            is_request in any::<bool>(),
        ) {
            let kind = if is_request { Counting::Request } else { Counting::Answer };
            let bytes = json.as_bytes();
            let (before, after) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(length(kind, &[before, after]), length(kind, &[bytes]));
        }
    }
}
