//! The arguments of a call, as a model writes them.

use serde_json::{Map, Value};
use sympozium_ipc::unique_keys;

use crate::model::json::{MAX_VALUES, has_too_many_values};
use crate::model::{Arguments, MAX_ARGUMENTS};

/// Arguments, and how they stand in later requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// What the tool gets.
    pub arguments: Arguments,
    /// What the model wrote; an empty object where nobody can read it, because servers do not take what is no JSON.
    pub written: String,
}

/// What may have become of arguments on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They are all there.
    Whole,
    /// The model had to stop in them.
    CutOff,
    /// There was more than is kept.
    TooLong,
}

/// Reads what a model wrote.
pub fn read(text: String, fate: Fate) -> Read {
    if fate == Fate::TooLong {
        return unreadable(format!(
            "the arguments have more than {MAX_ARGUMENTS} bytes; make them shorter, or do it in several steps"
        ));
    }
    if text.trim().is_empty() {
        return match fate {
            Fate::CutOff => cut_off(),
            _ => whole(Map::new(), "{}".to_owned()),
        };
    }
    if has_too_many_values(text.as_bytes()) {
        return too_many();
    }
    match unique_keys::from_str(&text) {
        Ok(value) => of(value, text),
        Err(error) if fate == Fate::CutOff && error.is_eof() => cut_off(),
        Err(error) if error.is_data() => ambiguous(&error),
        Err(error) => unreadable(format!("the arguments are not JSON: {error}; write them as one JSON object")),
    }
}

/// What a value is as arguments. `text` is how it was written.
pub fn of(value: Value, text: String) -> Read {
    match value {
        Value::Object(fields) => whole(fields, text),
        Value::Null => whole(Map::new(), "{}".to_owned()),
        // Some models write the object once more as a text.
        Value::String(inner) if has_too_many_values(inner.as_bytes()) => too_many(),
        Value::String(inner) => match unique_keys::from_str(&inner) {
            Ok(Value::Object(fields)) => whole(fields, inner),
            Err(error) if error.is_data() => ambiguous(&error),
            _ => not_an_object("a text"),
        },
        Value::Array(_) => not_an_object("a list"),
        Value::Bool(_) => not_an_object("true or false"),
        Value::Number(_) => not_an_object("a number"),
    }
}

fn whole(fields: Map<String, Value>, written: String) -> Read {
    Read { arguments: Arguments::Object(fields), written }
}

fn unreadable(why: String) -> Read {
    Read { arguments: Arguments::Unreadable(why), written: "{}".to_owned() }
}

fn ambiguous(error: &serde_json::Error) -> Read {
    unreadable(format!("the arguments are ambiguous: {error}; write each key of an object once"))
}

fn not_an_object(what: &str) -> Read {
    unreadable(format!("the arguments must be one JSON object, and this is {what}"))
}

fn too_many() -> Read {
    unreadable(format!("the arguments have more than {MAX_VALUES} values; use fewer, or do it in several steps"))
}

fn cut_off() -> Read {
    unreadable(
        "the answer was cut off by its length limit before the arguments were complete; make it shorter".to_owned(),
    )
}

/// Follows arguments while they come, to know where they end.
#[derive(Debug, Default)]
pub struct Scan {
    depth: usize,
    is_text: bool,
    is_escaped: bool,
    is_closed: bool,
}

impl Scan {
    /// Reads on.
    pub fn read(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_text => self.is_escaped = true,
                b'"' => self.is_text = !self.is_text,
                _ if self.is_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_closed |= self.depth == 0;
                }
                _ => {}
            }
        }
    }

    /// Whether an object ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether more must follow.
    pub fn is_open(&self) -> bool {
        self.depth > 0 || self.is_text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Arguments {
        match value {
            Value::Object(fields) => Arguments::Object(fields),
            _ => unreachable!("the test says an object"),
        }
    }

    #[test]
    fn what_models_write_is_read() {
        for (text, expected, written) in [
            (r#"{"a":1}"#, json!({"a": 1}), r#"{"a":1}"#),
            (" {\"a\" : [1] }\n", json!({"a": [1]}), " {\"a\" : [1] }\n"),
            ("", json!({}), "{}"),
            (" \n", json!({}), "{}"),
            ("null", json!({}), "{}"),
            (r#""{\"a\":\"b\"}""#, json!({"a": "b"}), r#"{"a":"b"}"#),
        ] {
            let read = read(text.to_owned(), Fate::Whole);
            let written = written.to_owned();
            let arguments = object(expected);
            assert_eq!(read, Read { arguments, written }, "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_says_why_and_is_an_empty_object_from_then_on() {
        let deep = "[".repeat(10_000);
        for (text, fate, expected) in [
            (
                r#"{"a":1"#,
                Fate::Whole,
                "the arguments are not JSON: EOF while parsing an object at line 1 column 6; write them as one JSON object",
            ),
            (
                r#"{"a":1"#,
                Fate::CutOff,
                "the answer was cut off by its length limit before the arguments were complete; make it shorter",
            ),
            (
                "",
                Fate::CutOff,
                "the answer was cut off by its length limit before the arguments were complete; make it shorter",
            ),
            (
                "{'a':1}",
                Fate::CutOff,
                "the arguments are not JSON: key must be a string at line 1 column 2; write them as one JSON object",
            ),
            (
                r#"{"a":{"b":1,"b":2}}"#,
                Fate::Whole,
                "the arguments are ambiguous: the key \"b\" is there more than once at line 1 column 15; write each key of an object once",
            ),
            (
                r#""{\"a\":1,\"a\":2}""#,
                Fate::Whole,
                "the arguments are ambiguous: the key \"a\" is there more than once at line 1 column 10; write each key of an object once",
            ),
            ("[1]", Fate::Whole, "the arguments must be one JSON object, and this is a list"),
            ("7", Fate::Whole, "the arguments must be one JSON object, and this is a number"),
            (r#""read it""#, Fate::Whole, "the arguments must be one JSON object, and this is a text"),
            (
                "{}",
                Fate::TooLong,
                "the arguments have more than 1048576 bytes; make them shorter, or do it in several steps",
            ),
            (
                &deep,
                Fate::Whole,
                "the arguments are not JSON: recursion limit exceeded at line 1 column 128; write them as one JSON object",
            ),
        ] {
            let read = read(text.to_owned(), fate);
            let expected = Read { arguments: Arguments::Unreadable(expected.to_owned()), written: "{}".to_owned() };
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn the_end_of_an_object_is_seen_in_any_pieces() {
        for (pieces, is_closed, is_open) in [
            (&["{", "}"][..], true, false),
            (&["{\"a", "\":\"}", "\\\"}"], false, true),
            (&["{\"a\":{}", "}"], true, false),
            (&["{\"a\":{}"], false, true),
            (&["]"], true, false),
            (&[""], false, false),
        ] {
            let mut scan = Scan::default();
            pieces.iter().for_each(|piece| scan.read(piece));
            let seen = (scan.is_closed(), scan.is_open());
            assert_eq!(seen, (is_closed, is_open), "{pieces:?}");
        }
    }
}
