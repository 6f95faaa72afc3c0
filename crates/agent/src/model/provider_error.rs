//! Interprets errors of providers.
//!
//! There is one documented form, `{"error": {"message", "type", "code"}}`, and as many others as there are servers. The
//! same servers and proxies implement both wire formats, so both share this.

use http::StatusCode;
use serde_json::{Map, Value};
use sympozium_api::text::{Chars, is_visible, truncate};

use super::{ProviderError, Remedy};

/// Longer bodies are treated as text.
const MAX_BODY: usize = 64 << 10;
const MAX_MESSAGE: Chars = Chars(500);
const MAX_CODE: usize = 64;
/// Characters of a message that are processed.
const MAX_PROCESSED: usize = 4096;

/// Codes of a conversation that is too long, whatever the status: llama.cpp has used 400 and 500.
const TOO_LONG_CODES: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "model_max_prompt_tokens_exceeded",
    "request_too_large",
    "string_above_max_length",
];

/// Messages of servers that have no code for it, in lower case. In this order: OpenAI, Azure, vLLM and Mistral; older
/// and newer vLLM; llama.cpp, its Python bindings; Ollama; LM Studio; Google; Anthropic, by itself and behind proxies;
/// Groq.
const TOO_LONG_MESSAGES: &[&str] = &[
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

/// Parts of codes that mean an unpaid account or the bridge's budget: waiting changes neither.
const QUOTA_CODES: &[&str] = &["insufficient_quota", "billing", "budget"];

#[derive(Debug, Default)]
struct ErrorDetails {
    text: String,
    /// `code`, `type` and `status`, in lower case.
    codes: Vec<String>,
    status: Option<u16>,
}

pub fn from_response(status: u16, body: &[u8]) -> ProviderError {
    let body = body.trim_ascii();
    let parsed = match body.len() {
        0..=MAX_BODY => serde_json::from_slice::<Value>(body).ok(),
        _ => None,
    };
    let details = match parsed {
        Some(value) => {
            details(&value).unwrap_or_else(|| ErrorDetails { text: clean(&to_json(&value)), ..ErrorDetails::default() })
        }
        None => ErrorDetails { text: from_text(body), ..ErrorDetails::default() },
    };
    let message = match (details.text.as_str(), reason(status)) {
        ("", None) => format!("the model's endpoint answered {status}"),
        ("", Some(reason)) => format!("the model's endpoint answered {status}: {reason}"),
        (text, _) => format!("the model's endpoint answered {status}: {text}"),
    };
    ProviderError { remedy: remedy(status, &details), message }
}

/// The error in a chunk or a choice, if it has one. For formats without an error event.
pub fn from_chunk(part: &Map<String, Value>) -> Option<ProviderError> {
    let error = match part.get("error") {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(error) => Some(error),
    };
    let details = match error {
        Some(error) => from_error(error),
        None if part.contains_key("choices") || part.contains_key("delta") => return None,
        None => {
            let is_error = part.get("object").and_then(Value::as_str) == Some("error");
            let has_code = part.contains_key("type") || part.contains_key("code");
            let has_message = part.get("message").is_some_and(Value::is_string);
            let is_error_object = is_error || (has_code && has_message);
            if !is_error_object {
                return None;
            }
            from_fields(part)
        }
    };
    Some(stream_error(&details))
}

/// The error in a part that is marked as one.
pub fn from_event(error: &Value) -> ProviderError {
    stream_error(&details(error).unwrap_or_default())
}

fn stream_error(details: &ErrorDetails) -> ProviderError {
    let status = details.status.unwrap_or(0);
    let remedy = match status {
        400..=599 => remedy(status, details),
        _ if is_too_long(details) => Remedy::Shorten,
        _ if is_quota_exceeded(details) || is_client_error(details) => Remedy::None,
        // The model had started to answer, so the request was valid.
        _ => Remedy::Retry,
    };
    let text = match (details.text.as_str(), details.codes.first()) {
        ("", None) => "no reason given",
        ("", Some(code)) => &clean(code),
        (text, _) => text,
    };
    ProviderError { remedy, message: format!("the model's endpoint aborted its answer: {text}") }
}

pub fn unexplained() -> ProviderError {
    stream_error(&ErrorDetails::default())
}

fn remedy(status: u16, details: &ErrorDetails) -> Remedy {
    let has_code = |code: &&str| details.codes.iter().any(|listed| listed == code);
    if TOO_LONG_CODES.iter().any(has_code) {
        return Remedy::Shorten;
    }
    match status {
        // Only a shorter request helps, whatever the message says.
        413 => Remedy::Shorten,
        400 | 422 | 500 if is_too_long(details) => Remedy::Shorten,
        429 if is_quota_exceeded(details) => Remedy::None,
        // A single request that exceeds the tokens per minute.
        429 if details.text.to_ascii_lowercase().contains("request too large") => Remedy::Shorten,
        408 | 409 | 425 | 429 | 500..=599 => Remedy::Retry,
        _ => Remedy::None,
    }
}

fn is_too_long(details: &ErrorDetails) -> bool {
    let text = details.text.to_ascii_lowercase();
    let is_code = |code: &String| TOO_LONG_CODES.contains(&code.as_str());
    details.codes.iter().any(is_code) || TOO_LONG_MESSAGES.iter().any(|message| text.contains(message))
}

fn is_quota_exceeded(details: &ErrorDetails) -> bool {
    details.codes.iter().any(|code| QUOTA_CODES.iter().any(|quota_code| code.contains(quota_code)))
}

fn is_client_error(details: &ErrorDetails) -> bool {
    const CLIENT_ERROR_CODES: &[&str] = &["invalid_request", "authentication", "permission", "not_found"];
    details.codes.iter().any(|code| CLIENT_ERROR_CODES.iter().any(|client_error_code| code.contains(client_error_code)))
}

fn details(body: &Value) -> Option<ErrorDetails> {
    match body {
        // Google wraps errors in a list.
        Value::Array(items) => details(items.first().filter(|item| item.is_object())?),
        Value::Object(body) => Some(match body.get("error") {
            None | Some(Value::Null) => {
                let details = from_fields(body);
                if details.text.is_empty() {
                    return None;
                }
                details
            }
            Some(error) => from_error(error),
        }),
        _ => None,
    }
}

fn from_error(error: &Value) -> ErrorDetails {
    match error {
        Value::Object(error) => from_fields(error),
        Value::String(text) => ErrorDetails { text: clean(text), ..ErrorDetails::default() },
        other => ErrorDetails { text: clean(&to_json(other)), ..ErrorDetails::default() },
    }
}

fn from_fields(error: &Map<String, Value>) -> ErrorDetails {
    let text =
        ["message", "detail", "msg"].iter().find_map(|name| error.get(*name)).map(message_text).unwrap_or_default();
    // OpenRouter: the message of the provider behind it.
    let raw = error.get("metadata").and_then(|metadata| metadata.get("raw")).map(message_text);
    let text = match raw {
        Some(raw) if !raw.is_empty() => format!("{text}: {raw}"),
        _ => text,
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
                status = status.or(number.as_u64().and_then(|status| u16::try_from(status).ok()));
            }
            _ => {}
        }
    }
    ErrorDetails { text: clean(&text), codes, status }
}

