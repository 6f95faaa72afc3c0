//! Making one word of a shell line from any text.

/// Quotes `text` so that a POSIX shell reads exactly one word from it, the text itself.
///
/// Within single quotes nothing is special but the single quote, which is put between two quoted parts, escaped.
#[must_use]
pub fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
