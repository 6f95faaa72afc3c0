use proptest::prelude::*;

use super::Visibility::{Contextual, Hidden, Layout, Visible};
use super::*;
use crate::fuzzing;

#[test]
fn every_class_of_characters_has_its_row() {
    for (what, characters, expected) in [
        ("ASCII", ' '..='~', Visible),
        ("controls", '\0'..='\u{8}', Hidden),
        ("line feed and tab", '\t'..='\n', Layout),
        ("controls", '\u{b}'..='\u{1f}', Hidden),
        ("delete and C1 controls", '\u{7f}'..='\u{9f}', Hidden),
        ("no-break space", '\u{a0}'..='\u{a0}', Visible),
        ("Latin-1", '\u{a1}'..='\u{ac}', Visible),
        ("soft hyphen", '\u{ad}'..='\u{ad}', Hidden),
        ("Latin", 'À'..='ž', Visible),
        ("combining accents", '\u{300}'..='\u{34e}', Visible),
        ("grapheme joiner", '\u{34f}'..='\u{34f}', Contextual),
        ("signs of Arabic", '\u{600}'..='\u{605}', Visible),
        ("mark of direction", '\u{61c}'..='\u{61c}', Contextual),
        ("Arabic", '\u{621}'..='\u{64a}', Visible),
        ("Hangul fillers", '\u{115f}'..='\u{1160}', Hidden),
        ("Khmer inherent vowels", '\u{17b4}'..='\u{17b5}', Hidden),
        ("Mongolian selectors", '\u{180b}'..='\u{180f}', Contextual),
        ("spaces", '\u{2000}'..='\u{200a}', Visible),
        ("zero-width space", '\u{200b}'..='\u{200b}', Hidden),
        ("joiners and marks", '\u{200c}'..='\u{200f}', Contextual),
        ("punctuation", '\u{2010}'..='\u{2027}', Visible),
        ("line separators", '\u{2028}'..='\u{2029}', Hidden),
        ("bidi embeddings and overrides", '\u{202a}'..='\u{202e}', Hidden),
        ("narrow space", '\u{202f}'..='\u{202f}', Visible),
        ("word joiner and operators", '\u{2060}'..='\u{2065}', Hidden),
        ("bidi isolates", '\u{2066}'..='\u{2069}', Hidden),
        ("deprecated controls", '\u{206a}'..='\u{206f}', Hidden),
        ("Braille blank", '\u{2800}'..='\u{2800}', Hidden),
        ("Braille", '\u{2801}'..='\u{28ff}', Visible),
        ("ideographic space", '\u{3000}'..='\u{3000}', Visible),
        ("Hangul filler", '\u{3164}'..='\u{3164}', Hidden),
        ("ideographs", '一'..='龥', Visible),
        ("Hangul", '가'..='힣', Visible),
        ("private use", '\u{e000}'..='\u{f8ff}', Contextual),
        ("noncharacters", '\u{fdd0}'..='\u{fdef}', Hidden),
        ("variation selectors", '\u{fe00}'..='\u{fe0d}', Hidden),
        ("text and emoji presentation", '\u{fe0e}'..='\u{fe0f}', Contextual),
        ("byte order mark", '\u{feff}'..='\u{feff}', Hidden),
        ("halfwidth filler", '\u{ffa0}'..='\u{ffa0}', Hidden),
        ("reserved, annotations", '\u{fff0}'..='\u{fffb}', Hidden),
        ("replacement", '\u{fffc}'..='\u{fffd}', Visible),
        ("noncharacters", '\u{fffe}'..='\u{ffff}', Hidden),
        ("shorthand controls", '\u{1bca0}'..='\u{1bca3}', Hidden),
        ("musical controls", '\u{1d173}'..='\u{1d17a}', Hidden),
        ("emoji", '\u{1f600}'..='\u{1f64f}', Visible),
        ("unassigned", '\u{1fc00}'..='\u{1fcff}', Contextual),
        ("tags", '\u{e0000}'..='\u{e007f}', Hidden),
        ("reserved", '\u{e0080}'..='\u{e00ff}', Hidden),
        ("supplementary selectors", '\u{e0100}'..='\u{e01ef}', Hidden),
        ("reserved", '\u{e01f0}'..='\u{e0fff}', Hidden),
        ("private use", '\u{f0000}'..='\u{ffffd}', Contextual),
        ("noncharacters", '\u{10fffe}'..='\u{10ffff}', Hidden),
    ] {
        for character in characters {
            let found = visibility(character);
            assert_eq!(found, expected, "{what}: U+{:04X}", u32::from(character));
        }
    }
}

#[test]
fn what_the_standard_library_calls_a_control_is_never_shown() {
    let controls = ('\0'..=char::MAX).filter(|character| character.is_control());
    let shown: Vec<char> = controls.filter(|character| is_visible(*character)).collect();
    assert_eq!(shown, []);
    // Visible characters stay on one line.
    let breaks = "\n\t\r\u{b}\u{c}\u{85}\u{2028}\u{2029}";
    assert!(!breaks.chars().any(is_visible));
    assert_eq!(UNICODE_VERSION, (16, 0, 0), "go through the table again");
}

