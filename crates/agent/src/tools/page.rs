//! Renders a fetched page for the model.
//!
//! The bytes are untrusted. Nothing here builds a tree or recurses, and only the text that will be shown is kept: time
//! is linear in the bytes, memory is bounded by the limits of the result.

mod bounded_text;
mod charset;
mod entities;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod html;
mod links;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt::Write as _;

use sympozium_api::text::is_prose;

use self::bounded_text::BoundedText;
use self::charset::{decode, has_byte_order_mark};
use super::ToolError;

#[derive(Debug)]
pub struct FetchedPage<'p> {
    pub status: u16,
    /// After redirects.
    pub url: &'p str,
    pub content_type: Option<&'p str>,
    pub body: &'p [u8],
    /// Whether the bridge cut the body.
    pub truncated: bool,
}

/// Bytes of an error page that are shown.
const MAX_ERROR_BYTES: usize = 2_000;

const MAX_SHOWN: usize = 500;

/// Reserved for notes.
const NOTE_BYTES: usize = 256;

/// A NUL in this prefix makes a body binary.
const SNIFF_BYTES: usize = 8 << 10;

/// The page for a model: at most `max_chars` of its text, and `max_bytes` including notes. A page with an error status,
/// or one that is not text, is an error.
pub fn render_page(page: &FetchedPage<'_>, max_chars: usize, max_bytes: usize) -> Result<String, ToolError> {
    let url = start(page.url, MAX_SHOWN);
    let kind = PageKind::detect(page);
    if page.status >= 400 {
        let mut rendered = format!("HTTP {} from {url}", page.status);
        if !page.body.is_empty() && kind != PageKind::Unreadable {
            let room = MAX_ERROR_BYTES.min(max_bytes.saturating_sub(rendered.len() + 1));
            let text = kind.text(page, BoundedText::new(room, room)).cut().text;
            if !text.is_empty() {
                rendered.push('\n');
                rendered.push_str(&text);
            }
        }
        return Err(ToolError(truncate(rendered, max_bytes)));
    }
    if page.body.is_empty() {
        return Ok(truncate(format!("(from {url})\n(the page is empty)"), max_bytes));
    }
    if kind == PageKind::Unreadable {
        let kind = page.content_type.unwrap_or("no type, not text");
        return Err(ToolError(truncate(
            format!("{url} is not text and cannot be read here: {}, {} bytes", start(kind, MAX_SHOWN), page.body.len()),
            max_bytes,
        )));
    }

    let mut rendered = format!("(from {url})\n");
    let room = max_bytes.saturating_sub(rendered.len() + NOTE_BYTES);
    let cut = kind.text(page, BoundedText::new(max_chars, room)).cut();
    if cut.text.is_empty() && cut.total_chars == 0 {
        rendered.push_str("(the page has no text; it may be one that only a browser can show)");
    }
    rendered.push_str(&cut.text);
    if cut.kept_chars < cut.total_chars {
        // More characters do not help when the limit of bytes was reached.
        let advice = if cut.at_char_limit { ", or raise maxChars" } else { "" };
        let _ = write!(
            rendered,
            "\n(cut at {} characters of {}; ask for a more specific address{advice})",
            cut.kept_chars, cut.total_chars
        );
    }
    if page.truncated {
        rendered.push_str("\n(the page is longer than what is fetched; its end is missing)");
    }
    Ok(truncate(rendered, max_bytes))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageKind {
    Html,
    Text,
    Unreadable,
}

impl PageKind {
    fn detect(page: &FetchedPage<'_>) -> Self {
        let named = page.content_type.unwrap_or_default();
        let named = named.split(';').next().unwrap_or_default().trim();
        let named = start(named, MAX_SHOWN).to_ascii_lowercase();
        match named.as_str() {
            "" => Self::sniff(page.body),
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

    fn sniff(body: &[u8]) -> Self {
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

    fn text(self, page: &FetchedPage<'_>, output: BoundedText) -> BoundedText {
        let text = decode(page.body, page.content_type, self == Self::Html);
        match self {
            Self::Html => html::extract(&text, page.url, output),
            Self::Text => push_plain(&text, output),
            Self::Unreadable => output,
        }
    }
}

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

/// Servers label unknown content as text. UTF-16 has NULs too, but is declared.
fn is_binary(page: &FetchedPage<'_>) -> bool {
    let wide = charset::named(page.content_type).is_some_and(|named| !named.is_ascii_compatible());
    !wide && !has_byte_order_mark(page.body) && has_nul(page.body)
}

fn has_nul(body: &[u8]) -> bool {
    body.iter().take(SNIFF_BYTES).any(|byte| *byte == 0)
}

fn push_plain(text: &str, mut output: BoundedText) -> BoundedText {
    for line in text.split_inclusive('\n') {
        for part in line.split(|character| !is_prose(character)) {
            output.push(part);
        }
    }
    output
}

fn start(text: &str, max_chars: usize) -> &str {
    text.get(..text.floor_char_boundary(max_chars)).unwrap_or_default()
}

fn truncate(mut text: String, max_chars: usize) -> String {
    text.truncate(text.floor_char_boundary(max_chars));
    text
}
