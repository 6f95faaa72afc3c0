//! `write_file`: what it makes, replaces and refuses.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rustix::fs::OFlags;

use super::super::write::Target;
use super::*;

#[test]
fn files_are_created_and_replaced() {
    let fixture = Fixture::new();
    fixture.write("in/there", "before");
    fs::create_dir(fixture.path("in/directory")).expect("a directory");
    fixture.link("directory", "in/inside");
    fixture.link("there", "in/link");
    fixture.link("nowhere", "in/dangling");
    fixture.link("nowhere-directory", "in/dangling-directory");
    let read_only = "@/read-only/a cannot be written: @/read-only is read-only; what you can write: @/in";
    check(
        &fixture,
        write_file,
        &[
            (json!({ "path": "@/in/new", "content": "text" }), Ok("wrote 4 bytes to @/in/new (created)")),
            (json!({ "path": "@/in/there", "content": "" }), Ok("wrote 0 bytes to @/in/there (replaced)")),
            (json!({ "path": "@/in/a/b/../c/d", "content": "ü" }), Ok("wrote 2 bytes to @/in/a/c/d (created)")),
            (json!({ "path": "@/in/inside/x/y", "content": "y" }), Ok("wrote 1 bytes to @/in/inside/x/y (created)")),
            (json!({ "path": "@/read-only/a", "content": "" }), Err(read_only)),
            (
                json!({ "path": "@/in/link", "content": "" }),
                Err("@/in/link is a link, and files are not written through links; write to the file that it leads to"),
            ),
            (
                json!({ "path": "@/in/dangling", "content": "" }),
                Err(
                    "@/in/dangling is a link, and files are not written through links; write to the file that it leads to",
                ),
            ),
            (
                json!({ "path": "@/in/dangling-directory/a", "content": "" }),
                Err(
                    "cannot write @/in/dangling-directory/a: a link in the path is broken, is a loop, or leads to a location that is not opened through links",
                ),
            ),
            (
                json!({ "path": "@/in/directory", "content": "" }),
                Err("@/in/directory is a directory; name a file in it"),
            ),
            (
                json!({ "path": "@/in/directory/", "content": "" }),
                Err(
                    "@/in/directory/ names a directory; write_file needs the name of a file, and makes the directories on the way",
                ),
            ),
            (json!({ "path": "@/in", "content": "" }), Err("@/in cannot be replaced: it is one of your roots")),
            (
                json!({ "path": "@/in/there/a", "content": "" }),
                Err("cannot write @/in/there/a: a component of the path is a file, not a directory"),
            ),
            (
                json!({ "path": "@/outside/a", "content": "" }),
                Err("@/outside/a is outside of what you can read: @/in, @/read-only"),
            ),
            (json!({ "path": "@/in/a" }), Err("the arguments do not fit: missing field `content`")),
        ],
    );
    assert_eq!(fixture.content("in/new"), "text");
    assert_eq!(fixture.content("in/there"), "");
    assert_eq!(fixture.content("in/a/c/d"), "ü");
    assert_eq!(fixture.content("in/directory/x/y"), "y");
    assert!(!fixture.path("in/a/b").exists());
    assert!(!fixture.path("in/nowhere").exists());
    fixture.check_clean("in");
    fixture.check_outside();
}

#[test]
fn the_mode_is_kept_without_setuid() {
    let fixture = Fixture::new();
    fixture.write("in/program", "before");
    let mode = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(fixture.path("in/program"), mode(0o4751)).expect("a mode");
    fs::hard_link(fixture.path("in/program"), fixture.path("in/other")).expect("a name");
    let answer = fixture.call(write_file, json!({ "path": "@/in/program", "content": "after" }));
    assert_eq!(answer.as_deref(), Ok("wrote 5 bytes to @/in/program (replaced)"));
    let metadata = fs::metadata(fixture.path("in/program")).expect("it is there");
    assert_eq!(metadata.mode() & 0o7777, 0o751);
    // Another name of the old file keeps what it had.
    assert_eq!(fixture.content("in/other"), "before");
}

#[test]
fn depth_and_size_are_bounded() {
    let fixture = Fixture::new();
    let deep = format!("@/in/{}file", "d/".repeat(66));
    let answer = fixture.call(write_file, json!({ "path": deep, "content": "" }));
    let error = answer.expect_err("it is too deep");
    assert!(error.ends_with("more than 64 directories on the way do not exist"), "{error}");
    assert!(!fixture.path("in/d").exists());
    let content = "x".repeat((16 << 20) + 1);
    let answer = fixture.call(write_file, json!({ "path": "@/in/large", "content": content }));
    let expected = "the content has 16777217 bytes; write_file writes at most 16777216";
    assert_eq!(answer, Err(expected.to_owned()));
    let name = "n".repeat(256);
    let answer = fixture.call(write_file, json!({ "path": format!("@/in/{name}"), "content": "" }));
    let expected =
        format!("cannot write @/in/{name}: the path, or a name in it, is longer than the file system allows");
    assert_eq!(answer, Err(expected));
    fixture.check_clean("in");
}

/// Each change that another process makes after the file was read, and whether the file may still be edited and
/// replaced.
#[test]
fn a_file_that_changed_meanwhile_is_not_replaced() {
    type Change = fn(&Fixture);
    let cases: [(&str, &str, Change, (bool, bool)); 6] = [
        ("nothing", "file", |_| (), (true, true)),
        ("written", "file", |fixture| fixture.write("in/file", "theirs now"), (false, true)),
        (
            "replaced",
            "file",
            |fixture| {
                fixture.write("in/next", "before");
                fs::rename(fixture.path("in/next"), fixture.path("in/file")).expect("it is there");
            },
            (false, false),
        ),
        (
            "a link",
            "file",
            |fixture| {
                fs::remove_file(fixture.path("in/file")).expect("it is there");
                fixture.link("../outside/secret", "in/file");
            },
            (false, false),
        ),
        ("made", "new", |fixture| fixture.write("in/new", "theirs"), (false, false)),
        ("a link made", "new", |fixture| fixture.link("../outside/secret", "in/new"), (false, false)),
    ];
    for (what, name, change, expected) in cases {
        let fixture = Fixture::new();
        fixture.write("in/file", "before");
        let path = fixture.placed(&format!("@/in/{name}"));
        let path = fixture.roots.resolve_str(&path).expect("it is inside");
        let directory = path.open_names(&[], OFlags::PATH).expect("a root");
        let target = Target::look_up(&path, directory, name).expect("a target");
        let temp_file = target.write(b"ours").expect("it is written");
        change(&fixture);
        let is_same = temp_file.target_is_unchanged();
        let is_taken = temp_file.commit().is_ok();
        assert_eq!((is_same, is_taken), expected, "{what}");
        if is_taken {
            assert_eq!(fixture.content(&format!("in/{name}")), "ours", "{what}");
        }
        fixture.check_clean("in");
        fixture.check_outside();
    }
}
