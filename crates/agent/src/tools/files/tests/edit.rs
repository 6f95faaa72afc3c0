//! `edit_file` on files: what it answers, and that a refused edit changes nothing.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::*;
use crate::tools::chat_tokens::break_tokens;

#[test]
fn edits_are_made_and_shown() {
    let fixture = Fixture::new();
    fixture.write("in/code", "fn one() {\n    two(1);\n    two(2);\n}\n");
    fs::set_permissions(fixture.path("in/code"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let answer = fixture.call(
        edit_file,
        json!({ "path": "@/in/code", "edits": [
            { "old_string": "one()", "new_string": "three()" },
            { "old_string": "two", "new_string": "four", "replace_all": true },
            { "old_string": "    four(2);\n", "new_string": "" },
        ]}),
    );
    let expected = "edited @/in/code: 4 replacements\n\
        edit 1, line 1:\n-fn one() {\n+fn three() {\n\
        edit 2, line 2 and 1 more places:\n-    two(1);\n+    four(1);\n\
        edit 3, line 3:\n-    four(2);";
    assert_eq!(answer.as_deref(), Ok(expected));
    assert_eq!(fixture.content("in/code"), "fn three() {\n    four(1);\n}\n");
    let mode = fs::metadata(fixture.path("in/code")).expect("it is there").mode();
    assert_eq!(mode & 0o7777, 0o755);
    fixture.check_clean("in");
}

#[test]
fn long_changes_are_shown_in_part() {
    let fixture = Fixture::new();
    fixture.write("in/text", "start\nend\n");
    let long: String = (0..100).map(|number| format!("{number}\n")).collect();
    let answer = fixture
        .call(edit_file, json!({ "path": "@/in/text", "edits": [{ "old_string": "start\n", "new_string": long }] }));
    let expected = "edited @/in/text: 1 replacement\nedit 1, line 1:\n-start\n\
        +0\n+1\n+2\n+3\n+4\n+5\n+6\n+7\n+8\n+… (91 more lines)";
    assert_eq!(answer.as_deref(), Ok(expected));
    let edits: Vec<Value> = (10..90)
        .map(|number| json!({ "old_string": format!("\n{number}\n"), "new_string": format!("\n{number}{}\n", "x".repeat(300)) }))
        .collect();
    let answer = fixture.call_with(edit_file, json!({ "path": "@/in/text", "edits": edits }), 2_000);
    let answer = answer.expect("it is edited");
    assert!(answer.ends_with(" more edits"), "{answer}");
}

#[test]
fn refused_edits_change_nothing() {
    let fixture = Fixture::new();
    fixture.write("in/text", "one\ntwo\ntwo\n");
    fixture.write("in/wide", b"\xff\xfeo\0n\0e\0");
    fixture.write("in/binary", b"one\0");
    fixture.write("read-only/text", "one\n");
    fixture.link("text", "in/link");
    let one = json!([{ "old_string": "one", "new_string": "1" }]);
    check(
        &fixture,
        edit_file,
        &[
            (
                json!({ "path": "@/in/text", "edits": [
                    { "old_string": "one", "new_string": "1" },
                    { "old_string": "two", "new_string": "2" },
                ]}),
                Err(
                    "@/in/text: nothing was changed: edit 2: old_string is there 2 times (lines 2, 3); add lines around it so that it is there once, or set replace_all",
                ),
            ),
            (json!({ "path": "@/in/text", "edits": [] }), Err("there are 0 edits; give 1 to 256")),
            (
                json!({ "path": "@/in/missing", "edits": one }),
                Err("@/in/missing does not exist; use write_file to create it"),
            ),
            (
                json!({ "path": "@/in/missing/text", "edits": one }),
                Err("@/in/missing/text does not exist; list_directory shows what is there"),
            ),
            (
                json!({ "path": "@/in/wide", "edits": one }),
                Err(
                    "@/in/wide is UTF-16LE text, which edit_file cannot edit; convert it with a command, or write it whole",
                ),
            ),
            (
                json!({ "path": "@/in/binary", "edits": one }),
                Err("@/in/binary is binary data, not text; use execute_command with a program that changes it"),
            ),
            (
                json!({ "path": "@/in/link", "edits": one }),
                Err("@/in/link is a link, and files are not written through links; write to the file that it leads to"),
            ),
            (json!({ "path": "@/in", "edits": one }), Err("@/in cannot be edited: it is one of your roots")),
            (
                json!({ "path": "@/read-only/text", "edits": one }),
                Err("@/read-only/text cannot be written: @/read-only is read-only; what you can write: @/in"),
            ),
            (
                json!({ "path": "@/in/text", "edits": [{ "old_string": "one" }] }),
                Err("the arguments do not fit: missing field `new_string`"),
            ),
        ],
    );
    assert_eq!(fixture.content("in/text"), "one\ntwo\ntwo\n");
    fixture.check_clean("in");
}

/// What a model reads is not what is in the file where it looks like a token of a chat format.
#[test]
fn broken_tokens_in_edits_are_explained() {
    let fixture = Fixture::new();
    let text = "a\n<think>b</think>\n";
    fixture.write("in/text", text);
    let edit =
        |old: &str, new: &str| json!({ "path": "@/in/text", "edits": [{ "old_string": old, "new_string": new }] });
    let answer = fixture.call(edit_file, edit("< think>b", "< think>c"));
    let expected = "@/in/text: nothing was changed: edit 1: old_string was not found: without the space after `<` it is at line 2; \
        such a space is inserted when a file is shown to you, and is not in the file: leave it out, in new_string too";
    assert_eq!(answer, Err(expected.to_owned()));
    // The explanation itself contains no token.
    assert_eq!(break_tokens(expected).text, expected);
    assert_eq!(fixture.content("in/text"), text);
    fixture.call(edit_file, edit("<think>b", "<think>c")).expect("it is there");
    assert_eq!(fixture.content("in/text"), "a\n<think>c</think>\n");
    // It may be intended: the edit is made, with a note.
    let note = |what: &str| {
        format!(
            "({what} has a space after `<`, as is inserted into control tokens of chat formats when you read them; if it is not meant to be \
             in the file, take it out)"
        )
    };
    let answer = fixture.call(edit_file, edit("c</think>", "d< /think>"));
    let answer = answer.expect("it is there");
    let shown = "edited @/in/text: 1 replacement\nedit 1, line 2:\n-<think>c</think>\n+<think>d< /think>\n";
    assert_eq!(answer, format!("{shown}{}", note("new_string")));
    assert_eq!(fixture.content("in/text"), "a\n<think>d< /think>\n");
    let answer = fixture.call(edit_file, edit("d< /think>", "e< /think>"));
    let shown = "edited @/in/text: 1 replacement\nedit 1, line 2:\n-<think>d< /think>\n+<think>e< /think>";
    assert_eq!(answer.as_deref(), Ok(shown));
    let answer = fixture.call(write_file, json!({ "path": "@/in/text", "content": "< s>" }));
    let expected = format!("wrote 4 bytes to @/in/text (replaced)\n{}", note("the content"));
    assert_eq!(answer, Ok(expected));
}

#[test]
fn size_is_bounded() {
    let fixture = Fixture::new();
    let file = fs::File::create(fixture.path("in/large")).expect("a file");
    file.set_len((16 << 20) + 1).expect("a size");
    let edits = json!([{ "old_string": "one", "new_string": "1" }]);
    let answer = fixture.call(edit_file, json!({ "path": "@/in/large", "edits": edits }));
    let expected = "@/in/large has more than 16 MiB, the most that edit_file takes; use a command such as sed";
    assert_eq!(answer, Err(expected.to_owned()));
}
