//! What `fetch_url` gives the model: the bytes of a page that the bridge fetched, as text.
//!
//! The bytes are hostile. Nothing here builds a tree or recurses, and what is written is kept only as far as it will be shown:
//! time is linear in the bytes, memory is bounded by what the model may read.

mod charset;
mod entities;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod html;
mod kept;
mod links;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt::Write as _;

use sympozium_api::text::is_prose;

use self::charset::{decode, has_byte_order_mark};
use self::kept::Kept;
use super::ToolError;

/// A page as the bridge fetched it.
#[derive(Debug)]
pub struct Fetched<'p> {
    /// The status of the last answer.
    pub status: u16,
    /// Where it came from in the end.
    pub url: &'p str,
    /// What it says it is.
    pub content_type: Option<&'p str>,
    /// Its bytes.
    pub body: &'p [u8],
    /// Whether there was more.
    pub truncated: bool,
}

/// Most bytes that are told of a page that came with an error.
const ERROR_BYTES: usize = 2_000;

/// Most characters of an address or of a type that are shown.
const SHOWN: usize = 500;

/// Bytes kept free for what is said about the cut.
const NOTE_BYTES: usize = 256;

/// Bytes in which a NUL makes a page of no type, or of plain text, one that is not text.
const SNIFFED: usize = 8 << 10;

/// The page as a model reads it: at most `most` characters of it, and `most_bytes` bytes with what is said about it.
///
/// A page that came with an error, or that is no text, is an error that says so.
pub fn readable(page: &Fetched<'_>, most: usize, most_bytes: usize) -> Result<String, ToolError> {
    let url = start(page.url, SHOWN);
    let kind = Kind::of(page);
    if page.status >= 400 {
        let mut told = format!("HTTP {} from {url}", page.status);
        if !page.body.is_empty() && kind != Kind::Unreadable {
            let room = ERROR_BYTES.min(most_bytes.saturating_sub(told.len() + 1));
            let text = kind.text(page, Kept::new(room, room)).cut().text;
            if !text.is_empty() {
                told.push('\n');
                told.push_str(&text);
            }
        }
        return Err(ToolError(fit(told, most_bytes)));
    }
    if page.body.is_empty() {
        return Ok(fit(format!("(from {url})\n(the page is empty)"), most_bytes));
    }
    if kind == Kind::Unreadable {
        let kind = page.content_type.unwrap_or("no type, not text");
        return Err(ToolError(fit(
            format!("{url} is not text and cannot be read here: {}, {} bytes", start(kind, SHOWN), page.body.len()),
            most_bytes,
        )));
    }

    let mut told = format!("(from {url})\n");
    let room = most_bytes.saturating_sub(told.len() + NOTE_BYTES);
    let cut = kind.text(page, Kept::new(most, room)).cut();
    if cut.text.is_empty() && cut.of == 0 {
        told.push_str("(the page has no text; it may be one that only a browser can show)");
    }
    told.push_str(&cut.text);
    if cut.at < cut.of {
        // More characters do not help when the bytes are what ran out.
        let advice = if cut.at_characters { ", or raise maxChars" } else { "" };
        // Writing to a text cannot fail.
        let _ = write!(told, "\n(cut at {} characters of {}; ask for a more specific address{advice})", cut.at, cut.of);
    }
    if page.truncated {
        told.push_str("\n(the page is longer than what is fetched; its end is missing)");
    }
    Ok(fit(told, most_bytes))
}

/// How a page is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Html,
    /// As it is.
    Text,
    Unreadable,
}

impl Kind {
    fn of(page: &Fetched<'_>) -> Self {
        let named = page.content_type.unwrap_or_default();
        let named = named.split(';').next().unwrap_or_default().trim();
        let named = start(named, SHOWN).to_ascii_lowercase();
        match named.as_str() {
            "" => Self::sniffed(page.body),
            "text/html" | "application/xhtml+xml" => Self::Html,
            other if is_text(other) => {
                if is_binary(page) {
                    Self::Unreadable
                } else {
                    Self::Text
                }
            }
            _ => Self::Unreadable,
        }
    }

    fn sniffed(body: &[u8]) -> Self {
        if has_byte_order_mark(body) {
            return Self::Text;
        }
        if has_nul(body) {
            return Self::Unreadable;
        }
        let body = body.trim_ascii_start();
        let begins = |with: &[u8]| body.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
        if begins(b"<!doctype html") || begins(b"<html") { Self::Html } else { Self::Text }
    }

    /// The text of a page of this kind.
    fn text(self, page: &Fetched<'_>, kept: Kept) -> Kept {
        let text = decode(page.body, page.content_type, self == Self::Html);
        match self {
            Self::Html => html::text(&text, page.url, kept),
            Self::Text => as_it_is(&text, kept),
            Self::Unreadable => kept,
        }
    }
}

/// Whether a type, in lower case, is one that people read as it is.
fn is_text(named: &str) -> bool {
    let Some((family, form)) = named.split_once('/') else {
        return false;
    };
    let form = form.strip_prefix("x-").unwrap_or(form);
    family == "text"
        || form.ends_with("+json")
        || form.ends_with("+xml")
        || form.ends_with("+yaml")
        || (family == "application"
            && matches!(
                form,
                "json"
                    | "ndjson"
                    | "jsonl"
                    | "jsonlines"
                    | "json5"
                    | "json-seq"
                    | "xml"
                    | "yaml"
                    | "toml"
                    | "markdown"
                    | "javascript"
                    | "ecmascript"
                    | "typescript"
                    | "graphql"
                    | "sql"
                    | "sh"
                    | "www-form-urlencoded"
            ))
}

/// Servers call what they do not know text. A text in two bytes for each character has NULs too, but says what it is.
fn is_binary(page: &Fetched<'_>) -> bool {
    let wide = charset::named(page.content_type).is_some_and(|named| !named.is_ascii_compatible());
    !wide && !has_byte_order_mark(page.body) && has_nul(page.body)
}

fn has_nul(body: &[u8]) -> bool {
    body.iter().take(SNIFFED).any(|byte| *byte == 0)
}

/// A text with its lines as they are, and without what cannot be seen.
fn as_it_is(text: &str, mut kept: Kept) -> Kept {
    for line in text.split_inclusive('\n') {
        for part in line.split(|character| !is_prose(character)) {
            kept.push(part);
        }
    }
    kept
}

/// The start of a text, in at most `most` bytes.
fn start(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

fn fit(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}
