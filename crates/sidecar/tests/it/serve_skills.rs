//! Invalid names, and files that are not skills.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use sympozium_testkit::{as_user, probe, skip, wait_until};

use crate::serve_server::{Server, Setup};

#[test]
fn nothing_but_a_name_reaches_the_file_system() {
    let server = Server::start();
    for name in [
        "..%2F..%2Fbin%2Fsh",
        "..%2fbin%2fsh",
        "%2Fbin%2Fsh",
        "%2e%2e",
        "%2e",
        "..",
        ".",
        ".hidden",
        "-c",
        "true%00",
        "%00",
        "true%0a",
        "true%20",
        "%c0%af",
        "%c0%ae%c0%ae%c0%afsh",
        "%ff",
        "%e2%80%ae",
        "%",
        "%zz",
        "tru%C3%A9",
        "true/",
        "true/x",
        "../skills/true",
        "",
        "true%2F",
        "%252e%252e",
        "there-is-none",
        &"x".repeat(129),
    ] {
        let answer = server.call(name, "{}");
        assert_eq!(answer.status, 404, "{name}: {answer:?}");
    }
    // A name that is valid after decoding is accepted.
    assert_eq!(server.call("tru%65", "{}").status, 200);
    assert_eq!(server.call("true?x=y", "{}").status, 200);
}

#[test]
fn files_that_must_not_run_are_refused_by_the_rule_and_audited() {
    if !as_user::is_root() {
        skip!("skills of another owner need root");
    }
    let setup = Setup::new();
    let skills = setup.skills();
    let path = |name: &str| skills.join(name);
    let made = |name: &str, kind, device| {
        mknodat(CWD, path(name), kind, Mode::from_raw_mode(0o777), device).expect("we are root");
    };
    made("fifo", FileType::Fifo, 0);
    made("device", FileType::CharacterDevice, makedev(1, 3));
    fs::create_dir(path("directory")).expect("it can be made");
    fs::write(path("text"), "no program").expect("it can be written");
    fs::set_permissions(path("text"), Permissions::from_mode(0o755)).expect("it is ours");
    fs::write(path("data"), "#!/bin/sh\n").expect("it can be written");
    fs::set_permissions(path("data"), Permissions::from_mode(0o644)).expect("it is ours");
    for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755), ("open", 0o777)] {
        setup.skill_from(name, probe::path());
        fs::set_permissions(path(name), Permissions::from_mode(mode)).expect("it is ours");
    }
    setup.skill_from("theirs", probe::path());
    chown(path("theirs"), Some(as_user::ORDINARY), None).expect("we are root");
    // A link into a directory where commands could put anything.
    let writable = setup.directory.path().join("writable");
    fs::create_dir(&writable).expect("it can be made");
    chown(&writable, Some(as_user::ORDINARY), None).expect("we are root");
    fs::copy(probe::path(), writable.join("target")).expect("it can be copied");
    symlink(writable.join("target"), path("link")).expect("it can be made");
    symlink("no-such-file", path("dangling")).expect("it can be made");
    let server = setup.start();

    let changed = "it, or something on the way to it, can be changed by the user who runs skills";
    for (name, rule) in [
        ("fifo", "it is not a regular file"),
        ("device", "it is not a regular file"),
        ("directory", "it is not a regular file"),
        ("text", "it is neither an ELF file nor a #! script"),
        ("data", "it is not executable"),
        ("setuid", "it has a setuid or setgid bit"),
        ("setgid", "it has a setuid or setgid bit"),
        ("open", "it is world-writable"),
        ("theirs", changed),
        ("link", changed),
    ] {
        for body in ["{}", r#"{"timeout": 60}"#] {
            let answer = server.call(name, body);
            assert_eq!(answer.status, 403, "{name}: {answer:?}");
            assert_eq!(answer.error(), format!("the skill must not be run: {rule}"), "{name}");
            // Paths are for the log.
            assert!(!answer.text().contains("/run/"), "{answer:?}");
        }
        let is_audited = |line: String| {
            line.contains("\"status\":403")
                && line.contains(&format!("\"skill\":\"{name}\""))
                && line.contains("\"cause\":")
        };
        // The line may come after the answer.
        let audited = wait_until(Duration::from_secs(60), || server.log().into_iter().any(is_audited));
        assert!(audited, "{name} was not audited");
    }
    assert_eq!(server.call("dangling", "{}").status, 404);
    let listed = server.get("/skills");
    assert_eq!(listed.text(), r#"{"skills":[{"name":"args"},{"name":"probe"},{"name":"sleep"},{"name":"true"}]}"#);
}
