//! The parts of a request that the conditions of turns refer to.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

use super::script::{Expression, Text, ToolResult, Turn};
use crate::model::request::object::{Fields, Kind, each_field, each_item, text};

/// Maximum number of characters of a text in an error.
const MAX_SHOWN: usize = 300;

/// A request in OpenAI's format.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub model: String,
    system: String,
    user: Option<String>,
    /// Tool results with the IDs of their calls. Those since the last message of the model are at the end.
    results: Vec<(String, String)>,
    /// Number of results since then.
    recent: usize,
    tools: BTreeSet<String>,
}

impl Received {
    /// Parses a request, which was checked before. Parts without conditions are skipped and use no memory.
    pub fn read(body: &[u8]) -> Result<Self, &'static str> {
        let fields = Fields::read(body).map_err(|_| "it is not a JSON object")?;
        let mut received = Self { model: fields.get("model").and_then(text).unwrap_or_default(), ..Self::default() };
        let messages = fields.get("messages").ok_or("it has no messages")?;
        if !each_item(messages, &mut |message| received.take(message)) {
            return Err("a message of it is none");
        }
        if let Some(tools) = fields.get("tools") {
            each_item(tools, &mut |tool| {
                let function = field(tool, "function");
                let name = function.and_then(|it| field(it, "name")).and_then(text);
                received.tools.extend(name);
                true
            });
        }
        Ok(received)
    }

    fn take(&mut self, message: &RawValue) -> bool {
        let Some(role) = field(message, "role").and_then(text) else {
            return false;
        };
        let content = field(message, "content").map(text_of).unwrap_or_default();
        match role.as_str() {
            "system" | "developer" => {
                self.system.push_str(&content);
                self.system.push('\n');
            }
            "user" => self.user = Some(content),
            "tool" => {
                let call = field(message, "tool_call_id").and_then(text);
                self.results.push((call.unwrap_or_default(), content));
                self.recent += 1;
            }
            _ => self.recent = 0,
        }
        true
    }

    /// The first condition of a turn that does not hold.
    pub fn misfit(&self, turn: &Turn, request: u64) -> Option<String> {
        let when = &turn.when;
        if when.request.is_some_and(|expected| expected != request) {
            return Some(format!("to be request {}", when.request.unwrap_or_default()));
        }
        let system = when.system.as_ref();
        let user = when.user.as_ref();
        let texts = [
            ("the system's text", system, Some(&self.system)),
            ("the last message of the user", user, self.user.as_ref()),
        ];
        for (what, expected, is) in texts {
            if let Some(expected) = expected
                && let Some(misfit) = text_misfit(what, expected, is.map(String::as_str))
            {
                return Some(misfit);
            }
        }
        if let Some(expected) = &when.tool_result
            && let Some(misfit) = self.result_misfit(expected)
        {
            return Some(misfit);
        }
        self.tools_misfit(&when.offers, &when.does_not_offer)
    }

    fn result_misfit(&self, expected: &ToolResult) -> Option<String> {
        let recent = self.results.len() - self.recent.min(self.results.len());
        let candidates: Vec<&str> = match &expected.of {
            Some(call) => {
                let of = self.results.iter().filter(|(id, _)| id == call);
                of.map(|(_, text)| text.as_str()).collect()
            }
            None => {
                let recent = &self.results[recent..];
                recent.iter().map(|(_, text)| text.as_str()).collect()
            }
        };
        let fits = |text: &&str| fits(text, expected.contains.as_deref(), expected.matches.as_ref());
        if candidates.iter().any(fits) {
            return None;
        }
        let of = match &expected.of {
            Some(call) => format!("a result of the call {}", quoted(call)),
            None => "a new result of a tool".to_owned(),
        };
        let wanted = wanted(expected.contains.as_deref(), expected.matches.as_ref());
        let are: Vec<String> = candidates.iter().map(|text| quoted(text)).collect();
        Some(match are.is_empty() {
            true => format!("{of}{wanted}, and there is none"),
            false => format!("{of}{wanted}, and there is: {}", cut(&are.join(", "))),
        })
    }

    fn tools_misfit(&self, offers: &[String], does_not_offer: &[String]) -> Option<String> {
        let missing = offers.iter().find(|name| !self.tools.contains(*name));
        if let Some(name) = missing {
            return Some(format!("the tool {} to be offered", quoted(name)));
        }
        let extra = does_not_offer.iter().find(|name| self.tools.contains(*name));
        extra.map(|name| format!("the tool {} not to be offered", quoted(name)))
    }
}

fn text_misfit(what: &str, expected: &Text, is: Option<&str>) -> Option<String> {
    let (contains, matches) = (expected.contains.as_deref(), expected.matches.as_ref());
    if is.is_some_and(|text| fits(text, contains, matches)) {
        return None;
    }
    let is = is.map_or_else(|| "there is none".to_owned(), |it| format!("it is {}", quoted(it)));
    Some(format!("{what}{}, and {is}", wanted(contains, matches)))
}

fn fits(text: &str, contains: Option<&str>, matches: Option<&Expression>) -> bool {
    contains.is_none_or(|part| text.contains(part)) && matches.is_none_or(|expression| expression.0.is_match(text))
}

fn wanted(contains: Option<&str>, matches: Option<&Expression>) -> String {
    let contains = contains.map(|it| format!(" with {} in it", quoted(it)));
    let matches = matches.map(|it| format!(" that matches {}", quoted(it.0.as_str())));
    [contains, matches].into_iter().flatten().collect()
}

/// Content is a text or a list of parts.
fn text_of(content: &RawValue) -> String {
    match Kind::of(content) {
        Kind::Text => text(content).unwrap_or_default(),
        Kind::Array => {
            let mut texts = Vec::new();
            each_item(content, &mut |part| {
                texts.extend(field(part, "text").and_then(text));
                true
            });
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// The last field of this name.
fn field<'a>(object: &'a RawValue, wanted: &str) -> Option<&'a RawValue> {
    let mut found = None;
    each_field(object, &mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
        true
    });
    found
}

fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_SHOWN).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        short.push('…');
    }
    short
}
