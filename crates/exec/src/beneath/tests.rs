//! Every case runs through both methods; `openat2` is the oracle for the walk, and the cases that are escapes also have
//! their expected result.

mod random;

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, RenameFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use tempfile::TempDir;

use super::walk::is_planted;
use super::*;

const METHODS: [Method; 2] = [Method::Openat2, Method::Walk];
const READ: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);
const CREATE: OFlags = READ.union(OFlags::CREATE).union(OFlags::RDWR);

fn every_resolve() -> Vec<Resolve> {
    let mut all = Vec::new();
    for scope in [Scope::Beneath, Scope::InRoot] {
        for links in [Links::Follow, Links::Refuse] {
            for mounts in [Mounts::Cross, Mounts::Stay] {
                all.push(Resolve { scope, links, mounts });
            }
        }
    }
    all
}

fn every_flags() -> Vec<OFlags> {
    vec![
        READ,
        READ | OFlags::RDWR,
        READ | OFlags::WRONLY | OFlags::TRUNC,
        READ | OFlags::DIRECTORY,
        READ | OFlags::NOFOLLOW,
        READ | OFlags::NOFOLLOW | OFlags::DIRECTORY,
        OFlags::PATH,
        OFlags::PATH | OFlags::NOFOLLOW,
        OFlags::PATH | OFlags::DIRECTORY,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW,
        CREATE,
        CREATE | OFlags::EXCL,
        CREATE | OFlags::NOFOLLOW,
        CREATE | OFlags::DIRECTORY,
        OFlags::PATH | OFlags::WRONLY,
        OFlags::TMPFILE | OFlags::RDWR,
    ]
}

fn directory(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).unwrap()
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

/// The opened file, as a path relative to `base`, or the errno.
fn answer(method: Method, base: &Path, path: &Path, flags: OFlags, resolve: Resolve) -> Result<PathBuf, Errno> {
    let dir = directory(base);
    let mode = if flags.contains(OFlags::CREATE) { Mode::from(0o640) } else { Mode::empty() };
    // Renames by any process on the machine disturb openat2, and one test here does nothing else. It returns EAGAIN; or
    // it starts over without resetting the count of links, and a legal chain gets ELOOP. So try again.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut loops = 0;
    let opened = loop {
        match open_with(method, dir.as_fd(), path, flags, mode, resolve) {
            Err(error) if is(&error, Errno::AGAIN) && Instant::now() < deadline => {}
            Err(error) if is(&error, Errno::LOOP) && method == Method::Openat2 && loops < 50 => {
                loops += 1;
            }
            opened => break opened,
        }
    };
    match opened {
        Ok(file) => {
            let link = format!("/proc/self/fd/{}", file.as_raw_fd());
            let real = fs::read_link(link).unwrap();
            Ok(real.strip_prefix(base).map_or(real.clone(), Path::to_path_buf))
        }
        Err(error) => Err(Errno::from_io_error(&error).unwrap()),
    }
}

fn listing(base: &Path) -> BTreeSet<(PathBuf, u32)> {
    let mut found = BTreeSet::new();
    let mut todo = vec![base.to_path_buf()];
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(path).into_iter().flatten() {
            let entry = entry.unwrap();
            // Without search permission only the name is accessible.
            let mode = entry.metadata().map_or(0, |meta| meta.mode());
            if FileType::from_raw_mode(mode) == FileType::Directory {
                todo.push(entry.path());
            }
            let path = entry.path().strip_prefix(base).unwrap().to_path_buf();
            found.insert((path, mode));
        }
    }
    found
}

/// Thousands of small files: in memory if possible.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A tree that its owner can remove again, whatever the test sealed.
struct Tree {
    outer: TempDir,
    base: PathBuf,
}

impl Drop for Tree {
    fn drop(&mut self) {
        let sealed = self.base.join("sealed");
        let _ = fs::set_permissions(sealed, fs::Permissions::from_mode(0o700));
    }
}

