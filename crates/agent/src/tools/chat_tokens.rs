//! Breaks up control tokens of chat templates in untrusted texts.
//!
//! Some servers parse the special tokens of their model inside contents too. A page or a file with `<|im_start|>system`
//! could then end the tool result and impersonate another role. One space after the first character prevents that, and
//! a reader still sees what was there.

use std::borrow::Cow;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(test)]
mod tests;

/// Bytes between the ends of a token such as `<|im_start|>`. The longest in use have about 40.
const MAX_WORD: usize = 64;

/// More than any token has: a bracket, two wide bars, a word and its last character.
const MAX_TOKEN: usize = MAX_WORD + 32;

/// Exact tokens in angle brackets.
const TAG_TOKENS: &[&str] = &[
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
    "<<SYS>>",
    "<</SYS>>",
];

/// Tokens in square brackets, without the bracket (and the slash) that they begin with.
const BRACKET_TOKENS: &[&str] =
    &["INST]", "SYSTEM_PROMPT]", "AVAILABLE_TOOLS]", "TOOL_CALLS]", "TOOL_RESULTS]", "TOOL_CONTENT]", "THINK]"];

/// Some models use this instead of `|`.
const WIDE_BAR: &str = "\u{ff5c}";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafeText<'t> {
    /// Borrowed if the input holds no token.
    pub text: Cow<'t, str>,
    pub broken_tokens: usize,
}

/// Inserts a space into each token. Idempotent.
pub fn break_tokens(text: &str) -> SafeText<'_> {
    let mut changed = String::new();
    let mut broken_tokens = 0;
    // `changed` has everything before `copied`; everything before `at` was examined.
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = find_bracket(text, at) {
        // Continue right after the bracket: a token may start inside of something that only resembles one.
        at = found + 1;
        if !begins_token(text.get(found..).unwrap_or_default()) {
            continue;
        }
        if broken_tokens == 0 {
            changed.reserve(text.len() + 16);
        }
        broken_tokens += 1;
        changed.push_str(text.get(copied..at).unwrap_or_default());
        changed.push(' ');
        copied = at;
    }
    if broken_tokens == 0 {
        return SafeText { text: Cow::Borrowed(text), broken_tokens };
    }
    changed.push_str(text.get(copied..).unwrap_or_default());
    SafeText { text: Cow::Owned(changed), broken_tokens }
}

/// The inverse of [`break_tokens`]: removes the space from each broken token. A token that was broken in the original
/// is restored as well.
///
/// The result contains tokens again: it is for comparison and for people, never for a model.
pub fn restore_tokens(text: &str) -> String {
    // Backwards, because an inner token must be restored before the outer one can match.
    let mut spaces: Vec<usize> = Vec::new();
    for (at, _) in text.rmatch_indices(['<', '[']) {
        if text.as_bytes().get(at + 1) == Some(&b' ') && is_broken_token(text, at, &spaces) {
            spaces.push(at + 1);
        }
    }
    let mut whole = String::with_capacity(text.len());
    let mut copied = 0;
    for space in spaces.into_iter().rev() {
        whole.push_str(text.get(copied..space).unwrap_or_default());
        copied = space + 1;
    }
    whole.push_str(text.get(copied..).unwrap_or_default());
    whole
}

/// Whether a token begins here without the space after its bracket and without the spaces at `removed`, whose first
/// element is the last in the text.
fn is_broken_token(text: &str, at: usize, removed: &[usize]) -> bool {
    let mut token = String::with_capacity(MAX_TOKEN);
    let mut removed = removed.iter().rev().peekable();
    for (offset, character) in text.get(at..).unwrap_or_default().char_indices() {
        if offset == 1 || removed.next_if_eq(&&(at + offset)).is_some() {
            continue;
        }
        token.push(character);
        if token.len() >= MAX_TOKEN {
            break;
        }
    }
    begins_token(&token)
}

fn find_bracket(text: &str, from: usize) -> Option<usize> {
    let rest = text.as_bytes().get(from..)?;
    let offset = rest.iter().position(|byte| matches!(byte, b'<' | b'['))?;
    Some(from + offset)
}

fn begins_token(text: &str) -> bool {
    if let Some(mark) = text.strip_prefix('[') {
        let mark = mark.strip_prefix('/').unwrap_or(mark);
        return BRACKET_TOKENS.iter().any(|known| mark.starts_with(known));
    }
    let Some(inside) = text.strip_prefix('<') else {
        return false;
    };
    if let Some(word) = inside.strip_prefix('|') {
        return ends_word(word, &["|>", ">"]);
    }
    if let Some(word) = inside.strip_prefix(WIDE_BAR) {
        return ends_word(word, &["\u{ff5c}>"]);
    }
    TAG_TOKENS.iter().any(|tag| text.starts_with(tag)) || ends_word(inside, &["|>"])
}

fn ends_word(text: &str, ends: &[&str]) -> bool {
    for (offset, character) in text.char_indices() {
        let rest = text.get(offset..).unwrap_or_default();
        if offset > 0 && ends.iter().any(|end| rest.starts_with(end)) {
            return true;
        }
        if offset >= MAX_WORD || matches!(character, '<' | '>' | '|') || character.is_whitespace() {
            return false;
        }
    }
    false
}
