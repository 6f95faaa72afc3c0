//! `list_directory`: order, names, bounds, and what is above the roots.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;

use super::*;

#[test]
fn entries_have_kind_size_and_name() {
    let fixture = Fixture::new();
    for name in ["b-directory", "a-directory", "empty"] {
        fs::create_dir(fixture.path("in").join(name)).expect("a directory");
    }
    fixture.write("in/z", "12345");
    fixture.write("in/a\nb\u{202e}", "");
    // Invisible to people, but programs read it as part of the name.
    fixture.write("in/b\u{ad}c\u{e0041}", "");
    fs::write(fixture.path("in").join(OsStr::from_bytes(b"caf\xe9")), "1").expect("a file");
    fixture.link("../outside/secret", "in/link");
    let _listener = UnixListener::bind(fixture.path("in/socket")).expect("a socket");
    check(
        &fixture,
        list_directory,
        &[
            (
                json!({ "path": "@/in" }),
                Ok(
                    "dir - a-directory\ndir - b-directory\ndir - empty\nfile 0 a\\nb\\u{202e}\nfile 0 b\\u{ad}c\\u{e0041}\nfile 1 caf\\xe9\n\
                    link - link -> ../outside/secret\nother - socket\nfile 5 z",
                ),
            ),
            (json!({ "path": "@/in/empty/." }), Ok("(empty directory)")),
            (json!({ "path": "@/in/z" }), Err("@/in/z is a file; use read_file to read it")),
            (json!({ "path": "@/in/socket" }), Err("@/in/socket is not a directory")),
            (json!({ "path": "@/in/missing" }), Err("@/in/missing does not exist; list_directory shows what is there")),
            (json!({ "path": "@/outside" }), Err("@/outside is outside of what you can read: @/in, @/read-only")),
            (json!({ "path": "@" }), Ok("dir - @/in (writable)\ndir - @/read-only (read-only)")),
            (json!({ "path": "/" }), Ok("dir - @/in (writable)\ndir - @/read-only (read-only)")),
            (json!({ "path": "../../.." }), Ok("dir - @/in (writable)\ndir - @/read-only (read-only)")),
        ],
    );
}

#[test]
fn no_more_is_listed_than_there_is_room_for() {
    let fixture = Fixture::new();
    for number in 0..2_100 {
        fixture.write(&format!("in/{number:04}"), "");
    }
    let expected: Vec<String> = (0..2_000).map(|number| format!("file 0 {number:04}")).collect();
    let expected = format!("{}\n… and 100 more", expected.join("\n"));
    let answer = fixture.call_with(list_directory, json!({ "path": "@/in" }), 100_000);
    assert_eq!(answer, Ok(expected));
    // A line has 12 bytes.
    let answer = fixture.call_with(list_directory, json!({ "path": "@/in" }), 64 + 25);
    assert_eq!(answer.as_deref(), Ok("file 0 0000\nfile 0 0001\n… and 2098 more"));
}

#[test]
fn roots_can_be_nested_files_and_missing() {
    let fixture = Fixture::new();
    fixture.write("in/file", "one\n");
    fs::create_dir(fixture.path("in/closed")).expect("a directory");
    fixture.write("in/closed/text", "two\n");
    let root = |name: &str, writable| Root { path: fixture.path(name).display().to_string(), writable };
    let here = fixture.path("").display().to_string();
    let roots = [
        root("in", true),
        root("in/closed", false),
        root("in/file", false),
        root("missing", true),
        root("in/closed/../closed/", true),
        Root { path: "in".to_owned(), writable: true },
        Root { path: "/proc/self".to_owned(), writable: false },
    ];
    let roots = Roots::open(&roots, &[&here]);
    let fixture = Fixture { directory: fixture.directory, roots };
    check(
        &fixture,
        list_directory,
        &[(
            json!({ "path": "/" }),
            Ok("dir - @/in (writable)\ndir - @/in/closed (read-only)\nfile 4 @/in/file (read-only)"),
        )],
    );
    check(
        &fixture,
        read_file,
        &[
            (json!({ "path": "@/in/file" }), Ok("one\n")),
            (json!({ "path": "@/in/closed/text" }), Ok("two\n")),
            (
                json!({ "path": "@/in/file/x" }),
                Err("cannot read @/in/file/x: a component of the path is a file, not a directory"),
            ),
            (
                json!({ "path": "/proc/self/status" }),
                Err("/proc/self/status is outside of what you can read: @/in, @/in/closed, @/in/file"),
            ),
        ],
    );
    check(
        &fixture,
        write_file,
        &[(
            json!({ "path": "@/in/closed/text", "content": "" }),
            Err("@/in/closed/text cannot be written: @/in/closed is read-only; what you can write: @/in"),
        )],
    );
}
