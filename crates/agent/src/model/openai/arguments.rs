//! Parses the arguments of a call.

use serde_json::{Map, Value};
use sympozium_ipc::unique_keys;

use crate::model::json::{MAX_VALUES, has_too_many_values};
use crate::model::{CallArguments, MAX_ARGUMENTS};

#[derive(Debug, Clone, PartialEq)]
pub struct ParsedArguments {
    pub arguments: CallArguments,
    /// What later requests carry: the model's text, or an empty object where it cannot be parsed, because servers
    /// refuse invalid JSON.
    pub written: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    Complete,
    /// The model hit its output limit.
    Truncated,
    /// More than [`MAX_ARGUMENTS`] bytes.
    TooLong,
}

pub fn parse(text: String, completeness: Completeness) -> ParsedArguments {
    if completeness == Completeness::TooLong {
        return invalid(format!(
            "the arguments have more than {MAX_ARGUMENTS} bytes; make them shorter, or do it in several steps"
        ));
    }
    if text.trim().is_empty() {
        return match completeness {
            Completeness::Truncated => truncated(),
            _ => complete(Map::new(), "{}".to_owned()),
        };
    }
    if has_too_many_values(text.as_bytes()) {
        return too_many();
    }
    match unique_keys::from_str(&text) {
        Ok(value) => from_value(value, text),
        Err(error) if completeness == Completeness::Truncated && error.is_eof() => truncated(),
        Err(error) if error.is_data() => ambiguous(&error),
        Err(error) => invalid(format!("the arguments are not JSON: {error}; write them as one JSON object")),
    }
}

/// `text` is the JSON of `value`.
pub fn from_value(value: Value, text: String) -> ParsedArguments {
    match value {
        Value::Object(fields) => complete(fields, text),
        Value::Null => complete(Map::new(), "{}".to_owned()),
        // Some models encode the object twice.
        Value::String(inner) if has_too_many_values(inner.as_bytes()) => too_many(),
        Value::String(inner) => match unique_keys::from_str(&inner) {
            Ok(Value::Object(fields)) => complete(fields, inner),
            Err(error) if error.is_data() => ambiguous(&error),
            _ => not_an_object("a text"),
        },
        Value::Array(_) => not_an_object("a list"),
        Value::Bool(_) => not_an_object("true or false"),
        Value::Number(_) => not_an_object("a number"),
    }
}

fn complete(fields: Map<String, Value>, written: String) -> ParsedArguments {
    ParsedArguments { arguments: CallArguments::Object(fields), written }
}

fn invalid(why: String) -> ParsedArguments {
    ParsedArguments { arguments: CallArguments::Invalid(why), written: "{}".to_owned() }
}

fn ambiguous(error: &serde_json::Error) -> ParsedArguments {
    invalid(format!("the arguments are ambiguous: {error}; write each key of an object once"))
}

fn not_an_object(what: &str) -> ParsedArguments {
    invalid(format!("the arguments must be one JSON object, and this is {what}"))
}

fn too_many() -> ParsedArguments {
    invalid(format!("the arguments have more than {MAX_VALUES} values; use fewer, or do it in several steps"))
}

fn truncated() -> ParsedArguments {
    invalid("the answer was cut off by its length limit before the arguments were complete; make it shorter".to_owned())
}

/// Tracks nesting in streamed JSON, to know where an object ends.
#[derive(Debug, Default)]
pub struct NestingTracker {
    depth: usize,
    is_string: bool,
    is_escaped: bool,
    is_closed: bool,
}

impl NestingTracker {
    pub fn feed(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_string => self.is_escaped = true,
                b'"' => self.is_string = !self.is_string,
                _ if self.is_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_closed |= self.depth == 0;
                }
                _ => {}
            }
        }
    }

    /// Whether a top-level object ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn is_open(&self) -> bool {
        self.depth > 0 || self.is_string
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> CallArguments {
        match value {
            Value::Object(fields) => CallArguments::Object(fields),
            _ => unreachable!("the test says an object"),
        }
    }

    #[test]
    fn arguments_are_parsed() {
        for (text, expected, written) in [
            (r#"{"a":1}"#, json!({"a": 1}), r#"{"a":1}"#),
            (" {\"a\" : [1] }\n", json!({"a": [1]}), " {\"a\" : [1] }\n"),
            ("", json!({}), "{}"),
            (" \n", json!({}), "{}"),
            ("null", json!({}), "{}"),
            (r#""{\"a\":\"b\"}""#, json!({"a": "b"}), r#"{"a":"b"}"#),
        ] {
            let parsed = parse(text.to_owned(), Completeness::Complete);
            let written = written.to_owned();
            let arguments = object(expected);
            assert_eq!(parsed, ParsedArguments { arguments, written }, "{text:?}");
        }
    }

    #[test]
    fn invalid_arguments_have_a_reason_and_are_sent_as_an_empty_object() {
        let deep = "[".repeat(10_000);
        for (text, completeness, expected) in [
            (
                r#"{"a":1"#,
                Completeness::Complete,
                "the arguments are not JSON: EOF while parsing an object at line 1 column 6; write them as one JSON object",
            ),
            (
                r#"{"a":1"#,
                Completeness::Truncated,
                "the answer was cut off by its length limit before the arguments were complete; make it shorter",
            ),
            (
                "",
                Completeness::Truncated,
                "the answer was cut off by its length limit before the arguments were complete; make it shorter",
            ),
            (
                "{'a':1}",
                Completeness::Truncated,
                "the arguments are not JSON: key must be a string at line 1 column 2; write them as one JSON object",
            ),
            (
                r#"{"a":{"b":1,"b":2}}"#,
                Completeness::Complete,
                "the arguments are ambiguous: the key \"b\" is there more than once at line 1 column 15; write each key of an object once",
            ),
            (
                r#""{\"a\":1,\"a\":2}""#,
                Completeness::Complete,
                "the arguments are ambiguous: the key \"a\" is there more than once at line 1 column 10; write each key of an object once",
            ),
            ("[1]", Completeness::Complete, "the arguments must be one JSON object, and this is a list"),
            ("7", Completeness::Complete, "the arguments must be one JSON object, and this is a number"),
            (r#""read it""#, Completeness::Complete, "the arguments must be one JSON object, and this is a text"),
            (
                "{}",
                Completeness::TooLong,
                "the arguments have more than 1048576 bytes; make them shorter, or do it in several steps",
            ),
            (
                &deep,
                Completeness::Complete,
                "the arguments are not JSON: recursion limit exceeded at line 1 column 128; write them as one JSON object",
            ),
        ] {
            let parsed = parse(text.to_owned(), completeness);
            let expected =
                ParsedArguments { arguments: CallArguments::Invalid(expected.to_owned()), written: "{}".to_owned() };
            assert_eq!(parsed, expected);
        }
    }

    #[test]
    fn nesting_is_tracked_across_deltas() {
        for (pieces, is_closed, is_open) in [
            (&["{", "}"][..], true, false),
            (&["{\"a", "\":\"}", "\\\"}"], false, true),
            (&["{\"a\":{}", "}"], true, false),
            (&["{\"a\":{}"], false, true),
            (&["]"], true, false),
            (&[""], false, false),
        ] {
            let mut tracker = NestingTracker::default();
            pieces.iter().for_each(|piece| tracker.feed(piece));
            let state = (tracker.is_closed(), tracker.is_open());
            assert_eq!(state, (is_closed, is_open), "{pieces:?}");
        }
    }
}
