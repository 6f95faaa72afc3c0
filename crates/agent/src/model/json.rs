//! Parses JSON of a provider, after a check that it does not exhaust memory.

use serde::de::{DeserializeOwned, Error as _};

/// Values in one event, in an unstreamed response, or in the arguments of a call. A value of two bytes of text takes up
/// to twenty times as much in a tree.
pub const MAX_VALUES: usize = 65_536;

const ESCAPE: usize = 6;
/// Replacement character, in as many bytes.
const REPLACEMENT: &[u8; ESCAPE] = br"\ufffd";

/// Parses a value of at most [`MAX_VALUES`].
///
/// Lone surrogates (`\ud83d` without its pair) are replaced: servers that cut texts by UTF-16 units send them, and the
/// rest of the response is worth reading.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    if has_too_many_values(json) {
        let problem = format!("it has more than {MAX_VALUES} values");
        return Err(serde_json::Error::custom(problem));
    }
    serde_json::from_slice(json).or_else(|error| match replace_lone_surrogates(json) {
        Some(json) => serde_json::from_slice(&json),
        None => Err(error),
    })
}

/// Counts separators without parsing.
pub fn has_too_many_values(json: &[u8]) -> bool {
    // A value takes at least a byte.
    if json.len() <= MAX_VALUES {
        return false;
    }
    let (mut values, mut at) = (1, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = string_end(json, at),
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

/// The position of the quote that ends the string which starts here.
fn string_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(rest) = json.get(at..) {
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(found) if rest[found] == b'"' => return at + found,
            // An escaped quote does not end the string.
            Some(found) => at += found + 2,
            None => break,
        }
    }
    json.len()
}

/// `None` where there is no lone surrogate.
fn replace_lone_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let mut replace_lone_surrogates: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(rest) = json.get(at..) {
        let Some(found) = rest.iter().position(|byte| *byte == b'\\') else {
            break;
        };
        at += found;
        at += match (escaped_unit(json, at), escaped_unit(json, at + ESCAPE)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * ESCAPE,
            (Some(0xd800..=0xdfff), _) => {
                let copy = replace_lone_surrogates.get_or_insert_with(|| json.to_vec());
                copy[at..at + ESCAPE].copy_from_slice(REPLACEMENT);
                ESCAPE
            }
            (Some(_), _) => ESCAPE,
            // A backslash and the character that it escapes.
            (None, _) => 2,
        };
    }
    replace_lone_surrogates
}

/// The UTF-16 unit of a `\u` escape.
fn escaped_unit(json: &[u8], at: usize) -> Option<u16> {
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
        parse(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_counted_before_parsing() {
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
    fn lone_surrogates_are_replaced() {
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
    fn valid_and_invalid_json_is_not_repaired() {
        let fine = json!({"a": "\u{1f600}\\ud83d", "b": [null, 1.5]});
        assert_eq!(value(&fine.to_string()), Ok(fine));
        assert_eq!(value(r#""\ud83d\ude00""#), Ok(json!("\u{1f600}")));
        for json in [r#""\ud83"#, r#""\ud83""#, r#""\ud83d"#, r#"["\ud83d""#, r#""\u+83d""#, r"\", "\"\\", ""] {
            assert!(value(json).is_err(), "{json}");
        }
        let eof = parse::<Value>(br#"["\ud83d""#).map_err(|error| error.is_eof());
        assert_eq!(eof, Err(true));
    }
}
