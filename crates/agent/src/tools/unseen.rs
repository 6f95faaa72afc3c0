//! Characters that nobody sees, in texts and in names: by the table that every part shares.

use sympozium_api::text::{is_prose, is_visible};

/// Whether a character cannot be seen and has no business in a text for a model: it hides what people are not meant to read.
/// Line feeds and tabs are not among them, nor what some scripts cannot be written without.
pub(crate) fn unseen(character: char) -> bool {
    !is_prose(character)
}

/// Whether a character would break a line, or show a name as another than it is. A name is shown with how these are written,
/// so nothing is lost: more of them than in a text.
pub(crate) fn unseen_in_name(character: char) -> bool {
    !is_visible(character)
}

#[cfg(test)]
mod tests {
    use super::{unseen, unseen_in_name};

    #[test]
    fn characters_that_hide_something_are_known() {
        let hidden = "\0\u{1b}\u{7f}\u{9b}\u{ad}\u{200b}\u{202e}\u{2066}\u{feff}\u{e0041}";
        assert!(hidden.chars().all(unseen));
        // Letters and marks by their category, and blank.
        assert!("\u{115f}\u{3164}\u{ffa0}\u{2800}\u{fe01}\u{e0100}".chars().all(unseen));
        assert!(!"a\n\t é\u{200d}\u{fe0f}漢".chars().any(unseen));
    }

    #[test]
    fn names_show_all_that_texts_leave_out_and_some_more() {
        let all = || '\0'..=char::MAX;
        assert!(all().filter(|it| unseen(*it)).all(unseen_in_name));
        let more = "\t\n\u{61c}\u{200c}\u{200f}\u{2028}\u{2029}\u{2061}\u{2065}\u{fe0f}\u{e000}";
        assert!(more.chars().all(unseen_in_name));
        assert!(!"a é漢".chars().any(unseen_in_name));
    }
}
