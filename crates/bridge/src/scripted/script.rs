//! The format of a script, parsed strictly.

use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// Maximum number of bytes of a script.
pub const MAX_SCRIPT: usize = 1 << 20;
/// Maximum number of turns.
pub const MAX_TURNS: usize = 1000;
/// Maximum number of tool calls in a turn.
pub const MAX_CALLS: usize = 64;
/// Maximum delay of a turn, in milliseconds.
pub const MAX_DELAY_MS: u64 = 60_000;
/// Maximum number of bytes of a compiled regular expression.
const MAX_REGEX_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("it has more than {MAX_SCRIPT} bytes")]
    TooLarge,
    #[error("it is not UTF-8")]
    Encoding,
    #[error("it is not a list of turns: {0}")]
    Format(String),
    #[error("it has {0} turns; there must be some, and at most {MAX_TURNS}")]
    Turns(usize),
    #[error("turn {number} {why}")]
    Turn {
        /// Counted from 1.
        number: usize,
        why: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    pub turns: Vec<Turn>,
}

/// The answer to one request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Turn {
    /// Conditions on the request.
    #[serde(default)]
    pub when: Conditions,
    /// The text of the answer.
    #[serde(default)]
    pub say: Option<String>,
    /// Tool calls.
    #[serde(default)]
    pub call: Vec<Call>,
    /// Reported usage.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// An error to answer with instead.
    #[serde(default)]
    pub error: Option<ErrorAnswer>,
    #[serde(default)]
    pub delay_ms: u64,
    /// What follows this turn.
    #[serde(default)]
    pub then: NextTurn,
}

/// Conditions on a request. All of them must hold.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Conditions {
    /// The number of the request, from 1.
    #[serde(default)]
    pub request: Option<u64>,
    /// The system prompt.
    #[serde(default)]
    pub system: Option<TextCondition>,
    /// The last message of the user.
    #[serde(default)]
    pub user: Option<TextCondition>,
    /// A tool result.
    #[serde(default)]
    pub tool_result: Option<ResultCondition>,
    /// Tools that must be offered.
    #[serde(default)]
    pub offers: Vec<String>,
    /// Tools that must not be offered.
    #[serde(default)]
    pub does_not_offer: Vec<String>,
}

/// Conditions on a text.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TextCondition {
    #[serde(default)]
    pub contains: Option<String>,
    #[serde(default)]
    pub matches: Option<Expression>,
}

/// Conditions on a tool result: on one since the last message of the model, or on that of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResultCondition {
    /// The ID of the call.
    #[serde(default)]
    pub of: Option<String>,
    #[serde(default)]
    pub contains: Option<String>,
    #[serde(default)]
    pub matches: Option<Expression>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    pub tool: String,
    /// A string is sent as it is, for models that write invalid JSON.
    #[serde(default = "nothing")]
    pub arguments: Value,
    /// The ID of the call.
    #[serde(default)]
    pub id: Option<String>,
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Prompt tokens.
    pub input: u64,
    /// Completion tokens.
    pub output: u64,
}

/// An error of a provider.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorAnswer {
    /// From 400 to 599.
    pub status: u16,
    pub message: String,
    #[serde(default)]
    pub retry_after_seconds: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NextTurn {
    #[default]
    Next,
    /// The same again, until the next one matches.
    Repeat,
    /// Nothing: another request is an error.
    End,
}

#[derive(Debug)]
pub struct Expression(pub Regex);

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let built = RegexBuilder::new(&text).size_limit(MAX_REGEX_BYTES).build();
        built.map(Self).map_err(|error| de::Error::custom(format_args!("`{text}` is no expression: {error}")))
    }
}

impl Script {
    pub fn parse(yaml: &[u8]) -> Result<Self, ScriptError> {
        if yaml.len() > MAX_SCRIPT {
            return Err(ScriptError::TooLarge);
        }
        let text = std::str::from_utf8(yaml).map_err(|_| ScriptError::Encoding)?;
        // `yes` and `no` are strings in arguments.
        let options = serde_saphyr::options! { strict_booleans: true };
        let script: Self = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| ScriptError::Format(error.to_string()))?;
        if script.turns.is_empty() || script.turns.len() > MAX_TURNS {
            return Err(ScriptError::Turns(script.turns.len()));
        }
        for (index, turn) in script.turns.iter().enumerate() {
            turn.check().map_err(|why| ScriptError::Turn { number: index + 1, why })?;
        }
        Ok(script)
    }
}

impl Turn {
    fn check(&self) -> Result<(), String> {
        let answers = self.say.is_some() || !self.call.is_empty();
        match &self.error {
            None if !answers => return Err("has none of `say`, `call` and `error`".to_owned()),
            Some(_) if answers || self.usage.is_some() => {
                return Err("has an `error`, and something else to answer".to_owned());
            }
            Some(error) if !(400..600).contains(&error.status) => {
                return Err(format!("has an `error` of status {}, which is none", error.status));
            }
            _ => {}
        }
        if self.call.len() > MAX_CALLS {
            return Err(format!("calls more than {MAX_CALLS} tools"));
        }
        if self.call.iter().any(|call| call.tool.is_empty()) {
            return Err("calls a tool without a name".to_owned());
        }
        let fits = |call: &Call| call.arguments.is_object() || call.arguments.is_string();
        if !self.call.iter().all(fits) {
            return Err("has `arguments` that are neither fields nor a text".to_owned());
        }
        if self.delay_ms > MAX_DELAY_MS {
            return Err(format!("waits more than {MAX_DELAY_MS} ms"));
        }
        Ok(())
    }
}
