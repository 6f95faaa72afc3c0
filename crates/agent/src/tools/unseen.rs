//! Characters that nobody sees: one list, for texts and for names.

/// Whether a character cannot be seen and has no business in a text for a model: it hides what people are not meant to read.
/// Line feeds and tabs are not among them, nor what some scripts cannot be written without.
pub(crate) fn unseen(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        // A soft hyphen, spaces of no width, marks of byte order.
        '\u{ad}' | '\u{200b}' | '\u{2060}' | '\u{feff}' => true,
        // Changes of direction, by which a line reads other than it is.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Tags: an alphabet that no one sees and that models read.
        '\u{e0000}'..='\u{e007f}' => true,
        other => other.is_control(),
    }
}

/// Whether a character would break a line, or show a name as another than it is. A name is shown with how these are written,
/// so nothing is lost: more of them than in a text.
pub(crate) fn unseen_in_name(character: char) -> bool {
    match character {
        '\n' | '\t' => true,
        // Joiners and marks of direction, which texts need.
        '\u{200c}'..='\u{200f}' | '\u{61c}' => true,
        // Ends of lines and of paragraphs.
        '\u{2028}' | '\u{2029}' => true,
        // Operators that are not written, and what has no meaning yet.
        '\u{2061}'..='\u{2065}' => true,
        other => unseen(other),
    }
}

#[cfg(test)]
mod tests {
    use super::{unseen, unseen_in_name};

    #[test]
    fn characters_that_hide_something_are_known() {
        let hidden = "\0\u{1b}\u{7f}\u{9b}\u{ad}\u{200b}\u{202e}\u{2066}\u{feff}\u{e0041}";
        assert!(hidden.chars().all(unseen));
        assert!(!"a\n\t é\u{200d}\u{fe0f}漢".chars().any(unseen));
    }

    #[test]
    fn names_show_all_that_texts_leave_out_and_some_more() {
        let all = || '\0'..=char::MAX;
        let left_out: Vec<char> = all().filter(|it| unseen(*it)).collect();
        assert!(left_out.iter().all(|it| unseen_in_name(*it)));
        let more: Vec<char> = all().filter(|it| unseen_in_name(*it) && !unseen(*it)).collect();
        let mut expected = vec!['\t', '\n', '\u{61c}'];
        expected.extend('\u{200c}'..='\u{200f}');
        expected.extend('\u{2028}'..='\u{2029}');
        expected.extend('\u{2061}'..='\u{2065}');
        assert_eq!(more, expected);
    }
}
