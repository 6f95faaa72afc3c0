use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn declared(variables: &[(&str, &str)]) -> Environment {
    Environment::from_declared(variables.iter().map(|(name, value)| (name.into(), value.into())))
}

fn requested(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The variables of a command, without those that every command has.
fn seen(environment: &Environment, request: &[(&str, &str)]) -> Vec<String> {
    let standard = declared(&[]).for_request(&[]).unwrap();
    let entries = environment.for_request(&requested(request)).unwrap();
    entries.into_iter().filter(|entry| !standard.contains(entry)).map(|entry| entry.into_string().unwrap()).collect()
}

#[test]
fn a_bare_environment_has_a_path_and_places_below_tmp() {
    let entries = declared(&[]).for_request(&[]).unwrap();
    let expected = [
        c"HOME=/tmp/home",
        c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        c"TMPDIR=/tmp",
        c"XDG_CACHE_HOME=/tmp/home/.cache",
        c"XDG_CONFIG_HOME=/tmp/home/.config",
    ];
    assert_eq!(entries, expected.map(CString::from));
}

#[test]
fn what_is_ours_is_left_out() {
    let environment = declared(&[
        ("SYMPOZIUM_SKILL_PACK", "x"),
        ("sympozium_key", "x"),
        ("SYMPOZIUM_", "x"),
        ("SKILL_TOKEN", "x"),
        ("Skill_Token_File", "x"),
        ("SKILL_TOKENS", "x"),
        ("", "x"),
        ("a=b", "x"),
        ("a\0", "x"),
        ("NUL", "a\0b"),
        ("SKILL_TOKE", "kept"),
        ("SYMPOZIUM", "kept"),
        ("GH_TOKEN", "kept"),
        ("LANG", "first"),
        ("LANG", "second"),
    ]);
    let expected = ["GH_TOKEN=kept", "LANG=first", "SKILL_TOKE=kept", "SYMPOZIUM=kept"];
    assert_eq!(seen(&environment, &[]), expected);
}

#[test]
fn further_names_are_left_out_exactly_as_written() {
    let environment = declared(&[("KEY", "x"), ("key", "kept"), ("KEY2", "kept"), ("PATH", "/x")]);
    let names = ["KEY", "HOME", "PATH", "ABSENT"].map(OsStr::new);
    let environment = environment.without(names);
    assert_eq!(seen(&environment, &[]), ["KEY2=kept", "key=kept"]);
    assert_eq!(environment.get("HOME"), Some(OsStr::new("/tmp/home")));
    assert_eq!(environment.get("PATH"), Some(OsStr::new(DEFAULT_PATH)));
}

#[test]
fn places_stay_only_below_tmp_and_a_path_only_when_it_names_something() {
    for (name, value, kept) in [
        ("HOME", "/tmp/me", true),
        ("HOME", "/tmp", true),
        ("HOME", "/root", false),
        ("HOME", "/tmpfoo", false),
        ("HOME", "/tmp/../root", false),
        ("HOME", "tmp/me", false),
        ("HOME", "", false),
        ("TMPDIR", "/var/tmp", false),
        ("TMPDIR", "/tmp/x", true),
        ("XDG_CACHE_HOME", "/root/.cache", false),
        ("XDG_CONFIG_HOME", "/etc", false),
        ("PATH", "/opt/bin", true),
        ("PATH", "", false),
    ] {
        let environment = declared(&[(name, value)]);
        let standard = declared(&[]);
        let expected = if kept { Some(OsStr::new(value)) } else { standard.get(name) };
        assert_eq!(environment.get(name), expected, "{name}={value}");
    }
}

#[test]
fn a_request_adds_skill_variables() {
    let environment = declared(&[("SKILL_MODE", "declared"), ("LANG", "C")]);
    let request = [("SKILL_z", "="), ("SKILL_MODE", "asked"), ("SKILL_1", ""), ("SKILL_A", "a\nb")];
    let expected = ["LANG=C", "SKILL_1=", "SKILL_A=a\nb", "SKILL_MODE=asked", "SKILL_z=="];
    assert_eq!(seen(&environment, &request), expected);
}

#[test]
fn other_names_are_refused() {
    let environment = declared(&[]);
    let refusal = |name: &str| environment.for_request(&requested(&[(name, "x")])).unwrap_err();
    for name in [
        "",
        "LD_PRELOAD",
        "PATH",
        "HOME",
        "BASH_ENV",
        "SKILL",
        "SKILL_",
        "skill_x",
        "Skill_X",
        " SKILL_X",
        "SKILL_X ",
        "SKILL_X\n",
        "SKILL_X\nLD_PRELOAD",
        "SKILL_X=Y",
        "SKILL_=",
        "SKILL_X\0",
        "SKILL_\u{e9}",
        "SKILL_X-Y",
        "SKILL_X.Y",
        "BASH_FUNC_x%%",
        "\u{ff33}KILL_X",
    ] {
        assert_eq!(refusal(name), EnvironmentError::Name { name: name.to_owned() });
    }
    for name in [
        "SKILL_TOKEN",
        "SKILL_TOKEN_FILE",
        "SKILL_TOKENX",
        "SKILL_token",
        "SKILL_ToKeN_x",
        "skill_token",
        "SYMPOZIUM_X",
        "sympozium_x",
    ] {
        assert_eq!(refusal(name), EnvironmentError::Reserved { name: name.to_owned() });
    }
}

#[test]
fn every_bound_has_two_sides() {
    let environment = declared(&[]);
    let ask = |request: &[(String, String)]| environment.for_request(request).map(|entries| entries.len());
    let standard = ask(&[]).unwrap();
    let many = |count: usize| -> Vec<_> { (0..count).map(|n| (format!("SKILL_{n}"), String::new())).collect() };
    assert_eq!(ask(&many(256)), Ok(standard + 256));
    assert_eq!(ask(&many(257)), Err(EnvironmentError::Count { count: 257 }));

    let named = |length: usize| vec![(format!("SKILL_{}", "x".repeat(length - 6)), String::new())];
    assert_eq!(ask(&named(256)), Ok(standard + 1));
    assert_eq!(ask(&named(257)), Err(EnvironmentError::NameLength { length: 257 }));

    let sized = |name: &str, length: usize| (name.to_owned(), "x".repeat(length - name.len() - 1));
    assert_eq!(ask(&[sized("SKILL_X", 131_071)]), Ok(standard + 1));
    let too_long = EnvironmentError::EntryLength { name: "SKILL_X".to_owned(), length: 131_072 };
    assert_eq!(ask(&[sized("SKILL_X", 131_072)]), Err(too_long));

    let declared = declared(&[("LONG", &"x".repeat(131_067))]).for_request(&[]);
    let too_long = EnvironmentError::EntryLength { name: "LONG".to_owned(), length: 131_072 };
    assert_eq!(declared, Err(too_long));

    let used: usize = environment.for_request(&[]).unwrap().iter().map(|entry| entry.count_bytes() + 1).sum();
    let mut full: Vec<_> = (0..7).map(|n| sized(&format!("SKILL_{n}"), 131_071)).collect();
    let left = 1024 * 1024 - used - 7 * 131_072;
    full.push(sized("SKILL_X", left - 1));
    assert_eq!(ask(&full), Ok(standard + 8));
    full[7].1.push('x');
    assert_eq!(ask(&full), Err(EnvironmentError::TotalLength { length: 1024 * 1024 + 1 }));
}

#[test]
fn duplicates_and_nul_are_refused_and_values_stay_secret() {
    let environment = declared(&[("GH_TOKEN", "hunter2")]);
    let twice = requested(&[("SKILL_X", "hunter2"), ("SKILL_Y", ""), ("SKILL_X", "hunter2")]);
    let error = environment.for_request(&twice).unwrap_err();
    assert_eq!(error.to_string(), "environment variable \"SKILL_X\" is given twice");
    let error = environment.for_request(&requested(&[("SKILL_X", "hunter2\0")])).unwrap_err();
    let expected = "the value of environment variable \"SKILL_X\" contains a nul byte";
    assert_eq!(error.to_string(), expected);
    assert!(!format!("{error:?}{environment:?}").contains("hunter2"));
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z_=\\x00\\n0-9 -]{0,12}",
        "(?i)(skill_|skill_token|sympozium_)[A-Za-z0-9_]{0,6}",
        "SKILL_[A-Za-z0-9_]{1,6}",
        any::<String>(),
    ]
}

