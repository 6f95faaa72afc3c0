//! Body of the fuzz target for foreign text.
//!
//! Three callers share it: coverage-guided fuzzing (`make fuzz`), the replay of the corpus on stable in `make test`, and
//! a developer who debugs a finding. It states a property and panics when it does not hold.

use crate::text::{Bytes, Chars, Columns, Limit, MAX_NAME, is_visible, printable, quote, truncate};

/// A body: it returns when every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[("foreign_text", foreign_text)];

/// The first byte is the limit, the rest is the text.
pub fn foreign_text(data: &[u8]) {
    if let Some((limit, text)) = data.split_first() {
        check_texts(&String::from_utf8_lossy(text), usize::from(*limit));
    }
}

/// Output is printable and on one line, printing it again changes nothing, and it is within its limit.
pub(crate) fn check_texts(text: &str, limit: usize) {
    let shown = printable(text);
    assert!(shown.chars().all(is_visible), "{shown:?}");
    assert_eq!(printable(&*shown), shown);
    if text.chars().all(is_visible) {
        assert_eq!(shown, text);
    }

    let quoted = quote(text);
    let inner = quoted.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
    assert!(inner.is_some_and(|inner| inner.chars().all(is_visible)), "{quoted:?}");
    // The longest escape has ten characters.
    assert!(quoted.chars().count() <= 10 * MAX_NAME.0 + 2, "{quoted:?}");

    check_truncated(text, Bytes(limit));
    check_truncated(text, Chars(limit));
    check_truncated(text, Columns(limit));
}

fn check_truncated<L: Limit>(text: &str, limit: L) {
    let short = truncate(text, limit);
    assert!(L::measure(&short) <= limit.maximum(), "{short:?}");
    assert_eq!(truncate(&*short, limit), short);
    if L::measure(text) <= limit.maximum() {
        assert_eq!(short, text);
    } else {
        let beginning = short.strip_suffix('…').unwrap_or(&short);
        assert!(text.starts_with(beginning), "{short:?} {text:?}");
        assert!(short.ends_with('…') || short.is_empty(), "{short:?}");
    }
}

#[cfg(test)]
mod tests;
