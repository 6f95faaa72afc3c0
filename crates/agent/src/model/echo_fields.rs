//! Decides which unknown fields of a response may be sent back.
//!
//! The bridge refuses requests that refer to external content, by names such as `url` and `file_id`, or that are nested
//! too deep to inspect. A refused message would end the run, because it is in every later request. So this is stricter
//! than the bridge in every point. Neither inspects arguments of calls.

use serde_json::Value;

const MAX_FIELD_NAME: usize = 64;
/// Nesting of a field beside the content. A whole request may have 128 levels, and these fields are at most six below
/// the top.
pub const MAX_FIELD_DEPTH: usize = 32;
/// Nesting of a field of a content block. The bridge allows 16 for the list of messages, and message, content and block
/// take four of them.
pub const MAX_CONTENT_DEPTH: usize = 12;
/// Parts of field names that refer to a location or to something the provider stores.
const LOCATION_WORDS: &[&str] = &["url", "uri", "file", "container"];

/// Whether a field of a message or of a call, beside its content, may be sent back. The bridge does not search these
/// for locations.
pub fn may_echo_field(name: &str, value: &Value) -> bool {
    is_safe_name(name) && depth(value) <= MAX_FIELD_DEPTH
}

/// Whether a field of a content block may be sent back.
pub fn may_echo_in_content(name: &str, value: &Value) -> bool {
    is_safe_name(name) && depth(value) <= MAX_CONTENT_DEPTH && has_safe_names(value)
}

/// Recursion is bounded by the parser's own limit.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn is_safe_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let lower = name.to_ascii_lowercase();
    !name.is_empty()
        && name.len() <= MAX_FIELD_NAME
        && name.bytes().all(plain)
        && !LOCATION_WORDS.iter().any(|location_word| lower.contains(location_word))
}

fn has_safe_names(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(has_safe_names),
        Value::Object(fields) => fields.iter().all(|(name, value)| is_safe_name(name) && has_safe_names(value)),
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
    const BRIDGE_DEPTH: usize = 16;

    /// Whether the bridge would take a message: its rule once more, without the exception for `data:`.
    pub fn bridge_accepts(message: &Value) -> bool {
        let fields = message.as_object().expect("a message");
        let is_refused = |name: &str| {
            let name = name.to_uppercase().to_lowercase();
            REFUSED.contains(&name.as_str())
        };
        fn accepts(value: &Value, left: usize, is_refused: &dyn Fn(&str) -> bool) -> bool {
            match value {
                Value::Array(items) => left > 0 && items.iter().all(|item| accepts(item, left - 1, is_refused)),
                Value::Object(fields) => {
                    left > 0
                        && fields.iter().all(|(name, value)| {
                            !is_refused(name)
                                && (name.to_lowercase() == "input" || accepts(value, left - 1, is_refused))
                        })
                }
                _ => true,
            }
        }
        // The list of messages and the message are two levels.
        let content = fields.get("content").unwrap_or(&Value::Null);
        !fields.keys().any(|name| is_refused(name)) && accepts(content, BRIDGE_DEPTH - 2, &is_refused)
    }

    pub fn deep(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!([inner]))
    }

    #[test]
    fn location_fields_are_not_sent() {
        for name in REFUSED {
            for name in [(*name).to_owned(), name.to_uppercase(), format!("my_{name}")] {
                assert!(!may_echo_in_content(&name, &json!(1)), "{name}");
                assert!(!may_echo_field(&name, &json!(1)), "{name}");
                let within = json!([{"a": {name.as_str(): null}}]);
                assert!(!may_echo_in_content("a", &within), "{name}");
                assert!(may_echo_field("a", &within), "{name}");
            }
        }
        // The long s, and names that are none.
        for name in ["u\u{17f}l", "file\u{17f}", "ur\u{49}", "", "a b", "a\"b", &"a".repeat(65)] {
            assert!(!may_echo_in_content(name, &json!(1)), "{name}");
            assert!(!may_echo_in_content("a", &json!({name: 1})), "{name}");
        }
        for name in ["thought_signature", "extra_content", "a-b.c", "data"] {
            assert!(may_echo_in_content(name, &json!({name: {name: "http://x"}})), "{name}");
        }
    }

    #[test]
    fn depth_limits_match_the_bridge() {
        let block = |levels| json!({"content": [{"type": "new", "deep": deep(levels)}]});
        assert!(may_echo_in_content("deep", &deep(MAX_CONTENT_DEPTH)));
        assert!(bridge_accepts(&block(MAX_CONTENT_DEPTH)));
        assert!(!may_echo_in_content("deep", &deep(MAX_CONTENT_DEPTH + 1)));
        assert!(!bridge_accepts(&block(MAX_CONTENT_DEPTH + 1)));
        assert!(may_echo_field("deep", &deep(MAX_FIELD_DEPTH)));
        assert!(!may_echo_field("deep", &deep(MAX_FIELD_DEPTH + 1)));
    }
}
