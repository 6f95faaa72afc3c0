//! A JSON parser that refuses objects with duplicate keys, at any depth.
//!
//! RFC 8259 does not define which of two equal keys counts, so two parsers may disagree about a text. What is shown to
//! an approver, hashed and executed must be the same, so such a text is refused.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use sympozium_api::text::{Chars, truncate};

/// Limit for the characters of a key in an error.
const MAX_SHOWN: Chars = Chars(64);

/// Parses a text.
///
/// # Errors
///
/// Those of `serde_json`, and duplicate keys.
pub fn from_str(text: &str) -> serde_json::Result<Value> {
    struct Unique(Value);
    impl<'de> Deserialize<'de> for Unique {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserialize(deserializer).map(Self)
        }
    }
    serde_json::from_str(text).map(|Unique(value)| value)
}

/// Deserializes a value, for `#[serde(deserialize_with)]`.
///
/// # Errors
///
/// Those of the deserializer, and duplicate keys.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    deserializer.deserialize_any(AnyValue)
}

struct AnyValue;

impl<'de> DeserializeSeed<'de> for AnyValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        // Like `Value` itself: JSON has no numbers that are not finite.
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(AnyValue)? {
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                let shown = truncate(&key, MAX_SHOWN);
                return Err(A::Error::custom(format_args!("the key {shown:?} is there more than once")));
            }
            object.insert(key, entries.next_value_seed(AnyValue)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_refused_wherever_it_is() {
        for (text, key) in [
            (r#"{"a":1,"a":1}"#, "a"),
            (r#"{"a":1,"b":2,"a":3}"#, "a"),
            (r#"{"a":{"b":1,"b":2}}"#, "b"),
            (r#"[[{"x":[{"b":1,"b":2}]}]]"#, "b"),
            // However it is written.
            (r#"{"a":1,"\u0061":2}"#, "a"),
            (r#"{"":1,"":2}"#, ""),
        ] {
            let error = from_str(text).unwrap_err().to_string();
            let expected = format!("the key {key:?} is there more than once");
            assert!(error.starts_with(&expected), "{text}: {error}");
        }
        for text in [r#"{"a":{"a":{"a":1}},"A":2}"#, r#"[{"a":1},{"a":1}]"#, r#"{"a":"a","b":["a","a"]}"#] {
            assert!(from_str(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn an_error_shows_a_bounded_part_of_a_key() {
        let key = "\u{202e}".repeat(10_000);
        let text = format!(r#"{{"{key}":1,"{key}":2}}"#);
        let error = from_str(&text).unwrap_err().to_string();
        assert!(error.len() < 1000, "{error}");
        assert!(!error.contains('\u{202e}') && error.contains("…"), "{error}");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::String),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::vec((".{0,3}", inner), 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn everything_else_is_read_as_it_always_was(value in value()) {
            let text = value.to_string();
            let usual: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(from_str(&text).unwrap(), usual);
        }

        #[test]
        fn what_is_no_json_is_none_here_either(text in r#"[\[\]{}:,"a0\\ -]{0,12}"#) {
            let usual = serde_json::from_str::<Value>(&text);
            match from_str(&text) {
                Ok(value) => prop_assert_eq!(value, usual.unwrap()),
                Err(error) if error.is_data() => prop_assert!(usual.is_ok() || error.to_string().contains("more than once")),
                Err(_) => prop_assert!(usual.is_err()),
            }
        }
    }
}
