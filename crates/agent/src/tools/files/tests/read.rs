//! `read_file`: pages, encodings, sizes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::super::read::{ScanLimits, read_within};
use super::super::text::LineRange;
use super::*;

#[test]
fn pages_say_how_to_read_on() {
    let fixture = Fixture::new();
    fixture.write("in/three", "one\ntwo\r\nthree\n");
    fixture.write("in/open", "one\ntwo");
    fixture.write("in/empty", "");
    fixture.write("in/mark", b"\xef\xbb\xbf");
    fixture.write("in/blank", "\n");
    fixture.link("three", "in/link");
    check(
        &fixture,
        read_file,
        &[
            (json!({ "path": "@/in/three" }), Ok("one\ntwo\r\nthree\n")),
            (json!({ "path": "@/in/./x/..//three/" }), Ok("one\ntwo\r\nthree\n")),
            (json!({ "path": "@/in/link" }), Ok("one\ntwo\r\nthree\n")),
            (json!({ "path": "@/in/three", "offset": null, "limit": 3 }), Ok("one\ntwo\r\nthree\n")),
            (json!({ "path": "@/in/three", "limit": 1 }), Ok("one\n(lines 1–1 of 3; continue with offset=2)")),
            (
                json!({ "path": "@/in/three", "offset": 2.0, "limit": 1 }),
                Ok("two\r\n(lines 2–2 of 3; continue with offset=3)"),
            ),
            (json!({ "path": "@/in/three", "offset": 3 }), Ok("three\n(lines 3–3 of 3)")),
            (json!({ "path": "@/in/open" }), Ok("one\ntwo")),
            (json!({ "path": "@/in/open", "offset": 2 }), Ok("two\n(lines 2–2 of 2)")),
            (json!({ "path": "@/in/open", "offset": 3 }), Err("@/in/open has 2 lines; offset=3 is beyond them")),
            (
                json!({ "path": "@/in/blank", "offset": u64::MAX }),
                Err("@/in/blank has 1 line; offset=18446744073709551615 is beyond it"),
            ),
            (json!({ "path": "@/in/blank" }), Ok("\n")),
            (json!({ "path": "@/in/empty" }), Ok("(empty file)")),
            (json!({ "path": "@/in/mark" }), Ok("(empty file)")),
            (json!({ "path": "@/in/empty", "offset": 2 }), Err("@/in/empty is empty")),
        ],
    );
}

#[test]
fn encodings_are_detected_and_binary_files_are_refused() {
    let fixture = Fixture::new();
    let wide = |text: &str, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        let all = std::iter::once(0xfeff).chain(text.encode_utf16());
        all.flat_map(bytes).collect()
    };
    fixture.write("in/little", wide("zwölf 🦀\n", u16::to_le_bytes));
    fixture.write("in/big", wide("zwölf 🦀\n", u16::to_be_bytes));
    fixture.write("in/mark", b"\xef\xbb\xbfmarked\n");
    fixture.write("in/latin1", b"caf\xe9\n");
    fixture.write("in/half", b"half \xf0\x9f");
    fixture.write("in/nul", b"a\0b");
    fixture.write("in/png", b"\x89PNG\r\n\x1a\n");
    fixture.write("in/pdf", b"%PDF-1.7\n");
    fixture.write("in/elf", b"\x7fELF\x02");
    fixture.write("in/zip", b"PK\x03\x04");
    fixture.write("in/gzip", b"\x1f\x8b\x08");
    let binary = |path: &str, kind: &str, size: usize| {
        format!("@/in/{path} is {kind} of {size} bytes, not text; use execute_command with a program that reads it")
    };
    check(
        &fixture,
        read_file,
        &[
            (json!({ "path": "@/in/little" }), Ok("zwölf 🦀\n")),
            (json!({ "path": "@/in/big" }), Ok("zwölf 🦀\n")),
            (json!({ "path": "@/in/mark" }), Ok("marked\n")),
            (
                json!({ "path": "@/in/latin1" }),
                Ok("caf\u{fffd}\n(this is not all UTF-8: bytes that are no text are shown as \u{fffd})"),
            ),
            (
                json!({ "path": "@/in/half" }),
                Ok("half \u{fffd}\n(this is not all UTF-8: bytes that are no text are shown as \u{fffd})"),
            ),
            (json!({ "path": "@/in/nul" }), Err(&binary("nul", "binary data", 3))),
            (json!({ "path": "@/in/png" }), Err(&binary("png", "a PNG image", 8))),
            (json!({ "path": "@/in/pdf" }), Err(&binary("pdf", "a PDF document", 9))),
            (json!({ "path": "@/in/elf" }), Err(&binary("elf", "a program (ELF)", 5))),
            (json!({ "path": "@/in/zip" }), Err(&binary("zip", "a zip archive or an office document", 4))),
            (json!({ "path": "@/in/gzip" }), Err(&binary("gzip", "gzip data", 3))),
        ],
    );
}

