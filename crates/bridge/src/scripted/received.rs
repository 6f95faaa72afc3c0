//! The parts of a request that the conditions of turns refer to.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use sympozium_api::text::{Chars, truncate};

use super::script::{Expression, ResultCondition, TextCondition, Turn};
use crate::model::request::object::{Fields, JsonKind, as_text, each_field, each_item};

/// Maximum length of a text in an error.
const MAX_TEXT: Chars = Chars(300);

/// A request in OpenAI's format.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReceivedRequest {
    pub model: String,
    system: String,
    user: Option<String>,
    /// Tool results with the IDs of their calls. Those since the last message of the model are at the end.
    results: Vec<(String, String)>,
    /// Number of results since then.
    recent: usize,
    tools: BTreeSet<String>,
}

impl ReceivedRequest {
    /// Parses a request, which was checked before. Parts without conditions are skipped and use no memory.
    pub fn parse(body: &[u8]) -> Result<Self, &'static str> {
        let fields = Fields::read(body).map_err(|_| "it is not a JSON object")?;
        let mut received = Self { model: fields.get("model").and_then(as_text).unwrap_or_default(), ..Self::default() };
        let messages = fields.get("messages").ok_or("it has no messages")?;
        if !each_item(messages, &mut |message| received.add_message(message)) {
            return Err("a message of it is none");
        }
        if let Some(tools) = fields.get("tools") {
            each_item(tools, &mut |tool| {
                let function = last_field(tool, "function");
                let name = function.and_then(|function| last_field(function, "name")).and_then(as_text);
                received.tools.extend(name);
                true
            });
        }
        Ok(received)
    }

    fn add_message(&mut self, message: &RawValue) -> bool {
        let Some(role) = last_field(message, "role").and_then(as_text) else {
            return false;
        };
        let content = last_field(message, "content").map(content_text).unwrap_or_default();
        match role.as_str() {
            "system" | "developer" => {
                self.system.push_str(&content);
                self.system.push('\n');
            }
            "user" => self.user = Some(content),
            "tool" => {
                let call = last_field(message, "tool_call_id").and_then(as_text);
                self.results.push((call.unwrap_or_default(), content));
                self.recent += 1;
            }
            _ => self.recent = 0,
        }
        true
    }

    /// The first condition of a turn that does not hold.
    pub fn mismatch(&self, turn: &Turn, request: u64) -> Option<String> {
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
                && let Some(misfit) = text_mismatch(what, expected, is.map(String::as_str))
            {
                return Some(misfit);
            }
        }
        if let Some(expected) = &when.tool_result
            && let Some(misfit) = self.result_mismatch(expected)
        {
            return Some(misfit);
        }
        self.tools_mismatch(&when.offers, &when.does_not_offer)
    }

    fn result_mismatch(&self, expected: &ResultCondition) -> Option<String> {
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
        let fits = |text: &&str| satisfies(text, expected.contains.as_deref(), expected.matches.as_ref());
        if candidates.iter().any(fits) {
            return None;
        }
        let of = match &expected.of {
            Some(call) => format!("a result of the call {:?}", truncate(call, MAX_TEXT)),
            None => "a new result of a tool".to_owned(),
        };
        let wanted = describe_condition(expected.contains.as_deref(), expected.matches.as_ref());
        let are: Vec<String> = candidates.iter().map(|text| format!("{:?}", truncate(*text, MAX_TEXT))).collect();
        Some(if are.is_empty() {
            format!("{of}{wanted}, and there is none")
        } else {
            format!("{of}{wanted}, and there is: {}", truncate(are.join(", "), MAX_TEXT))
        })
    }

    fn tools_mismatch(&self, offers: &[String], does_not_offer: &[String]) -> Option<String> {
        let missing = offers.iter().find(|name| !self.tools.contains(*name));
        if let Some(name) = missing {
            return Some(format!("the tool {:?} to be offered", truncate(name, MAX_TEXT)));
        }
        let extra = does_not_offer.iter().find(|name| self.tools.contains(*name));
        extra.map(|name| format!("the tool {:?} not to be offered", truncate(name, MAX_TEXT)))
    }
}

fn text_mismatch(what: &str, expected: &TextCondition, is: Option<&str>) -> Option<String> {
    let (contains, matches) = (expected.contains.as_deref(), expected.matches.as_ref());
    if is.is_some_and(|text| satisfies(text, contains, matches)) {
        return None;
    }
    let is = is.map_or_else(|| "there is none".to_owned(), |text| format!("it is {:?}", truncate(text, MAX_TEXT)));
    Some(format!("{what}{}, and {is}", describe_condition(contains, matches)))
}

fn satisfies(text: &str, contains: Option<&str>, matches: Option<&Expression>) -> bool {
    contains.is_none_or(|part| text.contains(part)) && matches.is_none_or(|expression| expression.0.is_match(text))
}

fn describe_condition(contains: Option<&str>, matches: Option<&Expression>) -> String {
    let contains = contains.map(|text| format!(" with {:?} in it", truncate(text, MAX_TEXT)));
    let matches = matches.map(|pattern| format!(" that matches {:?}", truncate(pattern.0.as_str(), MAX_TEXT)));
    [contains, matches].into_iter().flatten().collect()
}

/// Content is a text or a list of parts.
fn content_text(content: &RawValue) -> String {
    match JsonKind::of(content) {
        JsonKind::Text => as_text(content).unwrap_or_default(),
        JsonKind::Array => {
            let mut texts = Vec::new();
            each_item(content, &mut |part| {
                texts.extend(last_field(part, "text").and_then(as_text));
                true
            });
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// The last field of this name.
fn last_field<'a>(object: &'a RawValue, wanted: &str) -> Option<&'a RawValue> {
    let mut found = None;
    each_field(object, &mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
        true
    });
    found
}