/// A directory with one entry of each kind. `base` is what paths are relative to; `secret` is beside it.
fn tree() -> Tree {
    let outer = scratch();
    fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(outer.path().join("secret"), "secret").unwrap();
    let base = outer.path().join("base");
    fs::create_dir_all(base.join("d/e/g")).unwrap();
    fs::write(base.join("d/e/f"), "f").unwrap();
    fs::write(base.join("secret"), "inner").unwrap();
    fs::create_dir(base.join("sealed")).unwrap();
    fs::write(base.join("sealed/f"), "f").unwrap();
    fs::set_permissions(base.join("sealed"), fs::Permissions::from_mode(0o600)).unwrap();
    let links = [
        ("rel", "d/e/f"),
        ("abs", "/d/e/f"),
        ("d/up", ".."),
        ("d/abs", "/secret"),
        ("d/out", "../../secret"),
        ("escape", "../secret"),
        // Harmless, should a defence be missing.
        ("absolute-escape", "/proc/version"),
        ("dangling", "new"),
        ("dangling-deep", "d/new"),
        ("dangling-dir", "no/new"),
        ("dangling-slash", "new/"),
        ("loop", "loop"),
        ("ping", "pong"),
        ("pong", "ping"),
        ("dirlink", "d"),
        ("dirlink-slash", "d/"),
        ("dirlink2", "dirlink"),
        ("filelink-slash", "d/e/f/"),
        ("file-slash-link", "rel/"),
        ("root", "/"),
        ("roots", "///"),
        ("dot", "."),
        ("dots", "./."),
        ("dirdot", "d/."),
        ("dirdotdot", "d/.."),
        ("through-file", "d/e/f/x"),
    ];
    for (name, target) in links {
        symlink(target, base.join(name)).unwrap();
    }
    symlink("d/e/f", base.join("c0")).unwrap();
    for link in 1..=41 {
        symlink(format!("c{}", link - 1), base.join(format!("c{link}"))).unwrap();
    }
    rustix::fs::mknodat(CWD, base.join("fifo"), FileType::Fifo, Mode::from(0o644), 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(base.join("socket")).unwrap());
    Tree { outer, base }
}

fn every_path() -> Vec<PathBuf> {
    let mut paths: Vec<String> = [
        "",
        "/",
        "//",
        ".",
        "./",
        "..",
        "../",
        "/..",
        "../..",
        "./..",
        "d",
        "d/",
        "d//",
        "d/.",
        "d/..",
        "d/../",
        "d/../..",
        "d/../../secret",
        "/d",
        "/d/e/f",
        "//d///e//f",
        "d/e/f",
        "d/e/f/",
        "d/e/f/.",
        "d/e/f/..",
        "d/e/f/x",
        "d/./e/../e/f",
        "nope",
        "nope/",
        "nope/x",
        "nope/..",
        "nope/.",
        "rel",
        "rel/",
        "rel/x",
        "rel/..",
        "abs",
        "abs/",
        "d/up",
        "d/abs",
        "d/up/",
        "d/up/secret",
        "d/up/..",
        "d/up/d/up/d/up/rel",
        "d/out",
        "d/out/",
        "escape",
        "escape/x",
        "absolute-escape",
        "dangling",
        "dangling/",
        "dangling/x",
        "dangling-deep",
        "dangling-dir",
        "dangling-slash",
        "loop",
        "loop/",
        "loop/x",
        "loop/..",
        "ping",
        "ping/x",
        "dirlink",
        "dirlink/",
        "dirlink/e/f",
        "dirlink/new",
        "dirlink/..",
        "dirlink/../..",
        "dirlink-slash",
        "dirlink-slash/e/f",
        "dirlink-slash/e/new",
        "dirlink2",
        "dirlink2/",
        "dirlink2/e",
        "filelink-slash",
        "filelink-slash/x",
        "file-slash-link",
        "root",
        "root/",
        "root/d",
        "root/new",
        "root/..",
        "root/../d",
        "roots",
        "roots/d/e/f",
        "dot",
        "dot/d",
        "dot/new",
        "dots",
        "dirdot",
        "dirdot/e/f",
        "dirdotdot",
        "dirdotdot/..",
        "dirdotdot/d/e/f",
        "through-file",
        "fifo",
        "fifo/",
        "fifo/x",
        "socket",
        "sealed",
        "sealed/",
        "sealed/f",
        "sealed/.",
        "sealed/..",
        "sealed/../d",
        "sealed/new",
        "sealed/new/",
        "sealed/nope/x",
        "c38",
        "c39",
        "c40",
        "c41",
        "c39/",
        "c38/x",
        "dirlink/../c38",
        "dirlink/../c39",
        "d/new",
        "d/new/",
        "d/new/x",
        "...",
        "d/...",
        " ",
        "\n",
        "d/e/g",
        "d/e/g/../f",
    ]
    .map(String::from)
    .to_vec();
    for length in [255, 256, 4000] {
        paths.push("n".repeat(length));
        paths.push(format!("d/{}/x", "n".repeat(length)));
        paths.push(format!("nope/{}", "n".repeat(length)));
    }
    for length in [4094, 4095, 4096, 70_000] {
        let mut path = "d/../".repeat(length / 5 + 1);
        path.truncate(length - 1);
        paths.push(path.clone() + "/");
        paths.push("/".repeat(length));
    }
    paths.extend(["d\0", "\0", "d/e\0/f", "nope/\0", "d/e/f/\0"].map(String::from));
    paths.into_iter().map(PathBuf::from).collect()
}

