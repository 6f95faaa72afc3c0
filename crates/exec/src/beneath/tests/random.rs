//! Random trees and paths: both methods give the same result.

use proptest::prelude::*;

use super::*;

/// One entry of a random tree; names repeat often enough that paths hit something.
#[derive(Debug, Clone)]
enum Entry {
    Directory(String),
    File(String),
    Link(String, String),
}

fn letter() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["a", "b", "c"]).prop_map(String::from)
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![8 => letter(), 1 => Just("n".repeat(256))]
}

fn component() -> impl Strategy<Value = String> {
    prop_oneof![6 => name(), 2 => Just("..".to_owned()), 1 => Just(".".to_owned()), 1 => Just(String::new())]
}

fn path() -> impl Strategy<Value = String> {
    let parts = proptest::collection::vec(component(), 0..7);
    (prop_oneof![4 => Just(""), 1 => Just("/")], parts, prop_oneof![4 => Just(""), 1 => Just("/")])
        .prop_map(|(start, parts, end)| format!("{start}{}{end}", parts.join("/")))
}

fn entry() -> impl Strategy<Value = Entry> {
    let place = || proptest::collection::vec(letter(), 1..4).prop_map(|parts| parts.join("/"));
    prop_oneof![
        2 => place().prop_map(Entry::Directory),
        1 => place().prop_map(Entry::File),
        3 => (place(), path()).prop_map(|(place, target)| Entry::Link(place, target)),
    ]
}

/// Entries that do not fit (a file where a directory is needed, an empty target) are left out.
fn plant(entries: &[Entry]) -> (TempDir, PathBuf) {
    let outer = scratch();
    let base = outer.path().join("base");
    fs::create_dir(&base).unwrap();
    fs::write(outer.path().join("a"), "outside").unwrap();
    for entry in entries {
        let (Entry::Directory(place) | Entry::File(place) | Entry::Link(place, _)) = entry;
        // Only real directories: a link planted before must not lead the test itself outside.
        let mut directory = base.clone();
        let reached = Path::new(place).parent().unwrap().iter().all(|part| {
            directory.push(part);
            let _ = fs::create_dir(&directory);
            directory.symlink_metadata().unwrap().is_dir()
        });
        if reached {
            let place = base.join(place);
            let _ = match entry {
                Entry::Directory(_) => fs::create_dir(&place),
                Entry::File(_) => fs::File::create_new(&place).map(drop),
                Entry::Link(_, target) => symlink(target, &place),
            };
        }
    }
    (outer, base)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn both_methods_agree_on_random_trees(
        entries in proptest::collection::vec(entry(), 0..14),
        paths in proptest::collection::vec(path(), 1..24),
        flags in proptest::sample::select(every_flags()),
        resolve in proptest::sample::select(every_resolve()),
    ) {
        let trees = METHODS.map(|_| plant(&entries));
        for path in paths {
            let [kernel, walk] = [0, 1]
                .map(|which| answer(METHODS[which], &trees[which].1, Path::new(&path), flags, resolve));
            prop_assert_eq!(&walk, &kernel, "{:?}", path);
            if let Ok(real) = walk {
                prop_assert!(real.is_relative(), "{:?} led to {:?}", path, real);
            }
        }
        prop_assert_eq!(listing(trees[0].0.path()), listing(trees[1].0.path()));
    }
}
