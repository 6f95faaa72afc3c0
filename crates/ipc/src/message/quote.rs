//! Quoting of text for a shell.

/// Quotes `text` so that a POSIX shell reads it as exactly one word.
///
/// Within single quotes only the single quote is special; it is escaped between two quoted parts.
#[must_use]
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