fn assert_methods_agree() {
    let mut trees = METHODS.map(|_| tree());
    for flags in every_flags() {
        for resolve in every_resolve() {
            if flags.contains(OFlags::CREATE) {
                trees = METHODS.map(|_| tree());
            }
            for path in every_path() {
                let [kernel, walk] =
                    [0, 1].map(|which| answer(METHODS[which], &trees[which].base, &path, flags, resolve));
                assert_eq!(walk, kernel, "{} with {flags:?} and {resolve:?}", path.display());
            }
            let [kernel, walk] = [0, 1].map(|which| listing(trees[which].outer.path()));
            assert_eq!(walk, kernel, "files made with {flags:?} and {resolve:?}");
        }
    }
}

#[test]
fn both_methods_give_the_same_answers() {
    assert_methods_agree();
}

#[test]
fn both_methods_give_the_same_answers_without_privilege() {
    if !rustix::process::geteuid().is_root() {
        sympozium_testkit::skip!("changing the user needs root");
    }
    // Credentials belong to the thread, and this one ends with the test.
    let unprivileged = std::thread::spawn(|| {
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(1000)).unwrap();
        assert_methods_agree();
    });
    unprivileged.join().unwrap();
}

#[test]
fn what_leaves_the_directory_is_refused() {
    let tree = tree();
    let base = &tree.base;
    let cases: [(&str, Resolve, Result<&str, Errno>); 23] = [
        ("../secret", Resolve::BENEATH, Err(Errno::XDEV)),
        ("d/../../secret", Resolve::BENEATH, Err(Errno::XDEV)),
        ("escape", Resolve::BENEATH, Err(Errno::XDEV)),
        ("d/out", Resolve::BENEATH, Err(Errno::XDEV)),
        ("/d/e/f", Resolve::BENEATH, Err(Errno::XDEV)),
        ("abs", Resolve::BENEATH, Err(Errno::XDEV)),
        ("absolute-escape", Resolve::BENEATH, Err(Errno::XDEV)),
        ("d/up/secret", Resolve::BENEATH, Ok("secret")),
        ("d/up/..", Resolve::BENEATH, Err(Errno::XDEV)),
        ("../secret", Resolve::IN_ROOT, Ok("secret")),
        ("d/out", Resolve::IN_ROOT, Ok("secret")),
        ("escape", Resolve::IN_ROOT, Ok("secret")),
        ("abs", Resolve::IN_ROOT, Ok("d/e/f")),
        ("d/abs", Resolve::IN_ROOT, Ok("secret")),
        ("/..", Resolve::IN_ROOT, Ok("")),
        ("absolute-escape", Resolve::IN_ROOT, Err(Errno::NOENT)),
        ("rel", Resolve::STRICT, Err(Errno::LOOP)),
        ("dirlink/e/f", Resolve::STRICT, Err(Errno::LOOP)),
        ("loop", Resolve::BENEATH, Err(Errno::LOOP)),
        ("c39", Resolve::BENEATH, Ok("d/e/f")),
        ("c40", Resolve::BENEATH, Err(Errno::LOOP)),
        ("rel/", Resolve::BENEATH, Err(Errno::NOTDIR)),
        ("d/e\0/f", Resolve::BENEATH, Err(Errno::INVAL)),
    ];
    for method in METHODS {
        for (path, resolve, expected) in &cases {
            let got = answer(method, base, Path::new(path), READ, *resolve);
            assert_eq!(got, expected.map(PathBuf::from), "{path} by {method:?}");
        }
    }
}

#[test]
fn a_dangling_link_creates_its_target_within_the_scope_only() {
    for method in METHODS {
        let tree = tree();
        let (outer, base) = (&tree.outer, &tree.base);
        symlink("../planted", base.join("plant")).unwrap();
        let create = |path: &str, flags| answer(method, base, Path::new(path), flags, Resolve::BENEATH);
        assert_eq!(create("dangling-deep", CREATE), Ok(PathBuf::from("d/new")));
        assert_eq!(create("dangling", CREATE | OFlags::EXCL), Err(Errno::EXIST));
        assert_eq!(create("plant", CREATE), Err(Errno::XDEV));
        assert!(!outer.path().join("planted").exists());
        assert_eq!(fs::metadata(base.join("d/new")).unwrap().mode() & 0o7077, 0o040);
    }
}