#[test]
fn reading_on_gives_the_whole_file() {
    let fixture = Fixture::new();
    // Lines of all lengths, with characters of all lengths, across the borders of what is read at a time.
    let lines: Vec<String> = (0..600).map(|number| format!("{number} {}\n", "aé€🦀".repeat(number % 23))).collect();
    let text = lines.concat();
    fixture.write("in/long", &text);
    for max_bytes in [1_000, 4_096, 20_000] {
        let mut whole = String::new();
        let mut offset = 1;
        for _ in 0..600 {
            let arguments = json!({ "path": "@/in/long", "offset": offset });
            let answer = fixture.call_with(read_file, arguments, max_bytes).expect("a page");
            let (page, note) = answer.rsplit_once("\n(").expect("a note");
            whole.push_str(page);
            whole.push('\n');
            let Some((_, next)) = note.rsplit_once("; continue with offset=") else {
                assert_eq!(note, format!("lines {offset}–600 of 600)"));
                break;
            };
            offset = next.trim_end_matches(')').parse().expect("a number");
        }
        assert_eq!(whole, text);
    }
}

#[test]
fn a_line_that_is_too_long_is_cut_and_counted() {
    let fixture = Fixture::new();
    fixture.write("in/line", format!("{}\nshort\n", "€".repeat(50_000)));
    let answer = fixture.call_with(read_file, json!({ "path": "@/in/line" }), 4_000);
    let answer = answer.expect("a page");
    let kept = 4_000 - 384;
    // A character of three bytes is not cut in the middle.
    let kept = kept - kept % 3;
    let expected = format!(
        "{}\n(line 1 goes on for {} bytes that are left out; use a command such as cut to read them)\
         (lines 1–1 of 2; continue with offset=2)",
        "€".repeat(kept / 3),
        150_001 - kept
    );
    assert_eq!(answer.replace(")\n(", ")("), expected);
    let rest = fixture.call_with(read_file, json!({ "path": "@/in/line", "offset": 2 }), 4_000);
    assert_eq!(rest.as_deref(), Ok("short\n(lines 2–2 of 2)"));
}

#[test]
fn huge_files_are_read_where_it_is_cheap() {
    let fixture = Fixture::new();
    let file = File::create(fixture.path("in/huge")).expect("a file");
    file.write_all_at("line\n".repeat(10_000).as_bytes(), 0).expect("it is written");
    file.set_len(1 << 40).expect("a hole");
    let answer = fixture.call(read_file, json!({ "path": "@/in/huge", "limit": 2 }));
    let expected = "line\nline\n(lines 1–2 of more; continue with offset=3)";
    assert_eq!(answer.as_deref(), Ok(expected));
    file.write_all_at(b"\0", 0).expect("it is written");
    let answer = fixture.call(read_file, json!({ "path": "@/in/huge" }));
    let expected =
        "@/in/huge is binary data of 1099511627776 bytes, not text; use execute_command with a program that reads it";
    assert_eq!(answer, Err(expected.to_owned()));
}

#[test]
fn a_line_beyond_the_bound_is_not_looked_for() {
    let fixture = Fixture::new();
    let file = File::create(fixture.path("in/huge")).expect("a file");
    file.write_all_at(&[b'x'; 9_000], 0).expect("it is written");
    file.set_len(3 << 20).expect("a hole");
    let path = fixture.placed("@/in/huge");
    let resolved = fixture.roots.resolve_str(&path).expect("it is inside");
    let read = |offset| {
        let requested = LineRange { offset, limit: u64::MAX, max_bytes: 1_000 };
        let limits = ScanLimits { scanned: 2 << 20, counted: 1 << 20 };
        read_within(&resolved, requested, limits).map(|page| page.into_text("continue with"))
    };
    let expected = format!("line 2 of {path} is not within its first 2 MiB; use a command such as sed to read there");
    assert_eq!(read(2), Err(ToolError(expected)));
    let expected = format!(
        "{}\n(line 1 goes on for at least {} bytes that are left out; use a command such as cut to read them)\n\
         (lines 1–1 of more; continue with offset=2)",
        "x".repeat(616),
        (2 << 20) + (8 << 10) - 616
    );
    assert_eq!(read(1), Ok(expected));
}
