//! Invisible characters, which a model reads but a reviewer of the file does not see: tags, zero-width characters, changes
//! of direction. A text may hide instructions in them, or look like another text.

use sympozium_api::text::{find_invisible, quote};

use super::problem::Problem;
use super::tree::Mark;

/// The maximum number of warnings for a file. One more says that there are further lines.
const MAX_LINES: usize = 20;
/// How many characters before the first invisible one are quoted with it.
const CONTEXT_CHARS: usize = 10;

/// One warning for each line that has invisible characters, at the first of them and with their escapes. Control
/// characters are not included: they have rules of their own.
pub fn warnings(text: &str) -> Vec<Problem> {
    let mut warnings = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_ascii() {
            continue;
        }
        let mut found = find_invisible(line).filter(|(_, character)| !character.is_control());
        let Some((place, _)) = found.next() else {
            continue;
        };
        let column = line[..place].chars().count();
        let at = Mark {
            line: u32::try_from(index + 1).unwrap_or(u32::MAX),
            column: u32::try_from(column + 1).unwrap_or(u32::MAX),
        };
        if warnings.len() == MAX_LINES {
            let message = "there are more invisible characters, from this line on";
            warnings.push(add_hint(Problem::warning(RULE, at, message)));
            break;
        }
        let context: String = line.chars().skip(column.saturating_sub(CONTEXT_CHARS)).collect();
        let message = match 1 + found.count() {
            1 => format!("an invisible character: {}", quote(&context)),
            count => format!("{count} invisible characters: {}", quote(&context)),
        };
        warnings.push(add_hint(Problem::warning(RULE, at, message)));
    }
    warnings
}

const RULE: &str = "hidden-characters";

fn add_hint(problem: Problem) -> Problem {
    problem.with_hint("remove them: a model reads them, but a reviewer of the file does not see them")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(u32, u32, String)> {
        let warnings = warnings(text).into_iter();
        let short = warnings.map(|warning| (warning.at.line, warning.at.column, warning.message));
        short.collect()
    }

    #[test]
    fn invisible_characters_are_reported_with_position_and_escapes() {
        for (text, line, column, message) in [
            ("x\nSay hi\u{e0049}\u{e0067}.\r\n", 2, 7, "2 invisible characters: `Say hi\\u{e0049}\\u{e0067}.`"),
            ("0123456789abc\u{202e}drow", 1, 14, "an invisible character: `3456789abc\\u{202e}drow`"),
            ("ä\u{200b}b", 1, 2, "an invisible character: `ä\\u{200b}b`"),
        ] {
            assert_eq!(found(text), [(line, column, message.to_owned())]);
        }
        for text in ["plain\n", "größe 漢字", "\u{26a0}\u{fe0f} careful", "می\u{200c}خواهم", "a\u{1b}b"] {
            assert_eq!(found(text), [], "{text:?}");
        }
    }

    #[test]
    fn warnings_are_bounded() {
        let text = "a\u{200b}\n".repeat(100_000);
        let found = found(&text);
        assert_eq!(found.len(), MAX_LINES + 1);
        assert!(found[MAX_LINES].2.starts_with("there are more"));
        let long = format!("{}\u{200b}", "ö".repeat(100_000));
        assert!(super::warnings(&long)[0].message.len() < 1000);
    }
}
