//! What a command starts with, and what is refused before anything starts.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;
use sympozium_exec::environment::Environment;
use sympozium_exec::layout::{Bind, BindAccess};
use sympozium_exec::lookup::{LookupError, SkillName};
use sympozium_exec::request::RequestError;
use sympozium_exec::{Executor, Layer, Profile, Request, RunError};
use sympozium_testkit::probe::Findings;
use sympozium_testkit::{as_user, write_program};

use crate::sandbox::{config, executor, host, probe_request, profiles, run};

fn printed(executor: &Executor, profile: Profile, what: &str) -> Value {
    let outcome = run(executor, &probe_request(profile, ["do", "print", what]));
    serde_json::from_slice(&outcome.stdout.bytes).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

#[test]
fn only_the_three_streams_are_open() {
    // Somebody else's descriptor, open in the executor and not marked close-on-exec.
    let (leaky, _other) = std::io::pipe().expect("a pipe");
    rustix::io::fcntl_setfd(&leaky, rustix::io::FdFlags::empty()).expect("a flag");
    for profile in profiles() {
        let executor = executor(profile);
        let fds = printed(&executor, profile, "fds");
        assert_eq!(fds, serde_json::json!({"fds": [0, 1, 2]}), "{profile}");
    }
}

#[test]
fn signals_are_as_a_fresh_program_expects() {
    for profile in profiles() {
        let executor = executor(profile);
        let signals = printed(&executor, profile, "signals");
        let none = serde_json::json!({"signals": {"blocked": [], "dispositions": {}}});
        assert_eq!(signals, none, "{profile}");
    }
}

#[test]
fn the_environment_is_the_declared_one_and_nothing_else() {
    for profile in profiles() {
        let mut config = config(profile);
        config.environment = Environment::from_declared([
            ("GREETING".into(), "hello".into()),
            ("SKILL_TOKEN".into(), "secret".into()),
            ("SYMPOZIUM_RUN".into(), "secret".into()),
        ]);
        let executor = Executor::new(config).expect("an executor");
        let mut request = probe_request(profile, ["do", "print", "env"]);
        request.environment = vec![("SKILL_FOO".to_owned(), "bar".to_owned())];
        let outcome = run(&executor, &request);
        let text = outcome.stdout.text();
        assert!(text.contains("GREETING") && text.contains("SKILL_FOO"), "{text}");
        assert!(text.contains("/tmp"), "{text}");
        assert!(!text.contains("secret"), "{text}");
        // Nothing of this process's own environment.
        assert!(!text.contains("CARGO"), "{text}");

        for name in ["LD_PRELOAD", "PATH", "skill_foo", "SKILL_", "SKILL_TOKEN_FILE"] {
            request.environment = vec![(name.to_owned(), "x".to_owned())];
            let refused = executor.run(&request, None);
            assert!(matches!(refused, Err(RunError::Environment(_))), "{name}");
        }
    }
}

#[test]
fn arguments_are_passed_as_they_are() {
    for profile in profiles() {
        let executor = executor(profile);
        let words = ["$(id)", "; true", "-n", "a b", "", "*", "\n"];
        let mut request = probe_request(profile, ["do", "print", "args"]);
        if let sympozium_exec::Invocation::Argv(argv) = &mut request.invocation {
            argv.extend(words.map(Into::into));
        }
        let outcome = run(&executor, &request);
        for word in words {
            let quoted = Value::from(word).to_string();
            assert!(outcome.stdout.text().contains(&quoted), "{quoted}: {outcome:?}");
        }
    }
}

#[test]
fn a_file_larger_than_allowed_is_not_written() {
    for profile in profiles() {
        let executor = executor(profile);
        let words = ["attempt", "make-sparse-file=/tmp:1G"];
        let mut request = probe_request(profile, words);
        let findings = |request: &Request| Findings::parse(&run(&executor, request).stdout.bytes);
        findings(&request).assert_possible([words[1]]);
        request.file_bytes = Some(1 << 20);
        findings(&request).assert_refused([words[1]]);
    }
}

#[test]
fn bad_requests_start_nothing() {
    let executor = executor(Profile::Container);
    let refused = |request: &Request| executor.run(request, None).expect_err("a refusal");
    assert!(matches!(refused(&Request::argv(["a\0b"])), RunError::Request(RequestError::Nul { index: 0 })));
    assert!(matches!(
        refused(&Request::argv(["no-such-program-anywhere"])),
        RunError::Lookup(LookupError::NotFound { .. })
    ));
    let mut elsewhere = Request::argv(["true"]);
    for path in ["/no/such/directory", "/etc/passwd"] {
        elsewhere.working_directory = Some(path.into());
        assert!(matches!(refused(&elsewhere), RunError::WorkingDirectory { .. }), "{path}");
    }
}

#[test]
fn a_working_directory_stays_below_its_root() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("inside")).expect("a directory");
    for (link, to) in [("out", "/etc"), ("up", ".."), ("in", "inside")] {
        std::os::unix::fs::symlink(to, root.path().join(link)).expect("a link");
    }
    let mut config = config(Profile::Container);
    config.working_roots = vec![root.path().to_owned()];
    config.working_directory = root.path().to_owned();
    let executor = Executor::new(config).expect("an executor");
    let mut request = Request::argv(["pwd"]);
    for (path, allowed) in [
        ("inside", true),
        ("in", true),
        (".", true),
        ("inside/..", true),
        ("out", false),
        ("up", false),
        ("..", false),
        ("inside/../..", false),
        ("/etc", false),
        ("/", false),
    ] {
        request.working_directory = Some(PathBuf::from(path));
        let answer = executor.run(&request, None);
        match answer {
            Ok(outcome) => {
                assert!(allowed, "{path}");
                assert!(outcome.stdout.text().starts_with(root.path().to_str().expect("UTF-8")));
            }
            Err(RunError::WorkingDirectory { .. }) => assert!(!allowed, "{path}"),
            Err(other) => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn a_working_directory_that_the_command_may_not_enter_is_an_error() {
    if !as_user::is_root() {
        sympozium_testkit::skip!("a directory of another user needs root");
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o700)).expect("a mode");
    let config = config(Profile::HostRoot).with_bind(Bind {
        source: directory.path().to_owned(),
        target: "/closed".into(),
        access: BindAccess::ReadOnly,
    });
    let executor = Executor::new(config).expect("an executor");
    let mut request = Request::argv(["true"]);
    request.working_directory = Some("/closed".into());
    assert!(matches!(executor.run(&request, None), Err(RunError::NotStarted(_))));
}

#[test]
fn a_bind_follows_no_link_that_was_put_in_its_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("elsewhere/below")).expect("a directory");
    std::os::unix::fs::symlink(at("elsewhere"), at("link")).expect("a link");
    for access in [BindAccess::ReadOnly, BindAccess::OwnedReadOnly, BindAccess::ReadWrite] {
        for (source, works) in [("elsewhere/below", true), ("link", false), ("link/below", false)] {
            let config = config(host()).with_bind(Bind { source: at(source), target: "/data".into(), access });
            let made = Executor::new(config).map(drop);
            assert_eq!(made.is_ok(), works, "{source} {access:?}: {made:?}");
        }
    }
}

