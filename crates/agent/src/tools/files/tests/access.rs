//! Where tools write, and what they advise to a model that has no commands.

use super::*;
use crate::tools::files::{WRITABLE, is_writable_root};

#[test]
fn a_volume_that_is_mounted_elsewhere_is_not_written_to() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("volume")).expect("a directory");
    fixture.write("volume/text", "as it was");
    let roots = ["in", "volume", "read-only"]
        .map(|name| Root { path: fixture.path(name).display().to_string(), writable: name != "read-only" });
    let (here, other) = (fixture.placed("@/in"), fixture.placed("@/other/"));
    let fixture = Fixture { roots: Roots::open(&roots, &[&here, &other]), ..fixture };
    let expected = |name: &str| {
        Err(format!(
            "@/volume/{name} cannot be written: write_file and edit_file write only below @/in and @/other; \
             what you can write: @/in"
        ))
    };
    let new = json!({ "path": "@/volume/new", "content": "x" });
    assert_eq!(fixture.call(write_file, new), expected("new"));
    let edit = json!({ "path": "@/volume/text", "edits": [{ "old_string": "was", "new_string": "is" }] });
    assert_eq!(fixture.call(edit_file, edit), expected("text"));
    assert_eq!(fixture.content("volume/text"), "as it was");
    let read = fixture.call(read_file, json!({ "path": "@/volume/text" }));
    assert_eq!(read.as_deref(), Ok("as it was"));
    let listed = fixture.call(list_directory, json!({ "path": "/" }));
    let expected = "dir - @/in (writable)\ndir - @/read-only (read-only)\ndir - @/volume (read-only)";
    assert_eq!(listed.as_deref(), Ok(expected));
    let inside = json!({ "path": "@/in/new", "content": "x" });
    let written = fixture.call(write_file, inside);
    assert_eq!(written.as_deref(), Ok("wrote 1 bytes to @/in/new (created)"));
}

#[test]
fn tools_write_below_the_workspace_and_tmp() {
    let cases = [
        ("/workspace", true),
        ("/workspace/", true),
        ("/workspace/cache", true),
        ("/tmp", true),
        ("/tmp/../data", false),
        ("/workspaces", false),
        ("/data", false),
        ("/", false),
        ("", false),
    ];
    for (path, expected) in cases {
        let root = |writable| Root { path: path.to_owned(), writable };
        assert_eq!(is_writable_root(&root(true), &WRITABLE), expected, "{path}");
        assert!(!is_writable_root(&root(false), &WRITABLE), "{path}");
    }
}

#[test]
fn a_moved_workspace_has_both_names() {
    let fixture = Fixture::new();
    let workspace = fixture.placed("@/in");
    let fixture = Fixture { roots: fixture.roots.with_workspace(&workspace), directory: fixture.directory };
    let written = |path: &str| fixture.call(write_file, json!({ "path": path, "content": "x" }));
    for (path, created) in [
        ("one", "@/in/one"),
        ("/workspace/two", "@/in/two"),
        ("@/in/three", "@/in/three"),
        ("/workspace/../workspace/four", "@/in/four"),
    ] {
        let expected = format!("wrote 1 bytes to {created} (created)");
        assert_eq!(written(path), Ok(expected), "{path}");
    }
    for path in ["/workspaces/five", "../five"] {
        assert!(written(path).is_err(), "{path}");
    }
    let listed = fixture.call(list_directory, json!({ "path": "/workspace" }));
    assert!(listed.is_ok_and(|text| text.contains("four")));
}

#[test]
fn a_model_without_commands_is_not_asked_to_use_one() {
    let fixture = Fixture::new();
    let fixture = Fixture { roots: fixture.roots.with_commands(Commands::NotOffered), directory: fixture.directory };
    fixture.write("in/binary", b"a\0b");
    fixture.write("in/wide", b"\xff\xfea\0\n\0");
    fixture.write("in/line", "x".repeat(5_000));
    fixture.write("read-only/line", "x".repeat(5_000));
    let large = fs::File::create(fixture.path("in/large")).expect("a file");
    large.set_len(17 << 20).expect("a hole");
    let binary = fixture.call(read_file, json!({ "path": "@/in/binary" }));
    let expected = "@/in/binary is binary data of 3 bytes, not text";
    assert_eq!(binary, Err(expected.to_owned()));
    let edits = json!([{ "old_string": "a", "new_string": "b" }]);
    check(
        &fixture,
        edit_file,
        &[
            (json!({ "path": "@/in/binary", "edits": edits }), Err("@/in/binary is binary data, not text")),
            (
                json!({ "path": "@/in/wide", "edits": edits }),
                Err("@/in/wide is UTF-16LE text, which edit_file cannot edit; write it whole"),
            ),
            (
                json!({ "path": "@/in/large", "edits": edits }),
                Err("@/in/large has more than 16 MiB, the most that edit_file takes"),
            ),
        ],
    );
    let cut = |path: &str| {
        let answer = fixture.call_with(read_file, json!({ "path": path }), 1_000);
        let answer = answer.expect("a page");
        answer.trim_start_matches('x').to_owned()
    };
    assert_eq!(
        cut("@/in/line"),
        "\n(line 1 goes on for 4384 bytes that are left out; read_file cannot show them, and edit_file can replace text in them)\n\
         (lines 1–1 of 1)"
    );
    assert_eq!(
        cut("@/read-only/line"),
        "\n(line 1 goes on for 4384 bytes that are left out; read_file cannot show them)\n(lines 1–1 of 1)"
    );
    // As it says: what is left out can be changed.
    fixture.write("in/line", format!("{} end", "x".repeat(5_000)));
    let edit = json!({ "path": "@/in/line", "edits": [{ "old_string": " end", "new_string": "" }] });
    fixture.call(edit_file, edit).expect("it is there");
    assert_eq!(fixture.content("in/line"), "x".repeat(5_000));
}
