//! Lists of names in messages, and the syntax of labels and keys.

use sympozium_api::text::quote;

/// Maximum length of the name in a label's key, and of a label's value.
const MAX_LABEL_BYTES: usize = 63;
/// Maximum length of the domain before that name.
const MAX_DOMAIN_BYTES: usize = 253;

/// Whether a text is a valid label key: a name, or a domain, `/` and a name.
pub fn is_label_key(text: &str) -> bool {
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    let is_domain = |domain: &str| {
        domain.len() <= MAX_DOMAIN_BYTES && sympozium_api::names::ObjectName::new(domain).check().is_ok()
    };
    !name.is_empty() && is_label_value(name) && domain.is_none_or(is_domain)
}

/// Whether a text is a valid label value; the empty text is.
pub fn is_label_value(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL_BYTES && bytes.iter().all(|byte| plain(*byte)) && ends(bytes.first()) && ends(bytes.last())
}

/// Maximum length of a key of a Secret or ConfigMap.
const MAX_KEY_BYTES: usize = 253;

/// Whether a text is a valid key of a Secret or ConfigMap.
pub fn is_data_key(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= MAX_KEY_BYTES && text.bytes().all(plain) && text != "." && !text.starts_with("..")
}

/// Joins words as `a`, `a and b`, `a, b and c`, each in backticks.
pub fn quote_list<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| quote(word.as_ref())).collect();
    match words.as_slice() {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(quote_list::<&str>([]), "nothing");
        assert_eq!(quote_list(["a"]), "`a`");
        assert_eq!(quote_list(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
