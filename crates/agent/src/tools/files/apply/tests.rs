//! Edits without files.

use proptest::prelude::*;

use super::super::fuzzing;
use super::*;

fn once<'a>(old: &'a str, new: &'a str) -> Edit<'a> {
    Edit { old, new, scope: Scope::Once }
}

fn all<'a>(old: &'a str, new: &'a str) -> Edit<'a> {
    Edit { old, new, scope: Scope::All }
}

fn not_found(edit: usize, hint: Hint) -> Result<Vec<u8>, EditError> {
    Err(EditError::NotFound { edit, hint })
}

#[test]
fn edits_do_what_they_say() {
    let cases: [(&[u8], &[Edit<'_>], &[u8]); 8] = [
        // The space is in the file.
        (b"< s>x", &[once("< s>", "")], b"x"),
        (b"one two", &[once("one", "1")], b"1 two"),
        (b"one two", &[once("one", "two"), all("two", "2")], b"2 2"),
        (b"aaaaa", &[all("aa", "b")], b"bba"),
        (b"a\r\nb\r\n", &[once("a\r\n", "c\r\n")], b"c\r\nb\r\n"),
        // Latin-1 around stays as it is.
        (b"\xe9 \xc3\xa9 \xe9", &[once("\u{e9}", "e")], b"\xe9 e \xe9"),
        // A broken character before a whole one does not hide it.
        (b"\xf0\xc3\xa9", &[once("\u{e9}", "")], b"\xf0"),
        (b"abc", &[once("abc", "")], b""),
    ];
    for (file, edits, expected) in cases {
        assert_eq!(apply(file, edits).as_deref(), Ok(expected), "{edits:?}");
    }
}

#[test]
fn refused_edits_have_a_reason() {
    let ambiguous = |edit, count, lines: &[usize]| Err(EditError::Ambiguous { edit, count, lines: lines.to_vec() });
    type Case<'a> = (&'a str, &'a [Edit<'a>], Result<Vec<u8>, EditError>);
    let cases: [Case<'_>; 15] = [
        ("a", &[once("", "b")], Err(EditError::Empty(1))),
        ("a", &[once("a", "b"), all("b", "b")], Err(EditError::Same(2))),
        ("a\na\n", &[once("a", "b")], ambiguous(1, 2, &[1, 2])),
        ("aaa", &[once("aa", "b")], ambiguous(1, 2, &[1, 1])),
        ("x\n\nx x x x x x", &[once("x", "b")], ambiguous(1, 7, &[1, 3, 3, 3, 3])),
        ("a", &[once("b", "c")], not_found(1, Hint::Nothing)),
        ("ab", &[once("a", "c"), once("ab", "d")], not_found(2, Hint::ChangedBefore)),
        ("x\r\na\r\nb\r\n", &[once("a\nb", "c")], not_found(1, Hint::LineEnds { line: 2 })),
        (
            "x\n<tools>\n[INST]\n",
            &[once("< tools>\n[ INST]", "c")],
            not_found(1, Hint::Broken { line: 2, bracket: '<' }),
        ),
        // Neither with the space nor without it.
        ("<s>\n", &[once("< s>x", "c")], not_found(1, Hint::Nothing)),
        ("x\n\ta {\n\t\tb\n", &[once("  a {\n    b\n", "c")], not_found(1, Hint::WhiteSpace { line: 2 })),
        ("x\na  \nb\n", &[once("a\nb\n", "c")], not_found(1, Hint::WhiteSpace { line: 2 })),
        ("x\nif a {  \n  b\n", &[once("a {\nb", "c")], not_found(1, Hint::WhiteSpace { line: 2 })),
        ("x\nlet value = 5;\n", &[once("let value = 4;", "let value = 5;")], not_found(1, Hint::Done { line: 2 })),
        ("", &[once("a", "b")], not_found(1, Hint::Nothing)),
    ];
    for (file, edits, expected) in cases {
        assert_eq!(apply(file.as_bytes(), edits), expected, "{file:?} {edits:?}");
    }
    let long = "x".repeat(MAX_OLD + 1);
    assert_eq!(apply(b"a", &[once(&long, "")]), Err(EditError::TooLong(1)));
    let file = vec![b'a'; 1 << 20];
    let result = apply(&file, &[all("a", "0123456789abcdefg")]);
    assert_eq!(result, Err(EditError::TooLarge(1)));
    let result = apply(&file, &[all("a", &"x".repeat(1 << 20))]);
    assert_eq!(result, Err(EditError::TooLarge(1)));
}

/// A text that nearly matches everywhere costs as much as another. A quadratic search would not end.
#[test]
fn a_pattern_that_overlaps_itself_is_not_slow() {
    let file = vec![b'a'; 4 << 20];
    let old = format!("{}b", "a".repeat(MAX_OLD - 1));
    assert_eq!(apply(&file, &[once(&old, "")]), not_found(1, Hint::Nothing));
    let old = format!("b{}", "a".repeat(MAX_OLD - 1));
    assert_eq!(apply(&file, &[once(&old, "")]), not_found(1, Hint::Nothing));
    // As many stretches of text as can be.
    let file: Vec<u8> = b"a\xff".repeat(1 << 20);
    assert_eq!(apply(&file, &[once(&old, "")]), not_found(1, Hint::Nothing));
}

#[test]
fn the_work_of_edits_is_bounded() {
    let edits = [once("a", "b"), once("b", "cc"), once("cc", "d")];
    // Three bytes, then three, then four.
    let result = |max_work| apply_within(max_work, b"a..", &edits, &mut |_| ());
    assert_eq!(result(10), Ok(b"d..".to_vec()));
    assert_eq!(result(9), Err(EditError::TooMuch(3)));
    assert_eq!(result(5), Err(EditError::TooMuch(2)));
}

proptest! {
    #[test]
    fn edits_match_a_naive_implementation(
        file in "[ab\n é]{0,40}",
        broken in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        edits in prop::collection::vec(("[*]?[ab\n é]{0,3}", "[ab\n é]{0,3}"), 0..4),
    ) {
        let mut data = file.into_bytes();
        for (offset, byte) in broken {
            let offset = offset.index(data.len() + 1);
            data.insert(offset, byte);
        }
        for (old, new) in &edits {
            for text in [old, new] {
                data.push(0xfe);
                data.extend_from_slice(text.as_bytes());
            }
        }
        fuzzing::agent_edit(&data);
    }
}