#[test]
fn scripts_run_by_their_path_and_programs_by_descriptor() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("a mode");
    let script = directory.path().join("hello");
    write_program(&script, "#!/bin/sh\necho \"$0 $1\"\n").expect("a script");
    let mut config = config(host()).with_bind(Bind {
        source: directory.path().to_owned(),
        target: "/skills".into(),
        access: BindAccess::ReadOnly,
    });
    config.search_path = vec!["/skills".into()];
    let executor = Executor::new(config).expect("an executor");
    let outcome = run(&executor, &Request::argv(["hello", "you"]));
    assert_eq!(outcome.stdout.text(), "/skills/hello you\n");
}

#[test]
fn a_script_that_its_own_user_could_change_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("hello");
    std::fs::write(&script, "#!/bin/sh\necho hello\n").expect("a script");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("a mode");
    let executor = executor(Profile::Container);
    // The tests' own user owns it, and commands run as that user.
    let refused = executor.run(&Request::argv([script.into_os_string()]), None);
    assert!(matches!(refused, Err(RunError::Lookup(_))), "{refused:?}");
}

#[test]
fn without_idmapped_mounts_commands_run_as_the_directorys_owner() {
    use std::os::unix::fs::MetadataExt;
    if !as_user::is_root() {
        sympozium_testkit::skip!("idmapped mounts need root");
    }
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::chown(directory.path(), Some(4242), Some(4242)).expect("chown");
    let config = config(Profile::HostRoot)
        .with_bind(Bind {
            source: directory.path().to_owned(),
            target: "/workspace".into(),
            access: BindAccess::ReadWrite,
        })
        .with_working_directory("/workspace")
        .without_layers([Layer::IdmappedMounts]);
    let executor = Executor::new(config).expect("an executor");
    let outcome = run(&executor, &Request::shell("echo data > file && id -u"));
    assert_eq!(outcome.stdout.text(), "1000\n", "{outcome:?}");
    let metadata = directory.path().join("file").metadata().expect("metadata");
    assert_eq!(metadata.uid(), 4242);
}

