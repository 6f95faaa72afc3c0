//! Resolves scalars, and warns where kubectl would resolve them differently.

use granit_parser::{ScalarStyle, Tag};
use sympozium_api::text::quote;

use super::super::super::problem::Problem;
use super::super::super::scalars::{self, Scalar};
use super::super::super::tree::{Mark, Value};
use super::{Builder, Stop};

impl Builder<'_> {
    /// The value of a scalar.
    pub(super) fn resolve(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, at: Mark) -> Value {
        let scalar = match tag.map(Tag::core_suffix) {
            None if style != ScalarStyle::Plain => Scalar::Text,
            None => {
                let scalar = scalars::parse_core(text);
                let theirs = scalars::parse_kubectl(text);
                // A number that cannot be represented is an error already.
                if scalar != Scalar::NotFinite && !scalar.is_equivalent(&theirs) {
                    self.warn_ambiguous(text, &scalar, &theirs, at);
                }
                scalar
            }
            Some(Some("str")) => Scalar::Text,
            Some(Some(wanted @ ("null" | "bool" | "int" | "float"))) => {
                let scalar = scalars::parse_core(text);
                if !fits_tag(&scalar, wanted) {
                    let message = format!("{} does not match its tag `!!{wanted}`", quote(text));
                    let problem = Problem::error("tag", at, message);
                    self.problems.add(problem.with_hint("correct the value, or remove the tag"));
                }
                scalar
            }
            Some(_) => {
                self.report_tag(at);
                Scalar::Text
            }
        };
        match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Number(value) => Value::Number(value),
            Scalar::Text => Value::Text(text.to_owned()),
            Scalar::NotFinite => {
                let message = format!("{} is a number that JSON cannot represent", quote(text));
                self.problems
                    .add(Problem::error("syntax", at, message).with_hint("put it in quotes if it is a string"));
                Value::Text(text.to_owned())
            }
        }
    }

    fn warn_ambiguous(&mut self, text: &str, ours: &Scalar, theirs: &Scalar, at: Mark) {
        let ours = match ours {
            Scalar::Text => "a string".to_owned(),
            other => other.to_json_text(),
        };
        let hint = match theirs {
            Scalar::Bool(value) => format!("write {value}, or \"{text}\" for the string"),
            _ => format!("write \"{text}\" for the string, or the number in plain digits"),
        };
        let theirs = theirs.to_json_text();
        let message = format!("kubectl reads {} as {theirs}, YAML 1.2 as {ours}", quote(text));
        self.problems.add(Problem::warning("ambiguous", at, message).with_hint(hint));
    }

    /// JSON has only texts as keys, so kubectl converts numbers and booleans as JSON writes them; it rejects null.
    pub(super) fn check_plain_key(&mut self, text: &str, at: Mark) -> Result<(), Stop> {
        let theirs = scalars::parse_kubectl(text);
        match &theirs {
            Scalar::Text => {}
            Scalar::Null => {
                return Err(Stop::Document(
                    Problem::error("key", at, "a key is missing before the colon")
                        .with_hint("write the key, or put an empty one in quotes"),
                ));
            }
            other if other.to_json_text() == text => {}
            other => {
                let message = format!("kubectl reads the key {} as `{}`", quote(text), other.to_json_text());
                let hint = format!("put it in quotes: \"{text}\"");
                self.problems.add(Problem::warning("ambiguous", at, message).with_hint(hint));
            }
        }
        Ok(())
    }
}

fn fits_tag(scalar: &Scalar, wanted: &str) -> bool {
    match scalar {
        Scalar::Null => wanted == "null",
        Scalar::Bool(_) => wanted == "bool",
        Scalar::Number(number) => wanted == "float" || (wanted == "int" && !number.is_f64()),
        Scalar::NotFinite | Scalar::Text => false,
    }
}