#[test]
fn characters_that_hide_something_are_not_prose() {
    let hidden = "\0\u{1b}\u{7f}\u{9b}\u{ad}\u{200b}\u{202e}\u{2066}\u{feff}\u{e0041}";
    assert!(!hidden.chars().any(is_prose));
    // Letters and marks by their category, and blank.
    assert!(!"\u{115f}\u{3164}\u{ffa0}\u{2800}\u{fe01}\u{e0100}".chars().any(is_prose));
    assert!("a\n\t é\u{200d}\u{fe0f}漢".chars().all(is_prose));
}

#[test]
fn names_show_all_that_prose_leaves_out_and_some_more() {
    let all = || '\0'..=char::MAX;
    assert!(!all().filter(|character| !is_prose(*character)).any(is_visible));
    let more = "\t\n\u{61c}\u{200c}\u{200f}\u{2028}\u{2029}\u{2061}\u{2065}\u{fe0f}\u{e000}";
    assert!(!more.chars().any(is_visible));
    assert!("a é漢".chars().all(is_visible));
}

#[test]
fn what_is_not_seen_is_written_out() {
    for (text, expected) in [
        ("größe 漢字 \u{1f600}", "größe 漢字 \u{1f600}"),
        ("a\u{1b}[2J\r\n\tb", "a\\u{1b}[2J\\r\\n\\tb"),
        ("a\u{202e}b\u{200b}c", "a\\u{202e}b\\u{200b}c"),
        ("\u{e0041}\u{3164}\u{fe0f}", "\\u{e0041}\\u{3164}\\u{fe0f}"),
        ("naïve\r", "naïve\\r"),
        // Blank, although letters and marks by their category.
        ("\u{2800}\u{17b4}\u{fe01}", "\\u{2800}\\u{17b4}\\u{fe01}"),
        ("a\u{3164}\u{115f}b", "a\\u{3164}\\u{115f}b"),
    ] {
        assert_eq!(printable(text), expected);
        assert!(printable(text).chars().all(is_visible));
    }
}

#[test]
fn a_quoted_text_cannot_repaint_a_terminal_and_is_short() {
    assert_eq!(quote("a\u{1b}[2Jb\n"), "`a\\u{1b}[2Jb\\n`");
    assert_eq!(quote("x\u{202e}y"), "`x\\u{202e}y`");
    assert_eq!(quote(&"é".repeat(80)), format!("`{}`", "é".repeat(80)));
    assert_eq!(quote(&"é".repeat(81)), format!("`{}…`", "é".repeat(79)));
    // Truncated before it is escaped.
    assert_eq!(quote(&"\n".repeat(81)), format!("`{}…`", "\\n".repeat(79)));
}

#[test]
fn a_text_is_truncated_in_the_unit_of_its_limit() {
    assert_eq!(truncate("äöü", Bytes(6)), "äöü");
    assert_eq!(truncate("äöü", Bytes(5)), "ä…");
    assert_eq!(truncate("äöü", Bytes(2)), "");
    assert_eq!(truncate("äöü", Chars(3)), "äöü");
    assert_eq!(truncate("äöü", Chars(2)), "ä…");
    assert_eq!(truncate("日本語", Columns(6)), "日本語");
    assert_eq!(truncate("日本語", Columns(5)), "日本…");
    assert_eq!(truncate("日本語", Columns(4)), "日…");
    assert_eq!(truncate("", Chars(0)), "");
    assert_eq!(truncate("a", Chars(0)), "");
}

proptest! {
    #[test]
    fn foreign_text_is_made_safe_and_short(text in any_text(), limit in 0_usize..40) {
        fuzzing::check_texts(&text, limit);
    }
}

/// Texts of all kinds of characters, not only of those that are displayed.
fn any_text() -> impl Strategy<Value = String> {
    let odd = proptest::sample::select(
        "\0\n\r\t\u{1b}\u{9b}\u{200d}\u{202e}\u{fe0f}\u{2764}\u{1f469}日a `".chars().collect::<Vec<_>>(),
    );
    let character = prop_oneof![any::<char>(), odd];
    proptest::collection::vec(character, 0..100).prop_map(String::from_iter)
}

#[test]
fn scripts_are_read_and_what_hides_in_them_is_found() {
    for text in [
        "plain\n\ttext",
        "\u{26a0}\u{fe0f} careful",
        "1\u{fe0f}\u{20e3} first",
        "\u{1f469}\u{200d}\u{1f467}",
        "\u{2764}\u{fe0f}\u{200d}\u{1f525}",
        "می\u{200c}خواهم",
        "क\u{94d}\u{200d}ष",
        "\u{e0b0} prompt",
    ] {
        assert_eq!(find_invisible(text).collect::<Vec<_>>(), [], "{text:?}");
    }
    for (text, places) in [
        ("a\u{200b}b", vec![1]),
        ("a\u{200d}b", vec![1]),
        ("a\u{fe0f}b", vec![1]),
        ("\u{200d}", vec![0]),
        ("ä\u{200d}\u{200c}\u{200d}\u{200c}", vec![8, 11]),
        ("x\u{e0041}\u{e0042}", vec![1, 5]),
        ("\u{26a0}\u{fe00}", vec![3]),
        ("\u{3164}", vec![0]),
        ("a\u{202e}b", vec![1]),
        ("a\rb", vec![1]),
    ] {
        let found: Vec<usize> = find_invisible(text).map(|(place, _)| place).collect();
        assert_eq!(found, places, "{text:?}");
    }
}
