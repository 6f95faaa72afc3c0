//! Resolves scalars, and warns where kubectl would resolve them differently.

use granit_parser::{ScalarStyle, Tag};

use super::super::super::problem::{Problem, quoted};
use super::super::super::scalars::{self, Scalar};
use super::super::super::tree::{Mark, Value};
use super::{Builder, Stop};

impl Builder<'_> {
    /// The value of a scalar.
    pub(super) fn resolve(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, at: Mark) -> Value {
        let scalar = match tag.map(Tag::core_suffix) {
            None if style != ScalarStyle::Plain => Scalar::Text,
            None => {
                let scalar = scalars::core(text);
                let theirs = scalars::kubectl(text);
                // A number that cannot be represented is an error already.
                if scalar != Scalar::NotFinite && !scalar.means_the_same(&theirs) {
                    self.warn_of_reading(text, &scalar, &theirs, at);
                }
                scalar
            }
            Some(Some("str")) => Scalar::Text,
            Some(Some(wanted @ ("null" | "bool" | "int" | "float"))) => {
                let scalar = scalars::core(text);
                if !fits_tag(&scalar, wanted) {
                    let message = format!("{} is not what its tag `!!{wanted}` says", quoted(text));
                    let problem = Problem::error("tag", at, message);
                    self.problems.add(problem.hint("correct the value, or remove the tag"));
                }
                scalar
            }
            Some(_) => {
                self.refuse_tag(at);
                Scalar::Text
            }
        };
        match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Number(value) => Value::Number(value),
            Scalar::Text => Value::Text(text.to_owned()),
            Scalar::NotFinite => {
                let message = format!("{} is a number that JSON cannot hold", quoted(text));
                self.problems.add(Problem::error("syntax", at, message).hint("put it in quotes if it is a text"));
                Value::Text(text.to_owned())
            }
        }
    }

    fn warn_of_reading(&mut self, text: &str, ours: &Scalar, theirs: &Scalar, at: Mark) {
        let ours = match ours {
            Scalar::Text => "a text".to_owned(),
            other => other.shown(),
        };
        let hint = match theirs {
            Scalar::Bool(value) => format!("write {value}, or \"{text}\" for the text"),
            _ => format!("write \"{text}\" for the text, or the number in plain digits"),
        };
        let theirs = theirs.shown();
        let message = format!("kubectl reads {} as {theirs}, YAML 1.2 as {ours}", quoted(text));
        self.problems.add(Problem::warning("ambiguous", at, message).hint(hint));
    }

    /// JSON has only texts as keys, so kubectl converts numbers and booleans as JSON writes them; it rejects null.
    pub(super) fn check_plain_key(&mut self, text: &str, at: Mark) -> Result<(), Stop> {
        let theirs = scalars::kubectl(text);
        match &theirs {
            Scalar::Text => {}
            Scalar::Null => {
                return Err(Stop::Document(
                    Problem::error("key", at, "a key is missing before the colon")
                        .hint("write the key, or put an empty one in quotes"),
                ));
            }
            other if other.shown() == text => {}
            other => {
                let message = format!("kubectl reads the key {} as `{}`", quoted(text), other.shown());
                let hint = format!("put it in quotes: \"{text}\"");
                self.problems.add(Problem::warning("ambiguous", at, message).hint(hint));
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
