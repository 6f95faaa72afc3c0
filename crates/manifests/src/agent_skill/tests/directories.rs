//! Untrusted directories.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sympozium_testkit::command;

use super::super::directory::{self, Allowance, RawSkill};
use super::super::limits::{MAX_DEPTH, MAX_DIRECTORIES, MAX_FILE_BYTES, MAX_FILES, MAX_SKILL_BYTES, MAX_SKILLS};
use super::short;
use crate::problem::Problem;

const TEXT: &str = "---\nname: skill\ndescription: d\n---\nx\n";

/// A skill's directory, with nothing but the text.
fn skill() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("SKILL.md"), TEXT).unwrap();
    directory
}

fn allowance() -> Allowance {
    Allowance { bytes: 1 << 30, entries: 100_000 }
}

fn read(path: &Path) -> Result<RawSkill, Problem> {
    directory::read(&directory::open(path).unwrap(), None, &mut allowance())
}

fn paths(skill: &RawSkill) -> Vec<&str> {
    skill.files.iter().map(|file| file.path.as_str()).collect()
}

fn messages(skill: &RawSkill) -> Vec<&str> {
    let kept = skill.problems.items.iter();
    kept.map(|problem| problem.message.as_str()).collect()
}

fn write(path: PathBuf, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn all_files_of_a_skill_are_read() {
    let root = skill();
    let root = root.path();
    write(root.join("scripts/run"), b"#!/bin/sh\n");
    fs::set_permissions(root.join("scripts/run"), fs::Permissions::from_mode(0o755)).unwrap();
    write(root.join("references/deep/er.md"), b"# A");
    write(root.join("assets/logo.png"), b"\x89PNG\0");
    write(root.join("LICENSE"), b"free");
    write(root.join("references/SKILL.md"), b"another's");
    let skill = read(root).unwrap();
    assert_eq!(messages(&skill), [""; 0]);
    assert_eq!(skill.text, TEXT.as_bytes());
    let found: Vec<(&str, &[u8], bool)> =
        skill.files.iter().map(|file| (file.path.as_str(), file.bytes.as_slice(), file.has_execute_bit)).collect();
    let expected: Vec<(&str, &[u8], bool)> = vec![
        ("LICENSE", b"free", false),
        ("assets/logo.png", b"\x89PNG\0", false),
        ("references/SKILL.md", b"another's", false),
        ("references/deep/er.md", b"# A", false),
        ("scripts/run", b"#!/bin/sh\n", true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn other_files_are_omitted_with_warnings() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path().join("secret"), b"secret");
    let root = skill();
    let root = root.path();
    write(root.join("good.md"), b"good");
    write(root.join(".git/config"), b"hidden");
    write(root.join(".env"), b"hidden");
    write(root.join("skill.md"), b"in another case");
    write(root.join("two words.md"), b"x");
    write(root.join("-rf"), b"x");
    write(root.join(OsStr::from_bytes(b"no\xfftext")), b"x");
    write(root.join("bad dir/file"), b"x");
    symlink("/etc/passwd", root.join("passwd")).unwrap();
    symlink(outside.path(), root.join("outside")).unwrap();
    symlink("good.md", root.join("inside")).unwrap();
    symlink(".", root.join("loop")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    assert!(command("mkfifo").arg(root.join("pipe")).status().unwrap().success());
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    // Only root can create a device: for other users there is one entry less.
    let device = command("mknod").arg(root.join("zero")).args(["c", "1", "5"]).output();
    let has_device = device.is_ok_and(|output| output.status.success());
    let skill = read(root).unwrap();
    assert_eq!(paths(&skill), ["good.md"]);
    let path = "is not a valid path of a skill's file; it is omitted";
    let mut expected = vec![
        format!("`-rf` {path}"),
        "`.env` is hidden; it is omitted".to_owned(),
        "`.git` is hidden; it is omitted".to_owned(),
        format!("`bad dir` {path}"),
        "`dangling` is a symbolic link; it is omitted".to_owned(),
        "`inside` is a symbolic link; it is omitted".to_owned(),
        "`loop` is a symbolic link; it is omitted".to_owned(),
        format!("`no\u{fffd}text` {path}"),
        "`outside` is a symbolic link; it is omitted".to_owned(),
        "`passwd` is a symbolic link; it is omitted".to_owned(),
        "`pipe` is not a regular file; it is omitted".to_owned(),
        format!("`skill.md` {path}"),
        "`socket` is not a regular file; it is omitted".to_owned(),
        format!("`two words.md` {path}"),
    ];
    if has_device {
        expected.push("`zero` is not a regular file; it is omitted".to_owned());
    }
    assert_eq!(messages(&skill), expected);
    assert!(skill.problems.items.iter().all(|problem| short(problem) == "1:1 warning skill-file"));
}

#[test]
fn the_text_itself_must_be_a_file() {
    type Make = fn(&Path);
    let cases: &[(Make, &str)] = &[
        (|_| {}, "no such file or directory"),
        (|path| symlink("/etc/passwd", path).unwrap(), "a symbolic link; it is not followed"),
        (|path| fs::create_dir(path).unwrap(), "not a regular file; it is not read"),
        (|path| assert!(command("mkfifo").arg(path).status().unwrap().success()), "not a regular file; it is not read"),
        (
            // Sparse: reading it would give 100 MB of NUL characters.
            |path| fs::File::create(path).unwrap().set_len(100_000_000).unwrap(),
            "the file is larger than 256 KiB and is not read",
        ),
    ];
    for (make, expected) in cases {
        let root = tempfile::tempdir().unwrap();
        make(&root.path().join("SKILL.md"));
        let problem = read(root.path()).unwrap_err();
        assert_eq!(problem.message, *expected);
    }
}

#[test]
fn files_are_bounded_in_size_to_the_byte() {
    let root = skill();
    let root = root.path();
    write(root.join("fits"), &vec![b'a'; MAX_FILE_BYTES]);
    write(root.join("larger"), &vec![b'a'; MAX_FILE_BYTES + 1]);
    fs::File::create(root.join("vast")).unwrap().set_len(1 << 40).unwrap();
    let skill = read(root).unwrap();
    assert_eq!(paths(&skill), ["fits"]);
    assert_eq!(
        messages(&skill),
        ["`larger` is larger than 256 KiB; it is omitted", "`vast` is larger than 256 KiB; it is omitted",]
    );
}

#[test]
fn all_files_together_are_bounded() {
    let root = skill();
    let root = root.path();
    for number in 0..=MAX_SKILL_BYTES / MAX_FILE_BYTES {
        write(root.join(format!("file{number}")), &vec![b'a'; MAX_FILE_BYTES]);
    }
    let skill = read(root).unwrap();
    let problems: Vec<String> = skill.problems.items.iter().map(short).collect();
    assert_eq!(problems, ["1:1 error too-large"]);
    assert_eq!(messages(&skill), ["the files have more than 900 KiB in total"]);
}

#[test]
fn files_are_bounded_in_number() {
    let root = skill();
    let root = root.path();
    let fill = |range: std::ops::Range<usize>| {
        for number in range {
            write(root.join(format!("file{number}")), b"");
        }
    };
    fill(0..MAX_FILES);
    let skill = read(root).unwrap();
    assert_eq!((skill.files.len(), messages(&skill)), (MAX_FILES, Vec::new()));
    fill(MAX_FILES..MAX_FILES + 1);
    assert_eq!(messages(&read(root).unwrap()), ["the skill has more than 64 files in addition to `SKILL.md`"]);
    fill(MAX_FILES + 1..10_000);
    assert_eq!(messages(&read(root).unwrap()), ["the directory has more than 1000 entries and is not read"]);
}

#[test]
fn directories_are_bounded_in_depth() {
    let root = skill();
    let root = root.path();
    let deep = |levels: usize| (0..levels).fold(root.to_owned(), |path, _| path.join("d"));
    write(deep(MAX_DEPTH).join("in"), b"x");
    let skill = read(root).unwrap();
    assert_eq!((paths(&skill), messages(&skill)), (vec!["d/d/d/d/d/d/in"], Vec::new()));
    // Names of 200 characters, so that no path as a whole can be opened.
    let mut path = root.to_owned();
    for _ in 0..12 {
        path.push("n".repeat(200));
        fs::create_dir(&path).unwrap();
    }
    write(deep(MAX_DEPTH + 1).join("out"), b"x");
    let skill = read(root).unwrap();
    assert_eq!(messages(&skill), ["`d/d/d/d/d/d/d` is deeper than 6 directories"]);
}

#[test]
fn limits_apply_to_all_skills_in_total() {
    let root = skill();
    write(root.path().join("file"), &[b'a'; 100]);
    let opened = directory::open(root.path()).unwrap();
    let mut left = Allowance { bytes: 2 * (TEXT.len() as u64 + 100) - 1, entries: 100 };
    let first = directory::read(&opened, None, &mut left).unwrap();
    assert_eq!((paths(&first), left.entries), (vec!["file"], 98));
    let second = directory::read(&opened, None, &mut left).unwrap();
    assert_eq!(messages(&second), ["`file`: the skills are too large in total; the file is not read"]);
}

/// The text, a file and a directory are swapped for links to a secret, as fast as possible, while they are read.
#[test]
fn whatever_is_swapped_meanwhile_nothing_outside_is_read() {
    /// The number of swaps that is enough, and the number of reads after which the test ends in any case.
    const SWAPS: usize = 30_000;
    const READINGS: usize = 200_000;
    let outside = tempfile::tempdir().unwrap();
    write(outside.path().join("file"), b"secret");
    write(outside.path().join("SKILL.md"), b"secret");
    let root = skill();
    let root = root.path();
    write(root.join("file"), b"good");
    write(root.join("dir/file"), b"good");
    let spare = tempfile::tempdir_in(root.parent().unwrap()).unwrap();
    let spare = spare.path();
    symlink(outside.path().join("file"), spare.join("file")).unwrap();
    symlink(outside.path(), spare.join("dir")).unwrap();
    symlink(outside.path().join("SKILL.md"), spare.join("SKILL.md")).unwrap();
    let (swaps, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (here, there) = (fs::File::open(root).unwrap(), fs::File::open(spare).unwrap());
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            for name in ["file", "dir", "SKILL.md"].iter().cycle() {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                rustix::fs::renameat_with(&here, *name, &there, *name, exchange).unwrap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let found = (0..READINGS)
            .take_while(|_| swaps.load(Ordering::Relaxed) < SWAPS)
            .filter_map(|_| read(root).ok())
            .find(|skill| skill.text != TEXT.as_bytes() || skill.files.iter().any(|file| file.bytes != b"good"));
        is_done.store(true, Ordering::Relaxed);
        assert!(found.is_none(), "{found:?}");
    });
}

#[test]
fn skills_are_found_below_a_directory_and_nothing_within_them() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for name in ["b", "a/nested", "b/inner", ".hidden", "wrong-case"] {
        let file = if name == "wrong-case" { "skill.md" } else { "SKILL.md" };
        write(root.join(name).join(file), TEXT.as_bytes());
    }
    write(root.join("README.md"), b"x");
    symlink("b", root.join("link")).unwrap();
    let deep = (0..=MAX_DEPTH).fold(root.to_owned(), |path, _| path.join("d"));
    write(deep.join("SKILL.md"), TEXT.as_bytes());
    let search = |path: &Path| directory::search(directory::open(path).unwrap());
    let found = search(root).unwrap();
    let paths: Vec<&Path> = found.iter().map(|found| found.path.as_path()).collect();
    assert_eq!(paths, [Path::new("a/nested"), Path::new("b")]);
    let found = search(&root.join("b")).unwrap();
    let paths: Vec<&Path> = found.iter().map(|found| found.path.as_path()).collect();
    assert_eq!(paths, [Path::new("")]);
}

#[test]
fn the_search_for_skills_is_bounded() {
    let search = |path: &Path| directory::search(directory::open(path).unwrap());
    let root = tempfile::tempdir().unwrap();
    for number in 0..MAX_DIRECTORIES {
        fs::create_dir(root.path().join(number.to_string())).unwrap();
    }
    let problem = search(root.path()).unwrap_err();
    assert_eq!(problem.message, "the directory has more than 2000 directories; it is not read");
    let root = tempfile::tempdir().unwrap();
    for number in 0..=MAX_SKILLS {
        write(root.path().join(format!("{number}/SKILL.md")), TEXT.as_bytes());
    }
    let problem = search(root.path()).unwrap_err();
    assert_eq!(problem.message, "the directory has more than 64 skills, the maximum of a pack; it is not read");
}
