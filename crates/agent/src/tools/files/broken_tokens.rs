//! Spaces that were inserted into a text for the model, and come back when the model quotes it.
//!
//! Before a model reads a text, [`chat_tokens`](crate::tools::chat_tokens) inserts a space into control tokens:
//! `<tools>` becomes `< tools>`. The space may be intended, so it is not removed here; the model gets a note instead.

use crate::tools::chat_tokens::restore_tokens;

#[derive(Debug, PartialEq, Eq)]
pub struct RestoredText {
    pub text: String,
    /// The character before the first inserted space.
    pub bracket: char,
}

/// A note for the model when a text that it wrote contains broken tokens; empty for most texts.
pub fn note(what: &str, text: &str) -> String {
    RestoredText::of(text).map_or_else(String::new, |unbroken| {
        format!(
            "\n({what} has a space after `{}`, as is inserted into control tokens of chat formats when you read them; if it is not meant to be in \
             the file, take it out)",
            unbroken.bracket
        )
    })
}

impl RestoredText {
    pub fn of(text: &str) -> Option<Self> {
        // Most texts have no such space: skip the copy.
        if !text.contains("< ") && !text.contains("[ ") {
            return None;
        }
        let whole = restore_tokens(text);
        // Only spaces were removed, so the first difference is one, and its bracket precedes it.
        let same = text.bytes().zip(whole.bytes());
        let first = same.take_while(|(one, other)| one == other).count();
        let bracket = text.as_bytes()[..first].last().copied();
        (whole.len() < text.len()).then(|| Self { text: whole, bracket: bracket.map_or('<', char::from) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_broken_tokens_are_restored() {
        let cases = [
            ("", None),
            ("a < b and c[ 0]", None),
            ("<tools>", None),
            ("<  tools>", None),
            ("< tools >", None),
            ("< tools>", Some(("<tools>", '<'))),
            ("a\n< tools>x< /tools>\n", Some(("a\n<tools>x</tools>\n", '<'))),
            ("< b>[ /INST]< 1", Some(("< b>[/INST]< 1", '['))),
            ("€< |im_start|>€", Some(("€<|im_start|>€", '<'))),
            ("< < s>", Some(("< <s>", '<'))),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|(text, bracket)| RestoredText { text: text.to_owned(), bracket });
            assert_eq!(RestoredText::of(text), expected, "{text}");
        }
    }
}