/// A message, or the list of validation messages.
fn message_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().take(MAX_PROCESSED).collect(),
        Value::Array(items) => {
            let each = |item: &Value| match (item.get("loc"), item.get("msg")) {
                (Some(place), Some(Value::String(text))) => format!("{text} at {place}"),
                (None, Some(Value::String(text))) => text.clone(),
                _ => item.to_string(),
            };
            let all: Vec<String> = items.iter().take(4).map(each).collect();
            all.join("; ")
        }
        Value::Object(from_fields) => match from_fields.get("detail") {
            Some(detail) => message_text(detail),
            None => to_json(value),
        },
        other => to_json(other),
    }
}

/// A body that is not JSON: the title of an HTML page, or the start of a text.
fn from_text(body: &[u8]) -> String {
    let body = &body[..body.len().min(4 * MAX_PROCESSED)];
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

/// JSON without a known message field: as it is, unless it is empty.
fn to_json(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(from_fields) if from_fields.is_empty() => String::new(),
        Value::Array(items) if items.is_empty() => String::new(),
        other => other.to_string(),
    }
}

fn clean(text: &str) -> String {
    one_line(text, MAX_MESSAGE)
}

/// A provider's text on one line, without control and invisible characters, truncated.
pub fn one_line(text: &str, limit: Chars) -> String {
    let words = text.split(|letter: char| letter.is_whitespace() || !is_visible(letter));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    truncate(words.join(" "), limit).into_owned()
}

fn reason(status: u16) -> Option<&'static str> {
    StatusCode::from_u16(status).ok()?.canonical_reason()
}

#[cfg(test)]
mod tests;
