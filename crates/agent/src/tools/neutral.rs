//! What chat formats take for control, made harmless in texts that others wrote.
//!
//! A server may look for the special tokens of its model inside contents too. A page or a file that holds `<|im_start|>system`
//! could then end the tool's answer and speak as somebody else. One space after the first character is enough: the text no
//! longer is the token, and a reader still sees what was there.

use std::borrow::Cow;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(test)]
mod tests;

/// Most bytes between the ends of a token such as `<|im_start|>`. The longest that are in use have about 40.
const MOST_WORD: usize = 64;

/// Most bytes of a whole token, and more than any has: a bracket, two wide bars, a word and its last character.
const MOST_TOKEN: usize = MOST_WORD + 32;

/// Tokens that are exactly this, in angle brackets.
const TAGS: &[&str] = &[
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
const MARKS: &[&str] =
    &["INST]", "SYSTEM_PROMPT]", "AVAILABLE_TOOLS]", "TOOL_CALLS]", "TOOL_RESULTS]", "TOOL_CONTENT]", "THINK]"];

/// The bar that stands in the tokens of some models instead of `|`.
const WIDE_BAR: &str = "\u{ff5c}";

/// A text in which nothing is a token of a chat format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neutral<'t> {
    /// The text: the one that came in, when it held none.
    pub text: Cow<'t, str>,
    /// How many tokens were broken up.
    pub broken_up: usize,
}

/// The text with what chat formats take for control made harmless. A text that is harmless comes back as it is, so this can be
/// done twice.
pub fn neutral(text: &str) -> Neutral<'_> {
    let mut changed = String::new();
    let mut broken_up = 0;
    // Everything before `kept` is in `changed`, everything before `at` was looked at.
    let (mut kept, mut at) = (0, 0);
    while let Some(found) = opening(text, at) {
        // The scan goes on right behind the bracket: a token may begin inside what only looks like one.
        at = found + 1;
        if !begins_token(text.get(found..).unwrap_or_default()) {
            continue;
        }
        if broken_up == 0 {
            changed.reserve(text.len() + 16);
        }
        broken_up += 1;
        changed.push_str(text.get(kept..at).unwrap_or_default());
        changed.push(' ');
        kept = at;
    }
    if broken_up == 0 {
        return Neutral { text: Cow::Borrowed(text), broken_up };
    }
    changed.push_str(text.get(kept..).unwrap_or_default());
    Neutral { text: Cow::Owned(changed), broken_up }
}

/// The text as it was before [`neutral`]: without the space in each token that is broken up. A text that held such a broken
/// token from the start is not told from one that was made harmless; all others come back as they were.
///
/// What this gives is for comparing and for people, never for a model: it holds the tokens again.
pub fn restored(text: &str) -> String {
    // From the end on, since a token may hold another, which must be whole before it is.
    let mut spaces: Vec<usize> = Vec::new();
    for (at, _) in text.rmatch_indices(['<', '[']) {
        if text.as_bytes().get(at + 1) == Some(&b' ') && is_broken_token(text, at, &spaces) {
            spaces.push(at + 1);
        }
    }
    let mut whole = String::with_capacity(text.len());
    let mut kept = 0;
    for space in spaces.into_iter().rev() {
        whole.push_str(text.get(kept..space).unwrap_or_default());
        kept = space + 1;
    }
    whole.push_str(text.get(kept..).unwrap_or_default());
    whole
}

/// Whether a token begins here without the space after its bracket, and without the spaces at the places `left_out`, the
/// first of which is the last in the list.
fn is_broken_token(text: &str, at: usize, left_out: &[usize]) -> bool {
    let mut token = String::with_capacity(MOST_TOKEN);
    let mut left_out = left_out.iter().rev().peekable();
    for (offset, character) in text.get(at..).unwrap_or_default().char_indices() {
        if offset == 1 || left_out.next_if_eq(&&(at + offset)).is_some() {
            continue;
        }
        token.push(character);
        if token.len() >= MOST_TOKEN {
            break;
        }
    }
    begins_token(&token)
}

/// Where the next bracket is that a token may begin with.
fn opening(text: &str, from: usize) -> Option<usize> {
    let rest = text.as_bytes().get(from..)?;
    let offset = rest.iter().position(|byte| matches!(byte, b'<' | b'['))?;
    Some(from + offset)
}

fn begins_token(text: &str) -> bool {
    if let Some(mark) = text.strip_prefix('[') {
        let mark = mark.strip_prefix('/').unwrap_or(mark);
        return MARKS.iter().any(|known| mark.starts_with(known));
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
    TAGS.iter().any(|tag| text.starts_with(tag)) || ends_word(inside, &["|>"])
}

/// Whether a word of at least one character begins here and ends with one of `ends`.
fn ends_word(text: &str, ends: &[&str]) -> bool {
    for (offset, character) in text.char_indices() {
        let rest = text.get(offset..).unwrap_or_default();
        if offset > 0 && ends.iter().any(|end| rest.starts_with(end)) {
            return true;
        }
        if offset >= MOST_WORD || matches!(character, '<' | '>' | '|') || character.is_whitespace() {
            return false;
        }
    }
    false
}
