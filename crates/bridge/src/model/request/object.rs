//! One level of a JSON object: each name once, each value as raw text.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::MAX_FIELDS;

#[derive(Debug)]
pub struct Fields<'a>(BTreeMap<String, &'a RawValue>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectError {
    /// A name occurs twice, also if it is escaped differently.
    Duplicate(String),
    TooMany,
    Json(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonKind {
    Object,
    Array,
    Text,
    Bool,
    Null,
    Number,
}

impl JsonKind {
    /// A raw value has no white space around it, so its first byte decides.
    pub fn of(value: &RawValue) -> Self {
        match value.get().as_bytes().first() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b'"') => Self::Text,
            Some(b't' | b'f') => Self::Bool,
            Some(b'n') => Self::Null,
            _ => Self::Number,
        }
    }
}

/// The value as a string, if it is one.
pub fn as_text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

impl<'a> Fields<'a> {
    /// Parses an object that must be the whole input.
    pub fn read(json: &'a [u8]) -> Result<Self, ObjectError> {
        let mut refused = None;
        let mut reader = serde_json::Deserializer::from_slice(json);
        let read = reader.deserialize_map(UniqueFields(&mut refused));
        let read = read.and_then(|fields| reader.end().map(|()| fields));
        match (read, refused) {
            (_, Some(refused)) => Err(refused),
            (Ok(fields), None) => Ok(Self(fields)),
            (Err(error), None) => Err(ObjectError::Json(error.to_string())),
        }
    }

    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

/// Collects fields and refuses duplicate names. Names are compared unescaped.
struct UniqueFields<'r>(&'r mut Option<ObjectError>);

impl<'de> Visitor<'de> for UniqueFields<'_> {
    type Value = BTreeMap<String, &'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let refused = if fields.contains_key(&name) {
                ObjectError::Duplicate(name)
            } else if fields.len() == MAX_FIELDS {
                ObjectError::TooMany
            } else {
                fields.insert(name, map.next_value()?);
                continue;
            };
            *self.0 = Some(refused);
            return Err(de::Error::custom("refused"));
        }
        Ok(fields)
    }
}

/// Calls `action` for each item of a list until it returns `false`. Returns whether all items were visited. Nothing is
/// stored.
pub fn each_item<'a>(list: &'a RawValue, action: &mut dyn FnMut(&'a RawValue) -> bool) -> bool {
    let mut reader = serde_json::Deserializer::from_str(list.get());
    reader.deserialize_seq(Items(action)).is_ok()
}

/// The same for the fields of an object, including duplicates.
pub fn each_field<'a>(object: &'a RawValue, action: &mut dyn FnMut(&str, &'a RawValue) -> bool) -> bool {
    let mut reader = serde_json::Deserializer::from_str(object.get());
    reader.deserialize_map(Pairs(action)).is_ok()
}

struct Items<'f, 'a>(&'f mut dyn FnMut(&'a RawValue) -> bool);

impl<'de> Visitor<'de> for Items<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element()? {
            if !(self.0)(item) {
                return Err(de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

struct Pairs<'f, 'a>(&'f mut dyn FnMut(&str, &'a RawValue) -> bool);

impl<'de> Visitor<'de> for Pairs<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if !(self.0)(&name, map.next_value()?) {
                return Err(de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}
