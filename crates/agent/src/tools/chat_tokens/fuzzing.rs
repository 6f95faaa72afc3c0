//! The body of a fuzz target: texts that others wrote.

use std::borrow::Cow;

use super::{break_tokens, restore_tokens};

/// What comes out is harmless, is what came in but for one space for each token, and is only a new text when there was one.
/// Without those spaces it is the text that came in.
pub fn neutral_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let once = break_tokens(text);
    assert_eq!(
        once.broken_tokens > 0,
        matches!(once.text, Cow::Owned(_)),
        "a new text only when something was broken up"
    );
    assert_eq!(once.text.len(), text.len() + once.broken_tokens);
    let twice = break_tokens(&once.text);
    assert_eq!((twice.broken_tokens, &twice.text), (0, &once.text));
    // A broken token in the input cannot be distinguished from one that we broke up.
    if restore_tokens(text) == text {
        assert_eq!(restore_tokens(&once.text), text, "it is what it was");
    }
    let letters = |text: &str| text.replace(' ', "");
    assert_eq!(letters(text), letters(&once.text), "only spaces are added");
}