#[test]
fn files_in_a_writable_directory_keep_their_owner_on_disk() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().expect("a directory");
    let owner = if as_user::is_root() {
        std::os::unix::fs::chown(directory.path(), Some(4242), Some(4243)).expect("chown");
        (4242, 4243)
    } else {
        let metadata = directory.path().metadata().expect("metadata");
        (metadata.uid(), metadata.gid())
    };
    let config = config(host())
        .with_bind(Bind {
            source: directory.path().to_owned(),
            target: "/workspace".into(),
            access: BindAccess::ReadWrite,
        })
        .with_working_directory("/workspace");
    let executor = Executor::new(config).expect("an executor");
    let outcome = run(&executor, &Request::shell("echo data > file && stat -c '%u %g' . file && id -u"));
    assert_eq!(outcome.stdout.text(), "1000 1000\n1000 1000\n1000\n", "{outcome:?}");
    let metadata = directory.path().join("file").metadata().expect("metadata");
    assert_eq!((metadata.uid(), metadata.gid()), owner);
}

#[test]
fn skills_are_found_by_name_in_their_directory_only() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("a mode");
    let put = |name: &str, mode| {
        let file = directory.path().join(name);
        write_program(&file, "#!/bin/sh\necho \"$0 $*\"\n").expect("a script");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("a mode");
    };
    put("hello", 0o755);
    put("not-executable", 0o644);
    put("world-writable", 0o757);
    put("no skill name", 0o755);
    let mut config = config(host()).with_bind(Bind {
        source: directory.path().to_owned(),
        target: "/skills".into(),
        access: BindAccess::ReadOnly,
    });
    config.skills = "/skills".into();
    let executor = Executor::new(config).expect("an executor");
    let skill = |name| Request::skill(SkillName::parse(name).expect("a name"), ["you", "$0"]);
    let outcome = run(&executor, &skill("hello"));
    assert_eq!(outcome.stdout.text(), "/skills/hello you $0\n");
    // A program of the search path is no skill.
    for name in ["true", "not-executable", "world-writable"] {
        let refused = executor.run(&skill(name), None);
        assert!(matches!(refused, Err(RunError::Lookup(_))), "{refused:?}");
    }
    let listed: Vec<_> = (executor.skills().expect("a list").into_iter())
        .map(|(name, found)| (name.as_str().to_owned(), found.is_ok()))
        .collect();
    let expected = [("hello", true), ("not-executable", false), ("world-writable", false)];
    assert_eq!(listed, expected.map(|(name, found)| (name.to_owned(), found)));
}
