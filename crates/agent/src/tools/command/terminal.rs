//! Output that was meant for a terminal, as plain text: no colours, and of a line that was written over the last state.

use std::iter::Peekable;
use std::str::Chars;
use sympozium_api::text::is_prose;

const ESCAPE: char = '\u{1b}';
const BELL: char = '\u{7}';
const BACKSPACE: char = '\u{8}';
/// Begins a control sequence, as one character.
const CONTROL_SEQUENCE: char = '\u{9b}';

/// The text without what steers a terminal. One pass: what is taken back was written once.
pub fn plain(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut line = 0;
    // A carriage return takes the line back only when something is written over it.
    let mut returned = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' => {
                written.push('\n');
                line = written.len();
                returned = false;
            }
            '\r' => returned = true,
            ESCAPE => skip_escape(&mut characters),
            CONTROL_SEQUENCE => skip_control_sequence(&mut characters),
            BACKSPACE => {
                if written.len() > line {
                    written.pop();
                }
            }
            other if !is_prose(other) => {}
            other => {
                if std::mem::take(&mut returned) {
                    written.truncate(line);
                }
                written.push(other);
            }
        }
    }
    written
}

/// What follows an escape character. Nothing of it goes beyond the end of a line, whatever is missing.
fn skip_escape(characters: &mut Peekable<Chars<'_>>) {
    match characters.peek().copied() {
        Some('[') => {
            characters.next();
            skip_control_sequence(characters);
        }
        // Titles, links and other texts for the terminal, up to a bell or `ESC \`.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(character) = characters.next_if(|character| *character != '\n') {
                if character == BELL {
                    return;
                }
                if character == ESCAPE {
                    characters.next_if_eq(&'\\');
                    return;
                }
            }
        }
        _ => {
            while characters.next_if(|c| (' '..='/').contains(c)).is_some() {}
            characters.next_if(|c| ('0'..='~').contains(c));
        }
    }
}

/// Parameters, then one character that says what they are for.
fn skip_control_sequence(characters: &mut Peekable<Chars<'_>>) {
    while characters.next_if(|c| (' '..='?').contains(c)).is_some() {}
    characters.next_if(|c| ('@'..='~').contains(c));
}
