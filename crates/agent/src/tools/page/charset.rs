//! Determines the character set of a page.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8};

/// Bytes of a page that are searched for its declaration.
const MAX_DECLARATION_OFFSET: usize = 1024;

/// Decodes by byte order mark, by `Content-Type`, by the page's declaration, else as UTF-8. Invalid bytes become
/// U+FFFD.
pub fn decode<'b>(body: &'b [u8], content_type: Option<&str>, html: bool) -> Cow<'b, str> {
    if let Some((encoding, mark)) = Encoding::for_bom(body) {
        let body = body.get(mark..).unwrap_or_default();
        return encoding.decode_without_bom_handling(body).0;
    }
    let encoding = named(content_type).or_else(|| if html { declared(body) } else { None }).unwrap_or(UTF_8);
    encoding.decode_without_bom_handling(body).0
}

pub fn has_byte_order_mark(body: &[u8]) -> bool {
    Encoding::for_bom(body).is_some()
}

pub fn named(content_type: Option<&str>) -> Option<&'static Encoding> {
    content_type?.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("charset") {
            return None;
        }
        Encoding::for_label(value.trim().trim_matches(['"', '\'']).as_bytes())
    })
}

/// The character set of a `meta` element, in either form.
fn declared(body: &[u8]) -> Option<&'static Encoding> {
    let start = body.get(..MAX_DECLARATION_OFFSET).unwrap_or(body);
    let start = start.to_ascii_lowercase();
    let mut rest = start.as_slice();
    while let Some(at) = position(rest, b"<meta") {
        rest = rest.get(at + 5..)?;
        let end = position(rest, b">").unwrap_or(rest.len());
        let element = rest.get(..end)?;
        if let Some(at) = position(element, b"charset") {
            let value = element.get(at + 7..)?.trim_ascii_start();
            if let Some(value) = value.strip_prefix(b"=") {
                let value = value.trim_ascii_start();
                let value = match value.first() {
                    Some(b'"' | b'\'') => value.get(1..)?,
                    _ => value,
                };
                let end = value
                    .iter()
                    .position(|byte| matches!(byte, b'"' | b'\'' | b';' | b'/') || byte.is_ascii_whitespace())
                    .unwrap_or(value.len());
                let encoding = Encoding::for_label(value.get(..end)?)?;
                // The declaration was readable as ASCII, so the page is not UTF-16, whatever it says.
                return Some(if encoding.is_ascii_compatible() { encoding } else { UTF_8 });
            }
        }
        rest = rest.get(end..)?;
    }
    None
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