#[test]
fn magic_links_are_refused_and_plain_links_of_procfs_are_not() {
    let proc = Path::new("/proc");
    let paths = [
        "self/exe",
        "self/cwd",
        "self/root",
        "self/root/etc/passwd",
        "self/cwd/..",
        "self/fd/0",
        "self/ns/net",
        "self/ns/mnt",
        "thread-self/exe",
        "self/task/../exe",
        "1/exe",
        "1/root/etc",
        "self/status",
        "thread-self/status",
        "mounts",
        "net",
        "net/dev",
        "self/fd",
        "self/../self",
    ];
    for resolve in every_resolve() {
        for flags in [READ, OFlags::PATH, OFlags::PATH | OFlags::NOFOLLOW] {
            for path in paths {
                let path = Path::new(path);
                let [kernel, walk] = METHODS.map(|by| answer(by, proc, path, flags, resolve));
                assert_eq!(walk, kernel, "{} with {flags:?} and {resolve:?}", path.display());
            }
        }
    }
    for method in METHODS {
        for path in &paths[..10] {
            let got = answer(method, proc, Path::new(path), READ, Resolve::IN_ROOT);
            assert_eq!(got, Err(Errno::LOOP), "{path} by {method:?}");
        }
        answer(method, proc, Path::new("self/status"), READ, Resolve::BENEATH).unwrap();
    }
}

#[test]
fn fifos_devices_and_sockets_never_block() {
    let tree = tree();
    let base = &tree.base;
    for method in METHODS {
        let open = |base: &Path, path: &str, flags| answer(method, base, Path::new(path), flags, Resolve::BENEATH);
        assert_eq!(open(base, "fifo", READ), Ok(PathBuf::from("fifo")));
        assert_eq!(open(base, "fifo", READ | OFlags::WRONLY), Err(Errno::NXIO));
        assert_eq!(open(base, "socket", READ), Err(Errno::NXIO));
        assert_eq!(open(Path::new("/dev"), "null", READ), Ok(PathBuf::from("null")));
        assert_eq!(open(Path::new("/dev"), "null/", READ), Err(Errno::NOTDIR));
    }
}

#[test]
fn mount_points_are_crossed_only_when_asked() {
    for method in METHODS {
        let stay = Resolve { mounts: Mounts::Stay, ..Resolve::IN_ROOT };
        let open = |path: &str, resolve| answer(method, Path::new("/"), Path::new(path), OFlags::PATH, resolve);
        for path in ["proc", "proc/", "/proc/..", "proc/version"] {
            assert_eq!(open(path, stay), Err(Errno::XDEV), "{path} by {method:?}");
            open(path, Resolve::IN_ROOT).unwrap();
        }
    }
}

/// A bind mount has the device number of what it is mounted on, so only the mount id shows it.
#[test]
fn bind_mounts_are_mounts() {
    let tree = tree();
    let base = &tree.base;
    let copy = || {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        rustix::mount::open_tree(CWD, base, flags)
    };
    let (Ok(over), Ok(under)) = (copy(), copy()) else {
        sympozium_testkit::skip!("open_tree needs root");
    };
    // The pair is attached nowhere: no namespace sees it, and it is gone when closed.
    let from_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if rustix::mount::move_mount(&over, "", &under, "d", from_descriptor).is_err() {
        sympozium_testkit::skip!("mounts on detached mounts (Linux 6.15)");
    }
    for method in METHODS {
        for (path, flags) in [("d", READ), ("d/rel", READ), ("d/..", READ), ("d", CREATE)] {
            let mode = if flags.contains(OFlags::CREATE) { Mode::from(0o600) } else { Mode::empty() };
            let open = |resolve| {
                open_with(method, under.as_fd(), Path::new(path), flags, mode, resolve)
                    .map_err(|error| Errno::from_io_error(&error).unwrap())
            };
            let stay = Resolve { mounts: Mounts::Stay, ..Resolve::BENEATH };
            assert_eq!(open(stay).unwrap_err(), Errno::XDEV, "{path} by {method:?}");
            if flags == READ {
                open(Resolve::BENEATH).unwrap();
            }
        }
    }
}

