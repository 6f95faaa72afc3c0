//! Texts of others in messages of ours.

use std::borrow::Cow;

/// Most characters of a foreign text that a message repeats.
pub const MAX_SHOWN: usize = 80;

/// A text as a message may repeat it: cut, and without characters that could move a cursor or reverse a line.
pub fn shown(text: &str) -> Cow<'_, str> {
    let plain = |letter: char| {
        letter == ' '
            || (letter.is_ascii() && letter.is_ascii_graphic())
            || letter.is_alphanumeric()
    };
    if text.len() <= MAX_SHOWN && text.chars().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut shown: String = text
        .chars()
        .take(MAX_SHOWN)
        .map(|letter| if plain(letter) { letter } else { '\u{fffd}' })
        .collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    Cow::Owned(shown)
}

/// `a`, `a and b`, `a, b and c`, each in backticks.
pub fn listed<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = words
        .into_iter()
        .map(|word| format!("`{}`", shown(word.as_ref())))
        .collect();
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
    fn what_is_shown_is_short_and_harmless() {
        assert_eq!(shown("ghcr.io/org"), "ghcr.io/org");
        assert_eq!(shown("größe"), "größe");
        assert_eq!(
            shown("a\u{1b}[31m\n\u{202e}b"),
            "a\u{fffd}[31m\u{fffd}\u{fffd}b"
        );
        assert_eq!(shown(&"x".repeat(MAX_SHOWN)).len(), MAX_SHOWN);
        assert_eq!(shown(&"x".repeat(500)).chars().count(), MAX_SHOWN + 1);
    }

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(listed::<&str>([]), "nothing");
        assert_eq!(listed(["a"]), "`a`");
        assert_eq!(listed(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
