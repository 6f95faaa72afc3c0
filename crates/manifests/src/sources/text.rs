//! Decodes bytes into text, and rejects characters on which YAML parsers disagree.

use super::super::problem::Problem;
use super::super::tree::Mark;

/// UTF-8, with or without a byte-order mark, and without characters that two parsers would interpret differently.
pub fn decode(bytes: Vec<u8>) -> Result<String, Problem> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Problem::error("encoding", Mark::START, "UTF-16, not UTF-8")
            .with_hint("convert it: iconv -f UTF-16 -t UTF-8"));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        // The part before the first invalid byte is valid by definition.
        let at = end_mark(&String::from_utf8_lossy(good));
        Problem::error("encoding", at, "invalid UTF-8")
            .with_hint("save the file as UTF-8; encode binary data as Base64")
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(.."\u{feff}".len());
    }
    match text.char_indices().find(|(_, character)| is_forbidden(*character)) {
        Some((offset, character)) => Err(forbidden_problem(end_mark(&text[..offset]), character)),
        None => Ok(text),
    }
}

/// Control characters are not YAML, and a NUL ends the text for some parsers. The three line separators end a line for
/// kubectl (YAML 1.1) and not for us (1.2): behind one, our comment is a field for kubectl.
fn is_forbidden(character: char) -> bool {
    match character {
        '\t' | '\n' | '\r' => false,
        '\u{85}' | '\u{2028}' | '\u{2029}' => true,
        // JSON allows it in texts; elsewhere it changes nothing.
        '\u{7f}' => false,
        other => other.is_control(),
    }
}

fn forbidden_problem(at: Mark, character: char) -> Problem {
    let code = u32::from(character);
    let message = match character {
        '\0' => "a NUL character".to_owned(),
        '\u{85}' | '\u{2028}' | '\u{2029}' => {
            format!("the line separator U+{code:04X}, which kubectl reads as the end of the line")
        }
        _ => format!("the control character U+{code:04X}"),
    };
    Problem::error("encoding", at, message)
        .with_hint(format!("write it as \"\\u{code:04X}\" in a string; remove it elsewhere"))
}

/// The position right behind `text`.
fn end_mark(text: &str) -> Mark {
    let last_line = text.rsplit('\n').next().unwrap_or("");
    let lines = text.bytes().filter(|byte| *byte == b'\n').count();
    Mark {
        line: u32::try_from(lines + 1).unwrap_or(u32::MAX),
        column: u32::try_from(last_line.chars().count() + 1).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_error(bytes: &[u8]) -> (u32, u32, String) {
        let problem = decode(bytes.to_vec()).unwrap_err();
        (problem.at.line, problem.at.column, problem.message)
    }

    #[test]
    fn text_is_unchanged_except_for_a_byte_order_mark() {
        assert_eq!(decode(b"a: 1\r\n\tb\x7f".to_vec()).unwrap(), "a: 1\r\n\tb\x7f");
        assert_eq!(decode("\u{feff}ä: 1".into()).unwrap(), "ä: 1");
        assert_eq!(decode(Vec::new()).unwrap(), "");
    }

    #[test]
    fn invalid_text_is_refused_with_its_position() {
        assert_eq!(decode_error(b"a\n\xc3\xa4\xff"), (2, 2, "invalid UTF-8".into()));
        assert_eq!(decode_error(b"\xff\xfea\0"), (1, 1, "UTF-16, not UTF-8".into()));
        assert_eq!(decode_error(b"a: b\0c: d"), (1, 5, "a NUL character".into()));
        assert_eq!(decode_error(b"\n\x1b[2J"), (2, 1, "the control character U+001B".into()));
        let (line, column, message) = decode_error("x\n# note\u{2028}spec: {}".as_bytes());
        assert_eq!((line, column), (2, 7));
        assert!(message.starts_with("the line separator U+2028, which kubectl"));
    }
}
