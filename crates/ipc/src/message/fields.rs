//! Splits an untrusted JSON object: known fields as raw text, each at most once, all others skipped.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Why a text is not the expected object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FieldsError {
    /// The text ends before the object does.
    EndsEarly,
    /// Brackets are nested deeper than the limit.
    TooDeep,
    /// It is not JSON; contains the parser's message.
    NotJson(String),
    /// It is JSON of another type.
    NotAnObject,
    /// This field is there more than once.
    Duplicate(&'static str),
}

/// The known fields of one object, not yet parsed. `N` is the number of `names`.
pub(super) struct Fields<'a, const N: usize> {
    names: &'static [&'static str; N],
    values: [Option<&'a RawValue>; N],
}

impl<'a, const N: usize> Fields<'a, N> {
    /// Splits an object. Fields are not copied, and unknown ones are not parsed.
    pub(super) fn split(
        bytes: &'a [u8],
        names: &'static [&'static str; N],
        max_depth: usize,
    ) -> Result<Self, FieldsError> {
        // All of it, because the parser does not validate text that it skips.
        let text = std::str::from_utf8(bytes).map_err(|error| match error.error_len() {
            None => FieldsError::EndsEarly,
            Some(_) => FieldsError::NotJson(error.to_string()),
        })?;
        if depth(bytes) > max_depth {
            return Err(FieldsError::TooDeep);
        }
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let split = deserializer
            .deserialize_map(Split { names, life: PhantomData })
            .and_then(|split| deserializer.end().map(|()| split))
            .map_err(|error| match error.classify() {
                serde_json::error::Category::Eof => FieldsError::EndsEarly,
                // To the parser, a number that is cut after its sign is a wrong number.
                serde_json::error::Category::Syntax if is_at_end(&error, bytes) => FieldsError::EndsEarly,
                serde_json::error::Category::Data => FieldsError::NotAnObject,
                _ => FieldsError::NotJson(error.to_string()),
            })?;
        match split.duplicate {
            Some(name) => Err(FieldsError::Duplicate(name)),
            None => Ok(Self { names, values: split.values }),
        }
    }

    /// The raw text of a field. `null` counts as absent, as it does for `jq`'s `//`.
    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        let at = self.names.iter().position(|known| *known == name)?;
        let text = self.values[at]?.get();
        (text != "null").then_some(text)
    }

    /// A field's value; `Err` when it has another type.
    pub(super) fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, ()> {
        self.raw(name).map(|text| serde_json::from_str(text).map_err(drop)).transpose()
    }
}

/// Whether the parser failed at the last byte, where the text would have had to continue.
fn is_at_end(error: &serde_json::Error, bytes: &[u8]) -> bool {
    let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
    let last = bytes.rsplit(|byte| *byte == b'\n').next();
    error.line() == lines && last.is_some_and(|last| error.column() >= last.len() && last.ends_with(b"-"))
}

/// The nesting depth of brackets, computed without allocating. The result for malformed text is arbitrary; the parser
/// will refuse that.
fn depth(bytes: &[u8]) -> usize {
    let (mut now, mut deepest) = (0_usize, 0);
    let mut in_text = false;
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if in_text => drop(bytes.next()),
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                now += 1;
                deepest = deepest.max(now);
            }
            b'}' | b']' if !in_text => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

struct Split<'a, const N: usize> {
    names: &'static [&'static str; N],
    life: PhantomData<&'a ()>,
}

struct SplitFields<'a, const N: usize> {
    values: [Option<&'a RawValue>; N],
    duplicate: Option<&'static str>,
}

impl<'a, const N: usize> Visitor<'a> for Split<'a, N> {
    type Value = SplitFields<'a, N>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = SplitFields { values: [None; N], duplicate: None };
        while let Some(at) = map.next_key_seed(Key(self.names))? {
            let Some(at) = at else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if fields.values[at].replace(map.next_value()?).is_some() {
                fields.duplicate.get_or_insert(self.names[at]);
            }
        }
        Ok(fields)
    }
}

/// A key of the object, as its index among the known names.
struct Key<const N: usize>(&'static [&'static str; N]);

impl<'a, const N: usize> serde::de::DeserializeSeed<'a> for Key<N> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<const N: usize> Visitor<'_> for Key<N> {
    type Value = Option<usize>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|name| *name == key))
    }
}
