//! JSON of a provider, read once it is known that it does not fill the memory.

use serde::de::{DeserializeOwned, Error as _};

/// Values in one event, in an answer that is not streamed, or in the arguments of a call. As a tree, a value that has two
/// bytes of text takes up to twenty times that.
pub const MAX_VALUES: usize = 65_536;

/// Bytes of `\u` and four digits.
const ESCAPE: usize = 6;
/// What stands for half of a character, in as many bytes.
const REPLACEMENT: &[u8; ESCAPE] = br"\ufffd";

/// A value.
///
/// Half of a character (`\ud83d` and nothing after it) is replaced: servers that cut texts by the letters of JavaScript send
/// it, and the rest of the answer is worth reading.
///
/// # Errors
///
/// When it is not JSON of this shape, or has more than [`MAX_VALUES`].
pub fn read<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    if has_too_many_values(json) {
        let problem = format!("it has more than {MAX_VALUES} values");
        return Err(serde_json::Error::custom(problem));
    }
    serde_json::from_slice(json).or_else(|error| match repaired(json) {
        Some(json) => serde_json::from_slice(&json),
        None => Err(error),
    })
}

/// Whether a text has more than [`MAX_VALUES`], which is told by what stands between them: it is not read for that.
pub fn has_too_many_values(json: &[u8]) -> bool {
    // Nothing is shorter than a letter and a comma.
    if json.len() <= MAX_VALUES {
        return false;
    }
    let (mut values, mut at) = (1, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = end_of_text(json, at),
            b',' | b'[' | b'{' => values += 1,
            _ => {}
        }
        if values > MAX_VALUES {
            return true;
        }
        at += 1;
    }
    false
}

/// The quote that ends the text which begins here.
fn end_of_text(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(rest) = json.get(at..) {
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(found) if rest[found] == b'"' => return at + found,
            // What is escaped is no end.
            Some(found) => at += found + 2,
            None => break,
        }
    }
    json.len()
}

/// The same without halves of characters; nothing where there are none.
fn repaired(json: &[u8]) -> Option<Vec<u8>> {
    let mut repaired: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(rest) = json.get(at..) {
        let Some(found) = rest.iter().position(|byte| *byte == b'\\') else {
            break;
        };
        at += found;
        at += match (unit(json, at), unit(json, at + ESCAPE)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * ESCAPE,
            (Some(0xd800..=0xdfff), _) => {
                let copy = repaired.get_or_insert_with(|| json.to_vec());
                copy[at..at + ESCAPE].copy_from_slice(REPLACEMENT);
                ESCAPE
            }
            (Some(_), _) => ESCAPE,
            // A backslash, and what it escapes.
            (None, _) => 2,
        };
    }
    repaired
}

/// The number of an escape, where there is one.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let escape = json.get(at..at + ESCAPE)?;
    let digits = escape.strip_prefix(br"\u")?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn value(json: &str) -> Result<Value, String> {
        read(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_counted_before_they_are_read() {
        let list = |values: usize| format!("[{}]", vec!["1"; values].join(","));
        assert_eq!(value(&list(MAX_VALUES - 1)), Ok(json!(vec![1; MAX_VALUES - 1])));
        let too_many = Err(format!("it has more than {MAX_VALUES} values"));
        for json in [
            list(MAX_VALUES),
            "[".repeat(MAX_VALUES + 1),
            "{\"\":".repeat(MAX_VALUES + 1),
            format!("[\"\\\"\",{}]", "{},".repeat(MAX_VALUES)),
        ] {
            assert_eq!(value(&json), too_many, "{}", &json[..20]);
        }
        // What is in a text is no value, whatever is escaped in it.
        let text = "[{,\\".repeat(MAX_VALUES);
        assert_eq!(value(&json!(text).to_string()), Ok(json!(text)));
    }

    #[test]
    fn halves_of_characters_are_replaced() {
        for (json, expected) in [
            (r#""\ud83d""#, "\u{fffd}"),
            (r#""a\uD83Db""#, "a\u{fffd}b"),
            (r#""\ude00""#, "\u{fffd}"),
            (r#""\ude00\ud83d""#, "\u{fffd}\u{fffd}"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\ud83d\n""#, "\u{fffd}\n"),
            (r#""\\\ud83d\\ud83d""#, "\\\u{fffd}\\ud83d"),
            (r#""\ud83d\u0041""#, "\u{fffd}A"),
        ] {
            assert_eq!(value(json), Ok(json!(expected)), "{json}");
        }
    }

    #[test]
    fn what_is_fine_or_beyond_repair_is_as_it_is() {
        let fine = json!({"a": "\u{1f600}\\ud83d", "b": [null, 1.5]});
        assert_eq!(value(&fine.to_string()), Ok(fine));
        assert_eq!(value(r#""\ud83d\ude00""#), Ok(json!("\u{1f600}")));
        for json in [r#""\ud83"#, r#""\ud83""#, r#""\ud83d"#, r#"["\ud83d""#, r#""\u+83d""#, r"\", "\"\\", ""] {
            assert!(value(json).is_err(), "{json}");
        }
        let eof = read::<Value>(br#"["\ud83d""#).map_err(|error| error.is_eof());
        assert_eq!(eof, Err(true));
    }
}
