//! What the model was shown with a space in it that is not in the file, and writes back so.
//!
//! Before a model reads a text, `neutral` puts a space into what a chat format takes for control: `<tools>` becomes `< tools>`.
//! Nothing is changed here for the model. It may mean the space, so it is told where it is in the way.

use crate::tools::neutral::restored;

/// A text without the spaces that break up tokens in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Unbroken {
    pub text: String,
    /// What the first of the spaces stood after.
    pub bracket: char,
}

/// What there is to say about a text that was written, when tokens in it are broken up. Nothing for most.
pub fn note(what: &str, text: &str) -> String {
    Unbroken::of(text).map_or_else(String::new, |unbroken| {
        format!(
            "\n({what} has a space after `{}`, as you are shown words that chat formats take for control; if it is not meant to be in \
             the file, take it out)",
            unbroken.bracket
        )
    })
}

impl Unbroken {
    /// `None` for a text in which no token is broken up.
    pub fn of(text: &str) -> Option<Self> {
        // Most texts have no such space at all, and need not be written anew to know it.
        if !text.contains("< ") && !text.contains("[ ") {
            return None;
        }
        let whole = restored(text);
        // Only spaces are gone, so the first difference is one, and what stands before it is its bracket.
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
    fn tokens_are_made_whole_and_all_else_is_kept() {
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
            let expected = expected.map(|(text, bracket)| Unbroken { text: text.to_owned(), bracket });
            assert_eq!(Unbroken::of(text), expected, "{text}");
        }
    }
}
