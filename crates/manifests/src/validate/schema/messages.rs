//! Texts for the findings about schemas.

use sympozium_api::text::quote;

use super::Type;
use crate::tree::Value;

/// Lists of names up to this length are printed completely.
pub const MAX_LISTED: usize = 12;

/// A type of the schema, with its article.
pub fn describe_type(wanted: Type) -> &'static str {
    match wanted {
        Type::Object => "an object",
        Type::Array => "a list",
        Type::String => "a string",
        Type::Integer => "an integer",
        Type::Number => "a number",
        Type::Boolean => "true or false",
    }
}

/// The type of a value, with the value itself where it is short.
pub fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::Text(_) => {
            format!("{} {}", value.type_name(), quote_value(value))
        }
        Value::List(_) | Value::Map(_) => value.type_name().to_owned(),
    }
}

/// The value itself where it is short, or else its type.
pub fn quote_value(value: &Value) -> String {
    match value {
        Value::Bool(value) => quote(&value.to_string()),
        Value::Number(number) => quote(&number.to_string()),
        Value::Text(text) => quote(text),
        other => other.type_name().to_owned(),
    }
}

/// How to fix a value of the wrong type.
pub fn type_hint(value: &Value, wanted: Type) -> String {
    match (value, wanted) {
        (Value::Null, _) => "check that the value is not missing, and indented far enough".to_owned(),
        (Value::Bool(_) | Value::Number(_), Type::String) => "put it in quotes".to_owned(),
        (_, Type::String) => "write one string".to_owned(),
        (Value::Text(text), Type::Boolean) => match text.to_lowercase().as_str() {
            "true" | "yes" | "y" | "on" => "write true without quotes".to_owned(),
            "false" | "no" | "n" | "off" => "write false without quotes".to_owned(),
            _ => "write true or false without quotes".to_owned(),
        },
        (_, Type::Boolean) => "write true or false".to_owned(),
        (Value::Text(text), Type::Integer | Type::Number) if text.parse::<f64>().is_ok() => {
            format!("write {text} without quotes")
        }
        (_, Type::Integer) => "write an integer without quotes".to_owned(),
        (_, Type::Number) => "write a number without quotes".to_owned(),
        (Value::Map(_), Type::Array) => "start each element with a dash".to_owned(),
        (_, Type::Array) => "write a list, even for one element: [ … ]".to_owned(),
        (Value::List(_), Type::Object) => "write its fields as `name: value`, without dashes".to_owned(),
        (_, Type::Object) => "write its fields as `name: value`, indented below it".to_owned(),
    }
}

/// `a`, `b` and `c`.
pub fn join_names(names: &[&str], conjunction: &str) -> String {
    let names: Vec<String> = names.iter().map(|name| quote(name)).collect();
    match names.as_slice() {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} {conjunction} {last}", first.join(", ")),
    }
}

pub fn at_least(count: usize, noun: &str) -> String {
    format!("{} or more", pluralize(count, noun))
}

pub fn at_most(count: usize, noun: &str) -> String {
    format!("{} or fewer", pluralize(count, noun))
}

/// `1 element`, `2 elements`, `3 entries`.
pub fn pluralize(count: usize, noun: &str) -> String {
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {noun}s"),
    }
}
