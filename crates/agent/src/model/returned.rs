//! What may go back to a provider as it came, though nobody here knows it.
//!
//! The bridge refuses requests whose content is elsewhere, by names such as `url` and `file_id`, or is nested too deep to look
//! into. A message that is refused once is refused for good, since it stands in every later request: whoever sent us such a
//! field would end the run. So this is stricter than the bridge in every point. Arguments of calls are not looked into,
//! there and here.

use serde_json::Value;

/// Bytes of a field's name.
const MAX_FIELD_NAME: usize = 64;
/// Levels of lists and objects in a field beside the content of a message. A whole request may have 128, and these are in a
/// message, or in the function of a call of one: at most six below the top.
pub const MAX_LEVELS: usize = 32;
/// Levels in a field of a block of content. Of messages, the bridge takes 16; the list of them, a message, its content and the
/// block are four.
pub const MAX_CONTENT_LEVELS: usize = 12;
/// What is part of the names of fields that name a place: an address, or what a provider keeps.
const PLACES: &[&str] = &["url", "uri", "file", "container"];

/// Whether a field of a message, or of a call beside its content, may be sent. Nobody looks for places in it.
pub fn beside_content(name: &str, value: &Value) -> bool {
    is_harmless(name) && levels(value) <= MAX_LEVELS
}

/// Whether a field of a block of content may be sent.
pub fn in_content(name: &str, value: &Value) -> bool {
    is_harmless(name) && levels(value) <= MAX_CONTENT_LEVELS && has_harmless_names(value)
}

/// Levels of lists and objects. Values come from a parser with a bound of its own: this ends.
pub fn levels(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(levels).max().unwrap_or(0),
        _ => 0,
    }
}

/// Whether a name is plain and names no place, in whichever letters.
fn is_harmless(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let lower = name.to_ascii_lowercase();
    !name.is_empty()
        && name.len() <= MAX_FIELD_NAME
        && name.bytes().all(plain)
        && !PLACES.iter().any(|it| lower.contains(it))
}

fn has_harmless_names(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(has_harmless_names),
        Value::Object(fields) => fields.iter().all(|(name, value)| is_harmless(name) && has_harmless_names(value)),
        _ => true,
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// Names that the bridge refuses in content, and levels that it takes of messages: as it has them.
    const REFUSED: &[&str] = &[
        "audio_url",
        "file_uri",
        "file_url",
        "fileuri",
        "image_url",
        "uri",
        "url",
        "video_url",
        "container_id",
        "file_id",
        "file_ids",
    ];
    const LEVELS: usize = 16;

    /// Whether the bridge would take a message: its rule once more, without the exception for `data:`.
    pub fn is_taken(message: &Value) -> bool {
        let fields = message.as_object().expect("a message");
        let is_refused = |name: &str| {
            let name = name.to_uppercase().to_lowercase();
            REFUSED.contains(&name.as_str())
        };
        fn looks(value: &Value, left: usize, is_refused: &dyn Fn(&str) -> bool) -> bool {
            match value {
                Value::Array(items) => left > 0 && items.iter().all(|it| looks(it, left - 1, is_refused)),
                Value::Object(fields) => {
                    left > 0
                        && fields.iter().all(|(name, value)| {
                            !is_refused(name) && (name.to_lowercase() == "input" || looks(value, left - 1, is_refused))
                        })
                }
                _ => true,
            }
        }
        // The list of messages and the message are two levels.
        let content = fields.get("content").unwrap_or(&Value::Null);
        !fields.keys().any(|name| is_refused(name)) && looks(content, LEVELS - 2, &is_refused)
    }

    pub fn deep(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!([inner]))
    }

    #[test]
    fn names_of_places_are_not_sent() {
        for name in REFUSED {
            for name in [(*name).to_owned(), name.to_uppercase(), format!("my_{name}")] {
                assert!(!in_content(&name, &json!(1)), "{name}");
                assert!(!beside_content(&name, &json!(1)), "{name}");
                let within = json!([{"a": {name.as_str(): null}}]);
                assert!(!in_content("a", &within), "{name}");
                assert!(beside_content("a", &within), "{name}");
            }
        }
        // The long s, and names that are none.
        for name in ["u\u{17f}l", "file\u{17f}", "ur\u{49}", "", "a b", "a\"b", &"a".repeat(65)] {
            assert!(!in_content(name, &json!(1)), "{name}");
            assert!(!in_content("a", &json!({name: 1})), "{name}");
        }
        for name in ["thought_signature", "extra_content", "a-b.c", "data"] {
            assert!(in_content(name, &json!({name: {name: "http://x"}})), "{name}");
        }
    }

    #[test]
    fn as_much_is_sent_as_the_bridge_takes() {
        let block = |levels| json!({"content": [{"type": "new", "deep": deep(levels)}]});
        assert!(in_content("deep", &deep(MAX_CONTENT_LEVELS)));
        assert!(is_taken(&block(MAX_CONTENT_LEVELS)));
        assert!(!in_content("deep", &deep(MAX_CONTENT_LEVELS + 1)));
        assert!(!is_taken(&block(MAX_CONTENT_LEVELS + 1)));
        assert!(beside_content("deep", &deep(MAX_LEVELS)));
        assert!(!beside_content("deep", &deep(MAX_LEVELS + 1)));
    }
}
