//! Paths that lead elsewhere, and files that are none.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use sympozium_testkit::as_user;

use super::*;

const TOOLS: [(&str, Tool); 4] =
    [("read", read_file), ("write", write_file), ("edit", edit_file), ("list", list_directory)];

/// Arguments that every tool takes.
fn arguments(path: &str) -> Value {
    json!({
        "path": path, "content": "written",
        "edits": [{ "old_string": "secret", "new_string": "written" }],
    })
}

#[test]
fn nothing_leads_out() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("in/directory")).expect("a directory");
    fixture.link("../outside", "in/out");
    fixture.link("@/outside", "in/absolute");
    fixture.link("../outside/secret", "in/secret");
    fixture.link("@/outside/secret", "in/absolute-secret");
    fixture.link("directory/../../outside", "in/around");
    fixture.link("loop", "in/loop");
    fixture.link("two", "in/one");
    fixture.link("one", "in/two");
    fixture.link("/proc/self/cwd", "in/magic");
    fixture.link("/proc/self/root", "in/top");
    fixture.link("/", "in/slash");
    let long = format!("@/in/{}", "x/".repeat(2_100));
    let paths = [
        "@/in/out/secret",
        "@/in/out/new",
        "@/in/absolute/secret",
        "@/in/absolute/new",
        "@/in/secret",
        "@/in/absolute-secret",
        "@/in/around/secret",
        "@/in/around/new",
        "@/in/../outside/secret",
        "@/in/directory/../../outside/secret",
        "@/in/loop",
        "@/in/loop/x",
        "@/in/one/x",
        "@/in/magic/Cargo.toml",
        "@/in/top/etc/passwd",
        "@/in/slash/etc/passwd",
        "@/outside/secret",
        "@/in2/x",
        "/etc/passwd",
        "etc/../../etc/passwd",
        "../etc/passwd",
        "/proc/self/environ",
        "//proc//self/environ",
        "/dev/null",
        "/run/sympozium/plan.json",
        "@/in/a\0b",
        "",
        long.as_str(),
    ];
    for path in paths {
        for (name, tool) in TOOLS {
            let answer = fixture.call(tool, arguments(path));
            let error = answer.expect_err(&format!("{name} {path:?}"));
            assert!(!error.is_empty() && error.len() < 1_000, "{error}");
            assert!(!error.contains('\0') && !error.contains('\n'), "{error:?}");
        }
        fixture.check_outside();
    }
    fixture.check_clean("in");
}

#[test]
fn errors_say_where_to_look() {
    let fixture = Fixture::new();
    fixture.link("../outside", "in/out");
    fixture.link("loop", "in/loop");
    let long = format!("/{}", "x".repeat(4_096));
    check(
        &fixture,
        read_file,
        &[
            (json!({ "path": "/etc/passwd" }), Err("/etc/passwd is outside of what you can read: @/in, @/read-only")),
            (
                json!({ "path": "notes.md" }),
                Err("/workspace/notes.md is outside of what you can read: @/in, @/read-only"),
            ),
            (
                json!({ "path": "@/in/out/secret" }),
                Err(
                    "cannot read @/in/out/secret: a link in the path leads out of @/in, and such links are not followed",
                ),
            ),
            (
                json!({ "path": "@/in/loop" }),
                Err(
                    "cannot read @/in/loop: a link in the path is broken, is a loop, or leads to a location that is not opened through links",
                ),
            ),
            (json!({ "path": "@/in" }), Err("@/in is a directory; use list_directory to see what is in it")),
            (json!({ "path": "" }), Err("the path is empty; name a file or a directory")),
            (json!({ "path": "a\0" }), Err("the path has a NUL byte in it, which no path can have")),
            (json!({ "path": long }), Err("the path has 4097 bytes; a path has at most 4096")),
            (json!({ "path": "/x\ny" }), Err("/x\\ny is outside of what you can read: @/in, @/read-only")),
        ],
    );
    let roots = Roots::open(&[], &[]);
    let arguments = json!({ "path": "/x" });
    let answer = read_file(&roots, arguments.as_object().expect("an object"), MOST);
    let expected = "/x is outside of what you can read: nothing";
    assert_eq!(answer, Err(ToolError(expected.to_owned())));
}

