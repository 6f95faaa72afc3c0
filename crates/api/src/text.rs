//! Which characters are safe to print: one table for all code that repeats foreign text to people or to a model.
//!
//! Invisible characters cannot be compared by a person, but a model reads them; characters that control a terminal or
//! change the direction of a line make a text look like another one. General categories are those of
//! [`UNICODE_VERSION`]; the exceptions are below, with their reasons. A character that a later version of Unicode adds
//! is not visible until the table has it.

use std::borrow::Cow;

use unicode_general_category::{GeneralCategory, get_general_category};

/// The Unicode version of the table.
pub const UNICODE_VERSION: (u64, u64, u64) = unicode_general_category::UNICODE_VERSION;

/// How a character is displayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visibility {
    /// As itself, on one line. Every space that has a width is visible: it is displayed as a space.
    Visible,
    /// Line feed and tab: harmless in a text of several lines.
    Layout,
    /// Depends on the context or the reader: joiners, direction marks and variation selectors, without which some
    /// scripts and emoji cannot be written; private use, which each font displays differently; and unassigned
    /// characters. Allowed in prose, escaped where characters are compared.
    Contextual,
    /// Not displayed, or it changes how its neighbours are displayed.
    Hidden,
}

/// How a character is displayed.
pub fn visibility(character: char) -> Visibility {
    use Visibility::{Contextual, Hidden, Layout, Visible};
    match character {
        ' '..='~' => return Visible,
        '\n' | '\t' => return Layout,
        _ => {}
    }
    match character {
        // Letters and marks by their category, but blank: fillers of Hangul, inherent vowels of Khmer, the empty cell
        // of Braille.
        '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => Hidden,
        // Marks by their category that only change their neighbour. Text and emoji presentation (15, 16) and the
        // variations of Mongolian are in real use; the other 254 are an invisible alphabet.
        '\u{34f}' | '\u{180b}'..='\u{180f}' | '\u{fe0e}'..='\u{fe0f}' => Contextual,
        '\u{fe00}'..='\u{fe0d}' | '\u{e0100}'..='\u{e01ef}' => Hidden,
        // Joiners, and direction marks that only affect their neighbours.
        '\u{61c}' | '\u{200c}'..='\u{200f}' => Contextual,
        // Of category Format, but with a glyph: signs of Arabic, Syriac and Kaithi.
        '\u{600}'..='\u{605}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' => Visible,
        '\u{110bd}' | '\u{110cd}' => Visible,
        // Reserved for characters that are not displayed (Default_Ignorable_Code_Point).
        '\u{2065}' | '\u{fff0}'..='\u{fff8}' | '\u{e0000}'..='\u{e0fff}' => Hidden,
        _ if is_noncharacter(character) => Hidden,
        _ => match get_general_category(character) {
            // Category Format includes: soft hyphen, zero-width space, word joiner, byte order mark, bidirectional
            // embeddings, overrides and isolates, invisible operators, tags, annotations.
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

/// The 66 code points that are never characters: some readers reject a text that has one.
fn is_noncharacter(character: char) -> bool {
    let code = u32::from(character);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

/// Whether a character is displayed as itself: it moves nothing, changes no direction and is not invisible. For names,
/// messages and terminals, where one text must not look like another.
pub fn is_visible(character: char) -> bool {
    visibility(character) == Visibility::Visible
}

/// Whether a character is acceptable in a text of several lines that people or models read as prose, in any script.
pub fn is_prose(character: char) -> bool {
    visibility(character) != Visibility::Hidden
}

/// A text on one line, in which every character is visible: the others are written as `\n`, `\t`, `\r` or `\u{…}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_visible) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    text.chars().for_each(|character| push_escaped(&mut escaped, character));
    Cow::Owned(escaped)
}

/// The maximum number of characters of a value that a message quotes.
const MAX_QUOTED_CHARS: usize = 60;

/// `value` in backquotes, safe for a terminal: truncated where it is long, and with every control character escaped, so
/// that a manifest cannot repaint the screen of the user who checks it.
pub fn quote(value: &str) -> String {
    let mut shown = String::from("`");
    for (index, character) in value.chars().enumerate() {
        if index == MAX_QUOTED_CHARS {
            shown.push('…');
            break;
        }
        push_escaped(&mut shown, character);
    }
    shown.push('`');
    shown
}

/// Appends a character as [`escape`] writes it.
pub fn push_escaped(text: &mut String, character: char) {
    if is_visible(character) {
        text.push(character);
    } else {
        text.extend(character.escape_default());
    }
}

/// The byte offsets of invisible characters in a text of several lines: those that are [`Hidden`](Visibility::Hidden),
/// and joiners and selectors where no script uses them, such as between Latin letters or several in a row.
pub fn find_invisible(text: &str) -> impl Iterator<Item = (usize, char)> {
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
