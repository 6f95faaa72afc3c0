//! Foreign text in output for people or a model: which characters are safe to print, and the three functions over that
//! table. [`printable`] makes a text safe, [`truncate`] bounds it, and [`quote`] does both for a name or value within a
//! message. To bound a text that is longer when it is escaped, truncate what [`printable`] returns; otherwise truncate
//! first, so that no escape is cut.
//!
//! Invisible characters cannot be compared by a person, but a model reads them; characters that control a terminal or
//! change the direction of a line make a text look like another one. General categories are those of
//! [`UNICODE_VERSION`]; the exceptions are below, with their reasons. A character that a later version of Unicode adds
//! is not visible until the table has it.

use std::borrow::Cow;

use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

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

/// Maximum length of a foreign name or value in a message, before it is escaped.
pub const MAX_NAME: Chars = Chars(80);

/// Ends a text that was truncated.
const ELLIPSIS: char = '…';

/// Makes a text safe to display on one line: characters that are not visible are written as `\n`, `\t`, `\r` or `\u{…}`.
pub fn printable<'t>(text: impl Into<Cow<'t, str>>) -> Cow<'t, str> {
    let text = text.into();
    if text.chars().all(is_visible) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_visible(character) {
            escaped.push(character);
        } else {
            escaped.extend(character.escape_default());
        }
    }
    Cow::Owned(escaped)
}

/// Quotes a name or a value for a message: printable, in backquotes, and truncated to [`MAX_NAME`].
pub fn quote(text: &str) -> String {
    format!("`{}`", printable(truncate(text, MAX_NAME)))
}

/// Truncates a text that exceeds a limit. A truncated text ends with an ellipsis, which is within the limit.
pub fn truncate<'t, L: Limit>(text: impl Into<Cow<'t, str>>, limit: L) -> Cow<'t, str> {
    let text = text.into();
    if L::measure(&text) <= limit.maximum() {
        return text;
    }
    let Some(room) = limit.maximum().checked_sub(L::measure_char(ELLIPSIS)) else {
        return Cow::Borrowed("");
    };
    let mut used = 0;
    let exceeds = |(_, character): &(usize, char)| {
        used += L::measure_char(*character);
        used > room
    };
    let end = text.char_indices().find(exceeds).map_or(text.len(), |(at, _)| at);
    Cow::Owned(format!("{}{ELLIPSIS}", &text[..end]))
}

/// The maximum length of a text, and its unit.
pub trait Limit: Copy {
    /// The limit as a number.
    fn maximum(self) -> usize;
    /// The length of a text. It is never greater than the sum for its characters.
    fn measure(text: &str) -> usize;
    /// The length of a character.
    fn measure_char(character: char) -> usize;
}

/// A limit in bytes of UTF-8, for what is stored or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub usize);

/// A limit in characters, for messages and the API's `maxLength`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chars(pub usize);

/// A limit in columns of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns(pub usize);

impl Limit for Bytes {
    fn maximum(self) -> usize {
        self.0
    }

    fn measure(text: &str) -> usize {
        text.len()
    }

    fn measure_char(character: char) -> usize {
        character.len_utf8()
    }
}

impl Limit for Chars {
    fn maximum(self) -> usize {
        self.0
    }

    fn measure(text: &str) -> usize {
        text.chars().count()
    }

    fn measure_char(_: char) -> usize {
        1
    }
}

impl Limit for Columns {
    fn maximum(self) -> usize {
        self.0
    }

    fn measure(text: &str) -> usize {
        text.width()
    }

    fn measure_char(character: char) -> usize {
        match character {
            // Alone it has no width, but it makes its base an emoji of two columns.
            '\u{fe0f}' => 1,
            // Within a text, control characters have a width.
            _ => character.width().unwrap_or(1),
        }
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
            let after = characters.peek().map(|(_, character)| *character);
            let is_keycap = character == '\u{fe0f}' && after == Some('\u{20e3}');
            // An emoji may have a selector and then a joiner.
            let has_base = before.is_some_and(|character| !character.is_ascii() && is_visible(character));
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
