//! Where tools write, and what they advise to a model that has no commands.

use super::*;
use crate::tools::files::{WRITABLE, is_written};

#[test]
fn a_volume_that_is_mounted_elsewhere_is_not_written_to() {
    let world = World::new();
    fs::create_dir(world.path("volume")).expect("a directory");
    world.write("volume/text", "as it was");
    let roots = ["in", "volume", "read-only"]
        .map(|name| Root { path: world.path(name).display().to_string(), writable: name != "read-only" });
    let (here, other) = (world.placed("@/in"), world.placed("@/other/"));
    let world = World { roots: Roots::open(&roots, &[&here, &other]), ..world };
    let expected = |name: &str| {
        Err(format!(
            "@/volume/{name} cannot be written: write_file and edit_file write only below @/in and @/other; \
             what you can write: @/in"
        ))
    };
    let new = json!({ "path": "@/volume/new", "content": "x" });
    assert_eq!(world.call(write_file, new), expected("new"));
    let edit = json!({ "path": "@/volume/text", "edits": [{ "old_string": "was", "new_string": "is" }] });
    assert_eq!(world.call(edit_file, edit), expected("text"));
    assert_eq!(world.content("volume/text"), "as it was");
    let read = world.call(read_file, json!({ "path": "@/volume/text" }));
    assert_eq!(read.as_deref(), Ok("as it was"));
    let listed = world.call(list_directory, json!({ "path": "/" }));
    let expected = "dir - @/in (writable)\ndir - @/read-only (read-only)\ndir - @/volume (read-only)";
    assert_eq!(listed.as_deref(), Ok(expected));
    let inside = json!({ "path": "@/in/new", "content": "x" });
    let written = world.call(write_file, inside);
    assert_eq!(written.as_deref(), Ok("wrote 1 bytes to @/in/new (created)"));
}

#[test]
fn tools_write_below_the_workspace_and_the_place_for_what_is_temporary() {
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
        assert_eq!(is_written(&root(true), &WRITABLE), expected, "{path}");
        assert!(!is_written(&root(false), &WRITABLE), "{path}");
    }
}

#[test]
fn a_workspace_elsewhere_is_known_by_both_names() {
    let world = World::new();
    let workspace = world.placed("@/in");
    let world = World { roots: world.roots.with_workspace(&workspace), directory: world.directory };
    let written = |path: &str| world.call(write_file, json!({ "path": path, "content": "x" }));
    for (path, created) in [
        ("one", "@/in/one"),
        ("/workspace/two", "@/in/two"),
        ("@/in/three", "@/in/three"),
        ("/workspace/../workspace/four", "@/in/four"),
    ] {
        let expected = format!("wrote 1 bytes to {created} (created)");
        assert_eq!(written(path), Ok(expected), "{path}");
    }
    for outside in ["/workspaces/five", "../five"] {
        assert!(written(outside).is_err(), "{outside}");
    }
    let listed = world.call(list_directory, json!({ "path": "/workspace" }));
    assert!(listed.is_ok_and(|it| it.contains("four")));
}

#[test]
fn a_model_without_commands_is_not_told_to_use_one() {
    let world = World::new();
    let world = World { roots: world.roots.with_commands(Commands::NotOffered), directory: world.directory };
    world.write("in/binary", b"a\0b");
    world.write("in/wide", b"\xff\xfea\0\n\0");
    world.write("in/line", "x".repeat(5_000));
    world.write("read-only/line", "x".repeat(5_000));
    let large = fs::File::create(world.path("in/large")).expect("a file");
    large.set_len(17 << 20).expect("a hole");
    let binary = world.call(read_file, json!({ "path": "@/in/binary" }));
    let expected = "@/in/binary is binary data of 3 bytes, not text";
    assert_eq!(binary, Err(expected.to_owned()));
    let edits = json!([{ "old_string": "a", "new_string": "b" }]);
    check(
        &world,
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
        let answer = world.call_with(read_file, json!({ "path": path }), 1_000);
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
    world.write("in/line", format!("{} end", "x".repeat(5_000)));
    let edit = json!({ "path": "@/in/line", "edits": [{ "old_string": " end", "new_string": "" }] });
    world.call(edit_file, edit).expect("it is there");
    assert_eq!(world.content("in/line"), "x".repeat(5_000));
}
