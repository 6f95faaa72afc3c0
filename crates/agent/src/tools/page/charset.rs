//! In which character set a page is written.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8};

/// Bytes of a page in which it may say its character set.
const DECLARED_WITHIN: usize = 1024;

/// The page's text: by its byte order mark, by what the server says, by what the page says, else as UTF-8. What is not valid
/// becomes U+FFFD.
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

/// The character set that a type names.
pub fn named(content_type: Option<&str>) -> Option<&'static Encoding> {
    content_type?.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("charset") {
            return None;
        }
        Encoding::for_label(value.trim().trim_matches(['"', '\'']).as_bytes())
    })
}

/// The character set that a page names in a `meta` element, in either of the two ways.
fn declared(body: &[u8]) -> Option<&'static Encoding> {
    let start = body.get(..DECLARED_WITHIN).unwrap_or(body);
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
                // A page in which this could be read is not in two bytes for each character, whatever it says.
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
