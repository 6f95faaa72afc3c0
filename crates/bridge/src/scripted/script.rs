//! The turns of a script, read strictly.

use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// Bytes of a script.
pub const MAX_SCRIPT: usize = 1 << 20;
/// Turns of a script.
pub const MAX_TURNS: usize = 1000;
/// Calls of tools in a turn.
pub const MAX_CALLS: usize = 64;
/// Milliseconds until a turn answers.
pub const MAX_DELAY_MS: u64 = 60_000;
/// Bytes of an expression once it is compiled.
const MAX_EXPRESSION: usize = 64 << 10;

/// Why a script is none.
#[derive(Debug, thiserror::Error)]
pub enum UnusableScript {
    /// Too large.
    #[error("it has more than {MAX_SCRIPT} bytes")]
    TooLarge,
    /// Not text.
    #[error("it is not UTF-8")]
    Encoding,
    /// Not YAML of this form.
    #[error("it is not a list of turns: {0}")]
    Form(String),
    /// No turns, or too many.
    #[error("it has {0} turns; there must be some, and at most {MAX_TURNS}")]
    Turns(usize),
    /// One of them.
    #[error("turn {number} {why}")]
    Turn {
        /// Which, from 1.
        number: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// A script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The turns, in order.
    pub turns: Vec<Turn>,
}

/// What the model does at one request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Turn {
    /// What must have been received.
    #[serde(default)]
    pub when: When,
    /// What it says.
    #[serde(default)]
    pub say: Option<String>,
    /// The tools that it calls.
    #[serde(default)]
    pub call: Vec<Call>,
    /// What it says it cost.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// The error that it answers with, instead.
    #[serde(default)]
    pub error: Option<ErrorAnswer>,
    /// Milliseconds until it answers.
    #[serde(default)]
    pub delay_ms: u64,
    /// What follows.
    #[serde(default)]
    pub then: Then,
}

/// What must have been received. All of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct When {
    /// The number of the request, from 1.
    #[serde(default)]
    pub request: Option<u64>,
    /// What the system said.
    #[serde(default)]
    pub system: Option<Text>,
    /// The last message of the user.
    #[serde(default)]
    pub user: Option<Text>,
    /// A result of a tool.
    #[serde(default)]
    pub tool_result: Option<ToolResult>,
    /// Tools that are offered.
    #[serde(default)]
    pub offers: Vec<String>,
    /// Tools that are not.
    #[serde(default)]
    pub does_not_offer: Vec<String>,
}

/// What a text must be like.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Text {
    /// This is in it.
    #[serde(default)]
    pub contains: Option<String>,
    /// This expression is found in it.
    #[serde(default)]
    pub matches: Option<Expression>,
}

/// What a result of a tool must be like: one since the model last spoke, or the one of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolResult {
    /// The call.
    #[serde(default)]
    pub of: Option<String>,
    /// As [`Text::contains`].
    #[serde(default)]
    pub contains: Option<String>,
    /// As [`Text::matches`].
    #[serde(default)]
    pub matches: Option<Expression>,
}

/// A call of a tool.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    /// The tool.
    pub tool: String,
    /// Its arguments. A text is sent as it is, for models that write bad JSON.
    #[serde(default = "nothing")]
    pub arguments: Value,
    /// The model's name for the call.
    #[serde(default)]
    pub id: Option<String>,
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

/// What a turn says it cost.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Tokens that were read.
    pub input: u64,
    /// Tokens that were written.
    pub output: u64,
}

/// An error as a provider answers it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorAnswer {
    /// The status, from 400 to 599.
    pub status: u16,
    /// In words.
    pub message: String,
    /// When to come again.
    #[serde(default)]
    pub retry_after_seconds: Option<u64>,
}

/// What follows a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Then {
    /// The next turn.
    #[default]
    Next,
    /// The same again, until the next one fits.
    Repeat,
    /// Nothing: another request is an error.
    End,
}

/// A regular expression.
#[derive(Debug)]
pub struct Expression(pub Regex);

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let built = RegexBuilder::new(&text).size_limit(MAX_EXPRESSION).build();
        built.map(Self).map_err(|error| de::Error::custom(format_args!("`{text}` is no expression: {error}")))
    }
}

impl Script {
    /// Reads a script.
    pub fn read(yaml: &[u8]) -> Result<Self, UnusableScript> {
        if yaml.len() > MAX_SCRIPT {
            return Err(UnusableScript::TooLarge);
        }
        let text = std::str::from_utf8(yaml).map_err(|_| UnusableScript::Encoding)?;
        // `yes` and `no` are words in arguments.
        let options = serde_saphyr::options! { strict_booleans: true };
        let script: Self = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| UnusableScript::Form(error.to_string()))?;
        if script.turns.is_empty() || script.turns.len() > MAX_TURNS {
            return Err(UnusableScript::Turns(script.turns.len()));
        }
        for (index, turn) in script.turns.iter().enumerate() {
            turn.check().map_err(|why| UnusableScript::Turn { number: index + 1, why })?;
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