#[test]
fn special_files_are_refused_without_blocking() {
    let fixture = Fixture::new();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, fixture.path("in/fifo"), rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    let _listener = UnixListener::bind(fixture.path("in/socket")).expect("a socket");
    let mut kinds = vec![("fifo", "a FIFO"), ("socket", "a socket")];
    // The null device, where a device can be made.
    let device = rustix::fs::mknodat(
        rustix::fs::CWD,
        fixture.path("in/device"),
        rustix::fs::FileType::CharacterDevice,
        mode,
        rustix::fs::makedev(1, 3),
    );
    if device.is_ok() {
        kinds.push(("device", "a device"));
    }
    for (name, kind) in kinds {
        let path = format!("@/in/{name}");
        let expected = format!("{path} is {kind}, not a regular file");
        for (tool, call) in &TOOLS[..3] {
            let answer = fixture.call(*call, arguments(&path));
            assert_eq!(answer, Err(expected.clone()), "{tool}");
        }
        let answer = fixture.call(list_directory, arguments(&path));
        assert_eq!(answer, Err(format!("{path} is not a directory")));
    }
}

/// The image is a root, and so the machine's own `/proc` and `/run` are below it.
#[test]
fn closed_paths_below_the_root_directory_stay_closed() {
    let fixture = Fixture::new();
    // Relative, and up to the top but not beyond: such a link stays below the root that it is in.
    let up = "../".repeat(fixture.path("in").components().count() - 1);
    fixture.link(&format!("{up}proc"), "in/proc");
    fixture.link(&format!("{up}proc/self/status"), "in/status");
    fixture.link(&format!("{up}sys"), "in/sys");
    assert!(fs::read_to_string(fixture.path("in/status")).is_ok_and(|text| !text.is_empty()));
    let top = Root { path: "/".to_owned(), writable: true };
    let fixture = Fixture { roots: Roots::open(&[top], &["/"]), ..fixture };
    let closed = [
        "/proc/self/status",
        "/sys/kernel/notes",
        "/dev/null",
        "/run/x",
        "/var/run/x",
        "/ipc/x",
        "/run/sympozium/plan.json",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/tmp/../proc/version",
    ];
    for path in closed {
        for (name, tool) in TOOLS {
            let error = fixture.call(tool, arguments(path)).expect_err(name);
            assert!(error.ends_with(" is outside of what you can read: /"), "{error}");
        }
    }
    for path in ["@/in/proc/self/status", "@/in/proc/new", "@/in/status", "@/in/sys/kernel/notes"] {
        for (name, tool) in TOOLS {
            fixture.call(tool, arguments(path)).expect_err(name);
        }
    }
    let listed = fixture.call(list_directory, json!({ "path": "/" }));
    let listed = listed.expect("it is a directory");
    for name in ["proc", "sys", "dev", "run"] {
        assert!(!listed.lines().any(|line| line == format!("dir - {name}")), "{listed}");
    }
    assert!(listed.lines().any(|line| line == "dir - etc"), "{listed}");
}

#[test]
fn permission_errors_are_explained() {
    as_user::run(|| {
        let fixture = Fixture::new();
        fixture.write("in/closed", "text");
        fs::create_dir(fixture.path("in/directory")).expect("a directory");
        let mode = |path: &str, mode| {
            fs::set_permissions(fixture.path(path), fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode("in/closed", 0);
        mode("in/directory", 0o555);
        check(
            &fixture,
            read_file,
            &[(json!({ "path": "@/in/closed" }), Err("you are not permitted to read @/in/closed"))],
        );
        check(
            &fixture,
            write_file,
            &[
                (arguments("@/in/directory/a"), Err("you are not permitted to write @/in/directory/a")),
                (arguments("@/in/directory/a/b"), Err("you are not permitted to write @/in/directory/a/b")),
            ],
        );
        mode("in/directory", 0o755);
    });
}

#[test]
fn nothing_is_left_when_the_disk_is_full() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("not root: cannot mount");
    }
    let fixture = Fixture::new();
    let space = fixture.path("in/small");
    fs::create_dir(&space).expect("a directory");
    let mounted = rustix::mount::mount("tmpfs", &space, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=64k"));
    if mounted.is_err() {
        sympozium_testkit::skip!("no right to mount");
    }
    fixture.write("in/small/there", "before");
    let large = "x".repeat(200 << 10);
    let answers = ["there", "new"].map(|name| {
        let path = format!("@/in/small/{name}");
        fixture.call(write_file, json!({ "path": path, "content": large }))
    });
    let there = fixture.content("in/small/there");
    let count = fs::read_dir(&space).expect("it is there").count();
    rustix::mount::unmount(&space, rustix::mount::UnmountFlags::DETACH).expect("it was mounted");
    let expected = |name: &str| {
        Err(format!("cannot write @/in/small/{name}: no space is left there; remove files that you no longer need"))
    };
    assert_eq!(answers, ["there", "new"].map(expected));
    assert_eq!((there.as_str(), count), ("before", 1));
}
