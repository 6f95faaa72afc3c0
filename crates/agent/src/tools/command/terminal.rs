//! Terminal output as plain text: without colours, and with overwritten lines in their last state.

use std::iter::Peekable;
use std::str::Chars;
use sympozium_api::text::is_prose;

const ESCAPE: char = '\u{1b}';
const BELL: char = '\u{7}';
const BACKSPACE: char = '\u{8}';
/// CSI as one character.
const CONTROL_SEQUENCE: char = '\u{9b}';

/// Removes terminal control sequences and applies carriage returns and backspaces.
pub fn strip_terminal_codes(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut line = 0;
    // A carriage return clears the line only when something is written over it.
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

/// Never skips beyond the end of a line, however incomplete the sequence is.
fn skip_escape(characters: &mut Peekable<Chars<'_>>) {
    match characters.peek().copied() {
        Some('[') => {
            characters.next();
            skip_control_sequence(characters);
        }
        // OSC and other string sequences, up to BEL or ST.
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

fn skip_control_sequence(characters: &mut Peekable<Chars<'_>>) {
    while characters.next_if(|c| (' '..='?').contains(c)).is_some() {}
    characters.next_if(|c| ('@'..='~').contains(c));
}