#[test]
fn a_link_swapped_in_during_use_leads_nowhere() {
    let tree = tree();
    let (outer, base) = (&tree.outer, &tree.base);
    fs::create_dir(base.join("real")).unwrap();
    fs::write(base.join("real/secret"), "inner").unwrap();
    symlink("..", base.join("swap")).unwrap();
    symlink("../secret", base.join("swap-file")).unwrap();
    let outside = fs::metadata(outer.path().join("secret")).unwrap().ino();
    let deep = ["real/secret", "d/../real/secret", "real/../real/secret"];
    for (one, other, paths) in [("real", "swap", &deep[..]), ("secret", "swap-file", &["secret"])] {
        let mut unlucky = 0;
        while_swapping(&base.join(one), &base.join(other), || {
            let dir = directory(base);
            let by = |method, path| {
                let (mode, resolve) = (Mode::empty(), Resolve::BENEATH);
                match open_with(method, dir.as_fd(), path, READ, mode, resolve) {
                    Err(error) if method == Method::Openat2 && is(&error, Errno::AGAIN) => None,
                    answer => Some(answer),
                }
            };
            for path in paths.iter().map(Path::new) {
                for _ in 0..20_000 / paths.len() {
                    let best = open(dir.as_fd(), path, READ, Mode::empty(), Resolve::BENEATH);
                    let answers = METHODS.map(|method| by(method, path)).into_iter().flatten();
                    for answer in answers.chain([best]) {
                        match answer {
                            Ok(file) => {
                                assert_ne!(rustix::fs::fstat(&file).unwrap().st_ino, outside)
                            }
                            Err(error) => match Errno::from_io_error(&error) {
                                Some(Errno::XDEV) => {}
                                Some(Errno::LOOP) => unlucky += 1,
                                other => panic!("{other:?}"),
                            },
                        }
                    }
                }
            }
        });
        // The walk meets the link at every one of its tries only when the two threads run in step.
        assert!(unlucky < 200, "{unlucky} times");
    }
}

/// Every rename on the machine makes openat2 start again at each `..`; a long path never succeeds.
#[test]
fn renames_elsewhere_do_not_starve_a_lookup() {
    let (tree, elsewhere) = (tree(), scratch());
    let [one, other] = ["one", "other"].map(|name| elsewhere.path().join(name));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&other).unwrap();
    let path = PathBuf::from("d/../".repeat(800));
    while_swapping(&one, &other, || {
        for _ in 0..1_000 {
            let dir = directory(&tree.base);
            open(dir.as_fd(), &path, READ, Mode::empty(), Resolve::BENEATH).unwrap();
        }
    });
}

/// Exchanges two directory entries as fast as it can until `action` has ended, in whichever way.
pub(crate) fn while_swapping(one: &Path, other: &Path, action: impl FnOnce()) {
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    let begun = Barrier::new(2);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            begun.wait();
            while !done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let _done = Done(&done);
        begun.wait();
        action();
    });
}

#[test]
fn the_walk_holds_a_bounded_number_of_descriptors() {
    let base = tempfile::tempdir().unwrap();
    let deep = |levels: usize| PathBuf::from("a/".repeat(levels));
    fs::create_dir_all(base.path().join(deep(MAX_DEPTH + 2))).unwrap();
    let open = |levels| answer(Method::Walk, base.path(), &deep(levels), READ, Resolve::BENEATH).map(drop);
    assert_eq!(open(MAX_DEPTH + 1), Ok(()));
    assert_eq!(open(MAX_DEPTH + 2), Err(Errno::MFILE));
}

#[test]
fn links_planted_in_shared_directories_are_known() {
    let tree = tree();
    let base = &tree.base;
    let template = rustix::fs::stat(base).unwrap();
    let entry = |uid, mode| {
        let mut stat = template;
        (stat.st_uid, stat.st_mode) = (uid, mode);
        stat
    };
    let cases = [
        (7, 0o41777, 0, 1000, true),
        (1000, 0o41777, 0, 1000, false),
        (0, 0o41777, 0, 1000, false),
        (7, 0o40777, 0, 1000, false),
        (7, 0o41775, 0, 1000, false),
    ];
    for (link, mode, owner, follower, planted) in cases {
        assert_eq!(is_planted(&entry(link, 0o120_777), &entry(owner, mode), follower), planted);
    }
}

#[test]
fn descriptors_are_closed_on_exec() {
    let tree = tree();
    let base = &tree.base;
    for method in METHODS {
        for path in ["d/e/f", ".", "d"] {
            let dir = directory(base);
            let path = Path::new(path);
            let file = open_with(method, dir.as_fd(), path, READ, Mode::empty(), Resolve::BENEATH).unwrap();
            assert_eq!(rustix::io::fcntl_getfd(&file).unwrap(), rustix::io::FdFlags::CLOEXEC);
        }
    }
}
