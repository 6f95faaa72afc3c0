//! What a provider says went wrong, and what can be done about it.
//!
//! There is one documented form, `{"error": {"message", "type", "code"}}`, and as many others as there are servers. Both wire
//! formats are spoken by the same servers and proxies, so what is known of one is known of both.

use http::StatusCode;
use serde_json::{Map, Value};
use sympozium_api::text::{Chars, is_visible, truncate};

use super::{Problem, Remedy};

/// Bytes of a body that is read as JSON. A longer one is a text.
const MAX_BODY: usize = 64 << 10;
/// Letters of the provider's words that are told.
const MAX_WORDS: Chars = Chars(500);
/// Letters of a code.
const MAX_CODE: usize = 64;
/// Letters of them that are looked at.
const MAX_LOOKED_AT: usize = 4096;

/// Codes of a conversation that is too long, whatever the status: llama.cpp has had 400 and 500 for it.
const TOO_LONG_CODES: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "model_max_prompt_tokens_exceeded",
    "request_too_large",
    "string_above_max_length",
];

/// What servers say then that have no code for it, in lower case. In this order: OpenAI, Azure, vLLM and Mistral; older
/// and newer vLLM; llama.cpp, its Python bindings; Ollama; LM Studio; Google; Anthropic, by itself and behind proxies; Groq.
const TOO_LONG: &[&str] = &[
    "maximum context length",
    "reduce the length of the messages",
    "reduce the length of the input",
    "maximum model length",
    "max_tokens must be at least 1, got -",
    "exceeds the available context size",
    "exceed context window",
    "exceeds the context window",
    "exceeds the context length",
    "exceeded max context length",
    "context length exceeded",
    "greater than the context length",
    "context the overflows",
    "exceeds the maximum number of tokens",
    "prompt is too long",
    "exceed context limit",
    "too many total text bytes",
    "input is too long",
    "request too large",
];

/// Parts of codes of accounts that have to be paid first, and of the bridge's budget: waiting changes neither.
const SPENT: &[&str] = &["insufficient_quota", "billing", "budget"];

/// What a provider tells.
#[derive(Debug, Default)]
struct Told {
    words: String,
    /// `code`, `type` and `status`, in lower case.
    codes: Vec<String>,
    /// The status, where it is told.
    status: Option<u16>,
}

/// What an answer with this status and body means.
pub fn of(status: u16, body: &[u8]) -> Problem {
    let body = body.trim_ascii();
    let read = match body.len() {
        0..=MAX_BODY => serde_json::from_slice::<Value>(body).ok(),
        _ => None,
    };
    let told = match read {
        Some(value) => told(&value).unwrap_or_else(|| Told { words: clean(&bare(&value)), ..Told::default() }),
        None => Told { words: plain(body), ..Told::default() },
    };
    let message = match (told.words.as_str(), reason(status)) {
        ("", None) => format!("the model's endpoint answered {status}"),
        ("", Some(reason)) => format!("the model's endpoint answered {status}: {reason}"),
        (words, _) => format!("the model's endpoint answered {status}: {words}"),
    };
    Problem { remedy: remedy(status, &told), message }
}

/// What a part of an answer says went wrong, if it does. For formats that have no mark for such parts.
pub fn in_part(part: &Map<String, Value>) -> Option<Problem> {
    let error = match part.get("error") {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(error) => Some(error),
    };
    let told = match error {
        Some(error) => inner(error),
        None if part.contains_key("choices") || part.contains_key("delta") => return None,
        None => {
            let is_error = part.get("object").and_then(Value::as_str) == Some("error");
            let has_code = part.contains_key("type") || part.contains_key("code");
            let has_words = part.get("message").is_some_and(Value::is_string);
            let says_so = is_error || (has_code && has_words);
            if !says_so {
                return None;
            }
            fields(part)
        }
    };
    Some(broken_off(&told))
}

/// What a part of an answer says went wrong that is marked as an error.
pub fn of_error(error: &Value) -> Problem {
    broken_off(&told(error).unwrap_or_default())
}

fn broken_off(told: &Told) -> Problem {
    let status = told.status.unwrap_or(0);
    let remedy = match status {
        400..=599 => remedy(status, told),
        _ if is_too_long(told) => Remedy::Shorten,
        _ if is_spent(told) || is_refused(told) => Remedy::None,
        // It had begun to answer: what it was asked is not at fault.
        _ => Remedy::Retry,
    };
    let words = match (told.words.as_str(), told.codes.first()) {
        ("", None) => "no reason given",
        ("", Some(code)) => &clean(code),
        (words, _) => words,
    };
    Problem { remedy, message: format!("the model's endpoint broke off its answer: {words}") }
}

/// An answer that ended in an error without a word about it.
pub fn without_words() -> Problem {
    broken_off(&Told::default())
}

