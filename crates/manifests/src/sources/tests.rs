//! Directories of every kind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;
use crate::limits::MAX_DIRECTORY_DEPTH;

/// Names relative to `root`, with the messages of problems.
fn found(root: &Path, inputs: &[PathBuf]) -> Vec<(String, String)> {
    let prefix = format!("{}/", root.display());
    let shown = |source: Source| {
        let name = source.name.replace(&prefix, "");
        let problem = source.location.err().map(|problem| problem.message);
        (name, problem.unwrap_or_default())
    };
    find_sources(inputs).into_iter().map(shown).collect()
}

fn read_source(reader: &mut Reader, source: Source) -> Result<String, Problem> {
    match source.location? {
        Location::File(path) => reader.read_file(&path),
        other => panic!("{other:?} is not a file"),
    }
}

fn good(names: &[&str]) -> Vec<(String, String)> {
    let names = names.iter().map(|name| ((*name).to_owned(), String::new()));
    names.collect()
}

fn write(path: PathBuf) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "a: 1").unwrap();
}

#[test]
fn manifests_are_found_in_order_and_the_rest_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for name in ["b.yaml", "a/z.yml", "a/y.json", "README.md", "c.yaml.bak", ".git/x.yaml", ".x.yaml"] {
        write(root.join(name));
    }
    assert_eq!(found(root, &[root.to_owned()]), good(&["a/y.json", "a/z.yml", "b.yaml"]));
}

#[test]
fn a_directory_with_a_skill_is_one_source_and_is_read_once() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for name in ["b/SKILL.md", "b/assets/x.yaml", "a.yaml", "c/skill.md", "d.md"] {
        write(root.join(name));
    }
    let inputs = [root.join("b/SKILL.md"), root.to_owned(), root.join("b"), root.join("a.yaml")];
    assert_eq!(found(root, &inputs), good(&["b/SKILL.md", "a.yaml"]));
    assert_eq!(found(root, &[root.join("b")]), good(&["b/SKILL.md"]));
}

#[test]
fn a_file_that_is_named_repeatedly_is_read_once() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    write(root.join("a.yaml"));
    let inputs = [root.join("a.yaml"), root.to_owned(), root.join("./a.yaml"), "-".into(), "-".into()];
    assert_eq!(found(root, &inputs), good(&["a.yaml", "<stdin>"]));
}

#[test]
fn a_named_file_needs_no_extension() {
    let root = tempfile::tempdir().unwrap();
    write(root.path().join("manifest"));
    assert_eq!(found(root.path(), &[root.path().join("manifest")]), good(&["manifest"]));
}

#[test]
fn links_inside_are_followed_and_links_out_refused() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path().join("secret.yaml"));
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    write(root.join("real.txt"));
    symlink("real.txt", root.join("inside.yaml")).unwrap();
    symlink(outside.path().join("secret.yaml"), root.join("outside.yaml")).unwrap();
    symlink(outside.path(), root.join("directory")).unwrap();
    symlink("nowhere", root.join("dangling.yaml")).unwrap();
    symlink(".", root.join("loop")).unwrap();
    symlink(".", root.join("loop.yaml")).unwrap();
    let row = |name: &str, problem: &str| (name.to_owned(), problem.to_owned());
    assert_eq!(
        found(root, &[root.to_owned()]),
        [
            row("dangling.yaml", "no such file or directory"),
            row("inside.yaml", ""),
            row("loop.yaml", "not a regular file; it is not read"),
            row("outside.yaml", "a symbolic link to a file outside of the directory; it is not read"),
        ]
    );
}

#[test]
fn a_directory_without_manifests_is_a_mistake() {
    let root = tempfile::tempdir().unwrap();
    let [(_, problem)] = found(root.path(), &[root.path().to_owned()]).try_into().unwrap();
    assert_eq!(problem, "the directory contains no manifest");
}

#[test]
fn directories_are_walked_to_the_bound_and_no_further() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let deep = |levels: usize| (0..levels).fold(root.to_owned(), |path, _| path.join("d"));
    write(deep(MAX_DIRECTORY_DEPTH - 1).join("in.yaml"));
    write(deep(MAX_DIRECTORY_DEPTH).join("out.yaml"));
    let found = found(root, &[root.to_owned()]);
    let [(too_deep, problem), (within, none)] = found.try_into().unwrap();
    assert_eq!(problem, "the directory is deeper than 32 levels and is not read");
    assert!(too_deep.ends_with("/d"), "{too_deep}");
    assert!(within.ends_with("/in.yaml"), "{within}");
    assert_eq!(none, "");
}

#[test]
fn a_large_file_is_refused_by_its_size_alone() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("large.yaml");
    // Sparse: reading it would give 100 MB of NUL characters.
    let file = fs::File::create(&path).unwrap();
    file.set_len(100_000_000).unwrap();
    let source = find_sources(&[path]).pop().unwrap();
    let problem = read_source(&mut Reader::default(), source).unwrap_err();
    assert_eq!(problem.message, "the file is larger than 8 MiB and is not read");
}

#[test]
fn a_stream_without_end_is_cut_at_the_bound() {
    let source = find_sources(&[PathBuf::from("/dev/zero")]).pop().unwrap();
    let problem = read_source(&mut Reader::default(), source).unwrap_err();
    assert_eq!(problem.message, "the file is larger than 8 MiB and is not read");
}

#[test]
fn the_bound_on_a_file_and_on_all_files_holds_to_the_byte() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.yaml");
    let read = |reader: &mut Reader, size: u64| {
        fs::write(&path, vec![b' '; usize::try_from(size).unwrap()]).unwrap();
        let source = find_sources(std::slice::from_ref(&path)).pop().unwrap();
        read_source(reader, source).map(|text| text.len() as u64)
    };
    let mut reader = Reader::default();
    for _ in 0..7 {
        assert_eq!(read(&mut reader, MAX_FILE_BYTES), Ok(MAX_FILE_BYTES));
    }
    assert!(read(&mut reader, MAX_FILE_BYTES + 1).is_err());
    assert_eq!(read(&mut reader, MAX_FILE_BYTES - 1), Ok(MAX_FILE_BYTES - 1));
    assert_eq!(
        read(&mut reader, 2).unwrap_err().message,
        "the files have more than 64 MiB in total; this one is not read"
    );
    assert_eq!(read(&mut reader, 1), Ok(1));
}

/// Without opening it, which would block until there is a writer.
#[test]
fn a_pipe_with_a_name_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let pipe = root.join("pipe.yaml");
    let made = sympozium_testkit::command("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let link = root.join("link.yaml");
    symlink(&pipe, &link).unwrap();
    let refused = "not a regular file; it is not read".to_owned();
    assert_eq!(
        found(root, &[pipe, link]),
        [("pipe.yaml".to_owned(), refused.clone()), ("link.yaml".to_owned(), refused)]
    );
}
