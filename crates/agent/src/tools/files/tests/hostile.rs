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
    let world = World::new();
    fs::create_dir(world.path("in/directory")).expect("a directory");
    world.link("../outside", "in/out");
    world.link("@/outside", "in/absolute");
    world.link("../outside/secret", "in/secret");
    world.link("@/outside/secret", "in/absolute-secret");
    world.link("directory/../../outside", "in/around");
    world.link("loop", "in/loop");
    world.link("two", "in/one");
    world.link("one", "in/two");
    world.link("/proc/self/cwd", "in/magic");
    world.link("/proc/self/root", "in/top");
    world.link("/", "in/slash");
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
            let answer = world.call(tool, arguments(path));
            let error = answer.expect_err(&format!("{name} {path:?}"));
            assert!(!error.is_empty() && error.len() < 1_000, "{error}");
            assert!(!error.contains('\0') && !error.contains('\n'), "{error:?}");
        }
        world.check_outside();
    }
    world.check_clean("in");
}

#[test]
fn errors_say_where_to_look() {
    let world = World::new();
    world.link("../outside", "in/out");
    world.link("loop", "in/loop");
    let long = format!("/{}", "x".repeat(4_096));
    check(
        &world,
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
                    "cannot read @/in/out/secret: a link on the way leads out of @/in, and such links are not followed",
                ),
            ),
            (
                json!({ "path": "@/in/loop" }),
                Err(
                    "cannot read @/in/loop: a link on the way leads nowhere, in a circle, or to a place that is not opened by links",
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
    let given = json!({ "path": "/x" });
    let answer = read_file(&roots, given.as_object().expect("an object"), MOST);
    let expected = "/x is outside of what you can read: nothing";
    assert_eq!(answer, Err(ToolError(expected.to_owned())));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let world = World::new();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, world.path("in/fifo"), rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    let _listener = UnixListener::bind(world.path("in/socket")).expect("a socket");
    let mut kinds = vec![("fifo", "a FIFO"), ("socket", "a socket")];
    // The null device, where a device can be made.
    let device = rustix::fs::mknodat(
        rustix::fs::CWD,
        world.path("in/device"),
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
            let answer = world.call(*call, arguments(&path));
            assert_eq!(answer, Err(expected.clone()), "{tool}");
        }
        let answer = world.call(list_directory, arguments(&path));
        assert_eq!(answer, Err(format!("{path} is not a directory")));
    }
}

/// The image is a root, and so the machine's own `/proc` and `/run` are below it.
#[test]
fn the_root_of_all_keeps_its_closed_places() {
    let world = World::new();
    // Relative, and up to the top but not beyond: such a link stays below the root that it is in.
    let up = "../".repeat(world.path("in").components().count() - 1);
    world.link(&format!("{up}proc"), "in/proc");
    world.link(&format!("{up}proc/self/status"), "in/status");
    world.link(&format!("{up}sys"), "in/sys");
    assert!(fs::read_to_string(world.path("in/status")).is_ok_and(|text| !text.is_empty()));
    let top = Root { path: "/".to_owned(), writable: true };
    let world = World { roots: Roots::open(&[top], &["/"]), ..world };
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
            let error = world.call(tool, arguments(path)).expect_err(name);
            assert!(error.ends_with(" is outside of what you can read: /"), "{error}");
        }
    }
    for path in ["@/in/proc/self/status", "@/in/proc/new", "@/in/status", "@/in/sys/kernel/notes"] {
        for (name, tool) in TOOLS {
            world.call(tool, arguments(path)).expect_err(name);
        }
    }
    let listed = world.call(list_directory, json!({ "path": "/" }));
    let listed = listed.expect("it is a directory");
    for name in ["proc", "sys", "dev", "run"] {
        assert!(!listed.lines().any(|line| line == format!("dir - {name}")), "{listed}");
    }
    assert!(listed.lines().any(|line| line == "dir - etc"), "{listed}");
}

#[test]
fn what_others_closed_is_told() {
    as_user::run(|| {
        let world = World::new();
        world.write("in/closed", "text");
        fs::create_dir(world.path("in/directory")).expect("a directory");
        let mode = |path: &str, mode| {
            fs::set_permissions(world.path(path), fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode("in/closed", 0);
        mode("in/directory", 0o555);
        check(
            &world,
            read_file,
            &[(json!({ "path": "@/in/closed" }), Err("you are not permitted to read @/in/closed"))],
        );
        check(
            &world,
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
    let world = World::new();
    let space = world.path("in/small");
    fs::create_dir(&space).expect("a directory");
    let mounted = rustix::mount::mount("tmpfs", &space, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=64k"));
    if mounted.is_err() {
        sympozium_testkit::skip!("no right to mount");
    }
    world.write("in/small/there", "before");
    let large = "x".repeat(200 << 10);
    let answers = ["there", "new"].map(|name| {
        let path = format!("@/in/small/{name}");
        world.call(write_file, json!({ "path": path, "content": large }))
    });
    let there = world.content("in/small/there");
    let count = fs::read_dir(&space).expect("it is there").count();
    rustix::mount::unmount(&space, rustix::mount::UnmountFlags::DETACH).expect("it was mounted");
    let expected = |name: &str| {
        Err(format!("cannot write @/in/small/{name}: no space is left there; remove files that you no longer need"))
    };
    assert_eq!(answers, ["there", "new"].map(expected));
    assert_eq!((there.as_str(), count), ("before", 1));
}