#[test]
fn another_place_for_files_takes_all_of_them() {
    let environment = declared(&[("HOME", "/tmp/mine"), ("XDG_CACHE_HOME", "/runs/1/tmp/c"), ("A", "/tmp")]);
    let environment = environment.with_scratch(Path::new("/runs/1/tmp"));
    let entries = environment.for_request(&[]).unwrap();
    let entries: Vec<&str> = entries.iter().map(|entry| entry.to_str().unwrap()).collect();
    let path = format!("PATH={DEFAULT_PATH}");
    assert_eq!(
        entries,
        [
            "A=/tmp",
            "HOME=/runs/1/tmp/home",
            &path,
            "TMPDIR=/runs/1/tmp",
            "XDG_CACHE_HOME=/runs/1/tmp/home/.cache",
            "XDG_CONFIG_HOME=/runs/1/tmp/home/.config",
        ]
    );
    assert_eq!(environment.home(), Path::new("/runs/1/tmp/home"));
    let without = environment.without([OsStr::new("HOME")]);
    assert_eq!(without.home(), Path::new("/runs/1/tmp/home"));
}

proptest! {
    #[test]
    fn no_forbidden_name_is_ever_emitted(
        declaration in proptest::collection::vec((text(), text()), 0..12),
        request in proptest::collection::vec((text(), text()), 0..4),
    ) {
        let pairs = declaration.iter().map(|(name, value)| (name.into(), value.into()));
        let environment = Environment::from_declared(pairs);
        let plain = environment.for_request(&[]).unwrap();
        let all = environment.for_request(&request);
        for entry in plain.iter().chain(all.iter().flatten()) {
            let name = entry.to_str().unwrap().split('=').next().unwrap().to_ascii_uppercase();
            prop_assert!(!name.is_empty());
            prop_assert!(!name.starts_with("SYMPOZIUM_") && !name.starts_with("SKILL_TOKEN"), "{}", name);
        }
        if let Ok(all) = all {
            let before: BTreeSet<_> = plain.into_iter().collect();
            for entry in all.into_iter().filter(|entry| !before.contains(entry)) {
                prop_assert!(entry.to_bytes().starts_with(b"SKILL_"), "{:?}", entry);
            }
        }
    }

    #[test]
    fn what_is_accepted_arrives_as_it_was(
        request in proptest::collection::btree_map("SKILL_[A-SU-Za-su-z0-9_]{1,9}", "[^\\x00]{0,40}", 0..12),
    ) {
        let environment = declared(&[]);
        let standard = environment.for_request(&[]).unwrap();
        let pairs: Vec<_> = request.clone().into_iter().collect();
        let entries = environment.for_request(&pairs).unwrap();
        let arrived: Vec<(String, String)> = entries
            .iter()
            .filter(|entry| !standard.contains(entry))
            .map(|entry| entry.to_str().unwrap().split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        prop_assert_eq!(arrived, pairs);
        let mut backwards: Vec<_> = request.into_iter().collect();
        backwards.reverse();
        prop_assert_eq!(environment.for_request(&backwards).unwrap(), entries);
    }
}
