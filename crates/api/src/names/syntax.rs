//! The syntax of names as functions. A test compares each with the pattern in the schema.

pub fn is_label(text: &str) -> bool {
    let ok = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(ok)
        && bytes.last().copied().is_some_and(ok)
        && bytes.iter().all(|byte| ok(*byte) || *byte == b'-')
}

pub fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

pub fn is_subdomain_or_empty(text: &str) -> bool {
    text.is_empty() || is_subdomain(text)
}

pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((namespace, name)) => is_label(namespace) && is_subdomain(name),
        None => is_subdomain(text),
    }
}

pub fn is_skill_name(text: &str) -> bool {
    has_alphanumeric_ends(text) && text.bytes().all(is_word_byte)
}

pub fn is_tool_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

pub fn is_skill_file_path(text: &str) -> bool {
    text.split('/').all(|component| {
        component.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
            && component.bytes().all(is_word_byte)
    })
}

pub fn is_tool_pattern(text: &str) -> bool {
    let word = |part: &str| !part.is_empty() && part.bytes().all(is_word_byte);
    let (packs, tool) = match text.rsplit_once('/') {
        Some((packs, tool)) => (Some(packs), tool),
        None => (None, text),
    };
    let is_pack = |packs: &str| match packs.split_once('/') {
        Some((namespace, pack)) => word(namespace) && word(pack),
        None => word(packs),
    };
    packs.is_none_or(is_pack) && (tool == "*" || word(tool))
}

pub fn is_printable_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

pub fn is_host_pattern(text: &str) -> bool {
    let host = text.strip_prefix("*.").unwrap_or(text);
    has_alphanumeric_ends(host) && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

pub fn is_env_name(text: &str) -> bool {
    text.starts_with(|first: char| !first.is_ascii_digit()) && text.bytes().all(is_word_byte)
}

pub fn is_mount_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte != b':' && byte >= b' ')
}

pub fn is_uid(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|sum| {
        sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
    })
}

/// Whether the text starts and ends with a letter or a digit, of either case.
fn has_alphanumeric_ends(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric())
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Length of a UUID.
const UUID_LEN: usize = 36;

pub(super) fn is_canonical_uuid(text: &str) -> bool {
    text.len() == UUID_LEN
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}