fn remedy(status: u16, told: &Told) -> Remedy {
    let has_code = |code: &&str| told.codes.iter().any(|it| it == code);
    if TOO_LONG_CODES.iter().any(has_code) {
        return Remedy::Shorten;
    }
    match status {
        // Whatever it says: less is the only thing that helps.
        413 => Remedy::Shorten,
        400 | 422 | 500 if is_too_long(told) => Remedy::Shorten,
        429 if is_spent(told) => Remedy::None,
        // One request of more tokens than a minute has.
        429 if told.words.to_ascii_lowercase().contains("request too large") => Remedy::Shorten,
        408 | 409 | 425 | 429 | 500..=599 => Remedy::Retry,
        _ => Remedy::None,
    }
}

fn is_too_long(told: &Told) -> bool {
    let words = told.words.to_ascii_lowercase();
    let is_code = |code: &String| TOO_LONG_CODES.contains(&code.as_str());
    told.codes.iter().any(is_code) || TOO_LONG.iter().any(|it| words.contains(it))
}

fn is_spent(told: &Told) -> bool {
    told.codes.iter().any(|code| SPENT.iter().any(|it| code.contains(it)))
}

fn is_refused(told: &Told) -> bool {
    const REFUSED: &[&str] = &["invalid_request", "authentication", "permission", "not_found"];
    told.codes.iter().any(|code| REFUSED.iter().any(|it| code.contains(it)))
}

/// What a body tells, in any of the forms that are known.
fn told(body: &Value) -> Option<Told> {
    match body {
        // Google's errors are in a list.
        Value::Array(items) => told(items.first().filter(|it| it.is_object())?),
        Value::Object(body) => Some(match body.get("error") {
            None | Some(Value::Null) => {
                let told = fields(body);
                if told.words.is_empty() {
                    return None;
                }
                told
            }
            Some(error) => inner(error),
        }),
        _ => None,
    }
}

fn inner(error: &Value) -> Told {
    match error {
        Value::Object(error) => fields(error),
        Value::String(words) => Told { words: clean(words), ..Told::default() },
        other => Told { words: clean(&bare(other)), ..Told::default() },
    }
}

fn fields(error: &Map<String, Value>) -> Told {
    let words = ["message", "detail", "msg"].iter().find_map(|name| error.get(*name)).map(said).unwrap_or_default();
    // OpenRouter: what the provider behind it said.
    let raw = error.get("metadata").and_then(|it| it.get("raw")).map(said);
    let words = match raw {
        Some(raw) if !raw.is_empty() => format!("{words}: {raw}"),
        _ => words,
    };
    let mut codes = Vec::new();
    let mut status = None;
    for name in ["code", "type", "status"] {
        match error.get(name) {
            Some(Value::String(code)) => {
                status = status.or(code.parse().ok());
                let code: String = code.chars().take(MAX_CODE).collect();
                codes.push(code.to_ascii_lowercase());
            }
            Some(Value::Number(number)) => {
                status = status.or(number.as_u64().and_then(|it| u16::try_from(it).ok()));
            }
            _ => {}
        }
    }
    Told { words: clean(&words), codes, status }
}

/// A message, or the messages of what was found wrong with a request.
fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().take(MAX_LOOKED_AT).collect(),
        Value::Array(items) => {
            let each = |item: &Value| match (item.get("loc"), item.get("msg")) {
                (Some(place), Some(Value::String(text))) => format!("{text} at {place}"),
                (None, Some(Value::String(text))) => text.clone(),
                _ => item.to_string(),
            };
            let all: Vec<String> = items.iter().take(4).map(each).collect();
            all.join("; ")
        }
        Value::Object(fields) => match fields.get("detail") {
            Some(detail) => said(detail),
            None => bare(value),
        },
        other => bare(other),
    }
}

/// A body that is not JSON: of a page its title, of a text its beginning.
fn plain(body: &[u8]) -> String {
    let body = &body[..body.len().min(4 * MAX_LOOKED_AT)];
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if !text.starts_with('<') {
        return clean(text);
    }
    let lower = text.to_ascii_lowercase();
    let title = lower.find("<title").and_then(|at| {
        let start = at + lower[at..].find('>')? + 1;
        let end = start + lower[start..].find("</title")?;
        text.get(start..end)
    });
    clean(title.unwrap_or_default())
}

/// JSON in which nothing is said that we know of: as it is, unless it is empty.
fn bare(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::Array(items) if items.is_empty() => String::new(),
        other => other.to_string(),
    }
}

fn clean(text: &str) -> String {
    line(text, MAX_WORDS)
}

/// Text of a provider on one line, without characters that are not visible, truncated.
pub fn line(text: &str, most: Chars) -> String {
    let words = text.split(|letter: char| letter.is_whitespace() || !is_visible(letter));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    truncate(words.join(" "), most).into_owned()
}

fn reason(status: u16) -> Option<&'static str> {
    StatusCode::from_u16(status).ok()?.canonical_reason()
}

#[cfg(test)]
mod tests;
