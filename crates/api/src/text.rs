//! Which characters are safe to show: one table for everything that repeats texts of others to people or to a model.
//!
//! What cannot be seen cannot be compared, and a model reads it all the same; what steers a terminal or turns a line around
//! shows a text as another than it is. General categories are those of [`UNICODE_VERSION`]; the exceptions are below, with
//! their reasons. A character that a later version of Unicode adds is not visible until the table knows it.

use std::borrow::Cow;

use unicode_general_category::{GeneralCategory, get_general_category};

/// The version of Unicode that the table is of.
pub const UNICODE_VERSION: (u64, u64, u64) = unicode_general_category::UNICODE_VERSION;

/// How a character is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visibility {
    /// As itself, on one line. Every space that takes up room is among them: it is seen as a space.
    Visible,
    /// Line feed and tab: harmless in a text of several lines.
    Layout,
    /// Only in its context, or differently by different readers: joiners, marks of direction and variation selectors, without
    /// which some scripts and emoji cannot be written; private use, which each font shows in its own way; and what is not
    /// assigned yet. Kept in prose, written out where characters are compared.
    Contextual,
    /// Not at all, or it changes how its neighbours are seen.
    Hidden,
}

/// How a character is seen.
pub fn visibility(character: char) -> Visibility {
    use Visibility::{Contextual, Hidden, Layout, Visible};
    match character {
        ' '..='~' => return Visible,
        '\n' | '\t' => return Layout,
        _ => {}
    }
    match character {
        // Letters and marks by their category, and blank: fillers of Hangul, inherent vowels of Khmer, the empty cell of
        // Braille.
        '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => Hidden,
        // Marks by their category, and seen only by what they do to their neighbour. Text and emoji presentation (15, 16) and
        // the variations of Mongolian are written in earnest; the other 254 are an alphabet that nobody sees.
        '\u{34f}' | '\u{180b}'..='\u{180f}' | '\u{fe0e}'..='\u{fe0f}' => Contextual,
        '\u{fe00}'..='\u{fe0d}' | '\u{e0100}'..='\u{e01ef}' => Hidden,
        // Joiners, and marks of direction that do not reach beyond their neighbours.
        '\u{61c}' | '\u{200c}'..='\u{200f}' => Contextual,
        // Of category Format, and with a glyph of their own: signs of Arabic, Syriac and Kaithi.
        '\u{600}'..='\u{605}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' => Visible,
        '\u{110bd}' | '\u{110cd}' => Visible,
        // Reserved for characters that are not shown (Default_Ignorable_Code_Point).
        '\u{2065}' | '\u{fff0}'..='\u{fff8}' | '\u{e0000}'..='\u{e0fff}' => Hidden,
        _ if is_noncharacter(character) => Hidden,
        _ => match get_general_category(character) {
            // Among Format: soft hyphen, zero-width space, word joiner, byte order mark, bidirectional embeddings, overrides
            // and isolates, invisible operators, tags, annotations.
            GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
            | GeneralCategory::Surrogate => Hidden,
            GeneralCategory::PrivateUse | GeneralCategory::Unassigned => Contextual,
            _ => Visible,
        },
    }
}

/// The 66 code points that never are characters: a text that has one is no text for some readers.
fn is_noncharacter(character: char) -> bool {
    let code = u32::from(character);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

/// Whether a character is seen as itself: it moves nothing, turns no line and is not invisible. For names, messages and
/// terminals, where one text must not look like another.
pub fn is_visible(character: char) -> bool {
    visibility(character) == Visibility::Visible
}

/// Whether a character has its place in a text of several lines that people or models read as prose, in any script.
pub fn is_prose(character: char) -> bool {
    visibility(character) != Visibility::Hidden
}

/// A text on one line, in which every character is seen: the others are written as `\n`, `\t`, `\r` or `\u{…}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_visible) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    text.chars().for_each(|character| push_escaped(&mut escaped, character));
    Cow::Owned(escaped)
}

/// Adds a character as [`escape`] writes it.
pub fn push_escaped(text: &mut String, character: char) {
    if is_visible(character) {
        text.push(character);
    } else {
        text.extend(character.escape_default());
    }
}

/// The places, in bytes, of what nobody sees in a text of several lines: what is [`Hidden`](Visibility::Hidden), and joiners
/// and selectors where no script has them, as between Latin letters or several in a row.
pub fn find_unseen(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut before = None;
    let mut in_a_row = 0;
    let mut characters = text.char_indices().peekable();
    std::iter::from_fn(move || {
        loop {
            let (place, character) = characters.next()?;
            let seen = visibility(character);
            let is_mark = seen == Visibility::Contextual && !is_private_or_unassigned(character);
            if !is_mark {
                before = Some(character);
                in_a_row = 0;
                match seen {
                    Visibility::Hidden => return Some((place, character)),
                    _ => continue,
                }
            }
            in_a_row += 1;
            let after = characters.peek().map(|(_, it)| *it);
            let is_keycap = character == '\u{fe0f}' && after == Some('\u{20e3}');
            // An emoji may have a selector and then a joiner.
            let has_base = before.is_some_and(|it| !it.is_ascii() && is_visible(it));
            if !(is_keycap || has_base && in_a_row <= 2) {
                return Some((place, character));
            }
        }
    })
}

fn is_private_or_unassigned(character: char) -> bool {
    matches!(get_general_category(character), GeneralCategory::PrivateUse | GeneralCategory::Unassigned)
}

#[cfg(test)]
mod tests;
