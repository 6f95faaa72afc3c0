//! Parses the body of `POST /skill/{name}`.

use std::fmt;
use std::time::Duration;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use sympozium_api::text::{Chars, truncate};
use sympozium_exec::Request;
use sympozium_exec::environment::{Environment, MAX_REQUEST_VARIABLES};
use sympozium_exec::lookup::SkillName;
use sympozium_exec::request::{MAX_ARGUMENT_BYTES, MAX_ARGUMENTS};

/// Bytes of a request body: 1 MB, read as 2^20.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// The timeout of a call that names none. A call with a longer one becomes a task.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// A longer timeout is not an error, but reduced to this.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// Arguments of a skill, without its name.
pub const MAX_ARGS: usize = MAX_ARGUMENTS - 1;
/// Characters of an error message that repeats input of the caller.
const MAX_MESSAGE: Chars = Chars(300);

const FIELDS: [&str; 4] = ["args", "env", "stdin", "timeout"];

/// A call of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub args: Vec<String>,
    /// All named `SKILL_*`.
    pub env: Vec<(String, String)>,
    pub stdin: String,
    pub timeout: Duration,
}

impl Default for Call {
    fn default() -> Self {
        Self { args: Vec::new(), env: Vec::new(), stdin: String::new(), timeout: DEFAULT_TIMEOUT }
    }
}

/// For the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyError {
    /// Starts with the name of the field.
    pub message: String,
    pub hint: Option<String>,
}

impl Call {
    /// An empty body is the default call.
    ///
    /// # Errors
    /// The first field that cannot be used, and why.
    pub fn parse(body: &[u8]) -> Result<Self, BodyError> {
        if body.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        let call = json
            .deserialize_any(CallVisitor)
            .and_then(|call| json.end().map(|()| call))
            .map_err(BodyError::from_json)?;
        if !call.env.is_empty() {
            // By the executor's rules for names and sizes, before it adds its own variables.
            Environment::from_declared([]).for_request(&call.env).map_err(|error| BodyError {
                message: truncate(format!("env: {error}"), MAX_MESSAGE).into_owned(),
                hint: Some("only SKILL_* variables can be set by a request".to_owned()),
            })?;
        }
        Ok(call)
    }

    /// Whether the caller gets a task instead of the result.
    pub fn is_long(&self) -> bool {
        self.timeout > DEFAULT_TIMEOUT
    }

    pub fn into_request(self, skill: SkillName) -> Request {
        Request {
            environment: self.env,
            stdin: self.stdin.into_bytes(),
            timeout: self.timeout,
            ..Request::skill(skill, self.args)
        }
    }
}

impl BodyError {
    fn from_json(error: serde_json::Error) -> Self {
        let text = error.to_string();
        let suggestion = text
            .strip_prefix("unknown field `")
            .and_then(|rest| rest.split_once('`'))
            .and_then(|(field, _)| suggest_field(field));
        let message = match error.classify() {
            serde_json::error::Category::Data => truncate(&text, MAX_MESSAGE).into_owned(),
            _ => truncate(format!("the body is not valid JSON: {text}"), MAX_MESSAGE).into_owned(),
        };
        Self { message, hint: suggestion.map(|field| format!("did you mean {field:?}?")) }
    }
}

/// The field that the caller probably meant.
fn suggest_field(field: &str) -> Option<&'static str> {
    if field.len() > 32 {
        return None;
    }
    let field = field.to_ascii_lowercase();
    FIELDS
        .into_iter()
        .map(|known| (strsim::levenshtein(&field, known), known))
        .filter(|&(distance, known)| distance <= known.len() / 2)
        .min()
        .map(|(_, known)| known)
        .or_else(|| FIELDS.into_iter().find(|known| field.starts_with(known) || known.starts_with(&*field)))
}

struct CallVisitor;

impl<'de> Visitor<'de> for CallVisitor {
    type Value = Call;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the fields args, env, stdin and timeout")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Call, A::Error> {
        let (mut args, mut env, mut stdin, mut timeout) = (None, None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            let is_duplicate = match field.as_str() {
                "args" => with_field("args", map.next_value_seed(Args).map(|value| args.replace(value)))?,
                "env" => with_field("env", map.next_value_seed(Env).map(|value| env.replace(value)))?,
                "stdin" => with_field("stdin", map.next_value().map(|value| stdin.replace(value)))?,
                "timeout" => with_field("timeout", map.next_value_seed(Timeout).map(|value| timeout.replace(value)))?,
                _ => return Err(de::Error::unknown_field(&field, &FIELDS)),
            };
            if is_duplicate {
                return Err(de::Error::custom(format_args!("{field}: given twice")));
            }
        }
        Ok(Call {
            args: args.unwrap_or_default(),
            env: env.unwrap_or_default(),
            stdin: stdin.flatten().unwrap_or_default(),
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
        })
    }
}

/// Whether the field already had a value. An error gets the field's name.
fn with_field<T, E: de::Error>(field: &str, replaced: Result<Option<T>, E>) -> Result<bool, E> {
    match replaced {
        Ok(previous) => Ok(previous.is_some()),
        Err(error) => Err(E::custom(format_args!("{field}: {error}"))),
    }
}

struct Args;

impl<'de> DeserializeSeed<'de> for Args {
    type Value = Vec<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Args {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut args = Vec::new();
        while let Some(argument) = list.next_element::<String>()? {
            let index = args.len();
            if index == MAX_ARGS {
                let message = format!("more than {MAX_ARGS} arguments");
                return Err(de::Error::custom(message));
            }
            if argument.len() > MAX_ARGUMENT_BYTES {
                let message = format!("number {index} has more than {MAX_ARGUMENT_BYTES} bytes");
                return Err(de::Error::custom(message));
            }
            if argument.contains('\0') {
                let message = format!("number {index} contains a NUL character");
                return Err(de::Error::custom(message));
            }
            args.push(argument);
        }
        Ok(args)
    }
}

struct Env;

impl<'de> DeserializeSeed<'de> for Env {
    type Value = Vec<(String, String)>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Env {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut env = Vec::new();
        while let Some(entry) = map.next_entry()? {
            if env.len() == MAX_REQUEST_VARIABLES {
                let message = format!("more than {MAX_REQUEST_VARIABLES} variables");
                return Err(de::Error::custom(message));
            }
            env.push(entry);
        }
        Ok(env)
    }
}

struct Timeout;

impl<'de> DeserializeSeed<'de> for Timeout {
    type Value = Duration;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Timeout {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of seconds, at least 1")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(DEFAULT_TIMEOUT)
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Self::Value, E> {
        match seconds {
            0 => Err(E::invalid_value(de::Unexpected::Unsigned(0), &self)),
            _ => Ok(Duration::from_secs(seconds).min(MAX_TIMEOUT)),
        }
    }
}

#[cfg(test)]
mod tests;
