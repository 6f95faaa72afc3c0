use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn store(directory: &Path) -> SecretStore {
    let state = StateDirectory::open_at(directory.join("state")).unwrap();
    SecretStore::open(&state, "default").unwrap()
}

fn value(text: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(text.as_bytes().to_vec())
}

fn secret(all: &[(&str, &str)]) -> Secret {
    let all = all.iter().map(|(key, text)| ((*key).to_owned(), value(text)));
    Secret(all.collect())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[test]
fn secrets_are_set_read_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    assert_eq!(store.names().unwrap(), Vec::<String>::new());
    assert_eq!(store.get("github").unwrap(), None);
    assert!(!store.remove("github", None).unwrap());
    store.set("github", "token", value("t1")).unwrap();
    store.set("github", "user", value("\u{0}\u{ff}")).unwrap();
    store.set("github", "token", value("t2")).unwrap();
    store.set("a.b", "x", value("y")).unwrap();
    let expected = secret(&[("token", "t2"), ("user", "\u{0}\u{ff}")]);
    assert_eq!(store.get("github").unwrap(), Some(expected));
    assert_eq!(store.names().unwrap(), ["a.b", "github"]);
    assert!(store.remove("github", Some("user")).unwrap());
    assert!(!store.remove("github", Some("user")).unwrap());
    assert_eq!(store.get("github").unwrap(), Some(secret(&[("token", "t2")])));
    // Without its last key the Secret is removed.
    assert!(store.remove("github", Some("token")).unwrap());
    assert_eq!(store.names().unwrap(), ["a.b"]);
    assert!(store.remove("a.b", None).unwrap());
    assert_eq!(store.names().unwrap(), Vec::<String>::new());
}

#[test]
fn files_and_directories_are_private_under_any_umask() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    store.set("github", "token", value("t")).unwrap();
    let root = directory.path().join("state/secrets");
    assert_eq!(mode(&root), 0o700);
    assert_eq!(mode(&root.join("default")), 0o700);
    assert_eq!(mode(&root.join("default/github.json")), 0o600);
    let left = fs::read_dir(root.join("default")).unwrap().count();
    assert_eq!(left, 1);
}

#[test]
fn files_that_are_accessible_to_other_users_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    store.set("github", "token", value("t")).unwrap();
    let path = directory.path().join("state/secrets/default/github.json");
    let refused = |expected: &str| {
        for result in [store.get("github").map(drop), store.set("github", "other", value("x"))] {
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    };
    for mode in [0o644, 0o640, 0o620, 0o604, 0o602] {
        set_mode(&path, mode);
        refused("is accessible to other users");
    }
    set_mode(&path, 0o600);
    let elsewhere = directory.path().join("elsewhere");
    fs::hard_link(&path, &elsewhere).unwrap();
    refused("has more than one hard link");
    fs::remove_file(&path).unwrap();
    symlink(&elsewhere, &path).unwrap();
    refused("is a symbolic link");
    fs::remove_file(&path).unwrap();
    symlink(directory.path().join("nowhere"), &path).unwrap();
    refused("is a symbolic link");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    set_mode(&path, 0o700);
    refused("is not a regular file");
    fs::remove_dir(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    refused("is not a regular file");
    // It can be removed, and the target of the link stays.
    assert!(store.remove("github", None).unwrap());
    assert!(elsewhere.exists());
}

#[test]
fn directories_that_are_accessible_to_other_users_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDirectory::open_at(directory.path().join("state")).unwrap();
    let root = directory.path().join("state/secrets");
    store(directory.path()).set("a", "b", value("c")).unwrap();
    let refused = |expected: &str| {
        let error = SecretStore::open(&state, "default").unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(expected), "{error}");
    };
    for path in [root.clone(), root.join("default")] {
        for (mode, expected) in
            [(0o770, "other users"), (0o702, "other users"), (0o750, "is accessible to other users")]
        {
            set_mode(&path, mode);
            refused(expected);
        }
        set_mode(&path, 0o700);
        let moved = directory.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        refused("is not a directory");
        fs::remove_file(&path).unwrap();
        fs::rename(&moved, &path).unwrap();
    }
    assert!(SecretStore::open(&state, "default").is_ok());
    for namespace in ["", "..", "a/b", "A"] {
        assert!(SecretStore::open(&state, namespace).is_err(), "{namespace}");
    }
}

#[test]
fn errors_about_invalid_files_do_not_quote_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    store.set("github", "token", value("t")).unwrap();
    let path = directory.path().join("state/secrets/default/github.json");
    for (text, expected) in [
        ("hunter2", "is not a valid file of this store"),
        (r#"{"format":1,"data":{"k":"hunter2!"}}"#, "is not a valid file of this store"),
        (r#"{"format":1,"data":{"k":5}}"#, "is not a valid file of this store"),
        (r#"{"format":1,"data":{},"hunter2":1}"#, "is not a valid file of this store"),
        (r#"{"format":2,"data":{}}"#, "has the format of another release"),
        (r#"{"format":1,"data":{"../k":""}}"#, "is not a valid key"),
    ] {
        fs::write(&path, text).unwrap();
        let error = format!("{:#}", store.get("github").unwrap_err());
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let long = vec![b' '; usize::try_from(MAX_FILE_BYTES).unwrap() + 1];
    fs::write(&path, long).unwrap();
    let error = format!("{:#}", store.get("github").unwrap_err());
    assert!(error.contains("more than"), "{error}");
}

#[test]
fn a_secret_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let most = "x".repeat(MAX_BYTES - 1);
    store.set("large", "k", value(&most)).unwrap();
    assert_eq!(store.get("large").unwrap(), Some(secret(&[("k", &most)])));
    let error = store.set("large", "l", value("")).unwrap_err();
    assert_eq!(error.to_string(), "a Secret has at most 1048576 bytes");
    assert_eq!(store.get("large").unwrap(), Some(secret(&[("k", &most)])));
    let many = |count: usize| {
        let keys = (0..count).map(|number| (format!("k{number}"), value("")));
        Secret(keys.collect()).check()
    };
    assert!(many(MAX_KEYS).is_ok());
    assert_eq!(many(MAX_KEYS + 1).unwrap_err().to_string(), "a Secret has at most 256 keys");
    let longest = "a".repeat(MAX_NAME_BYTES);
    store.set(&longest, "k", value("v")).unwrap();
    assert!(store.names().unwrap().contains(&longest));
    assert!(store.set(&format!("{longest}a"), "k", value("v")).is_err());
}

#[test]
fn keys_are_validated_like_in_kubernetes() {
    for key in ["token", "a.b", ".netrc", "TLS_KEY-1", &"k".repeat(253)] {
        assert!(is_valid_key(key), "{key}");
    }
    for key in ["", ".", "..", "..a", "a/b", "a=b", "a b", "ä", &"k".repeat(254)] {
        assert!(!is_valid_key(key), "{key:?}");
    }
    for name in ["", "A", "a/b", "..", "a.json/", "-a"] {
        assert!(!is_valid_name(name), "{name:?}");
    }
}

#[test]
fn concurrent_writes_do_not_overwrite_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..16 {
                    let key = format!("k{writer}-{number}");
                    store.set("shared", &key, value("v")).unwrap();
                }
            });
        }
    });
    assert_eq!(store.get("shared").unwrap().unwrap().0.len(), 64);
}

#[test]
fn values_are_not_in_debug_output() {
    let shown = format!("{:?}", secret(&[("token", "hunter2")]));
    assert_eq!(shown, r#"{"token"}"#);
}
