//! Skills below a directory like `/tmp`: world-writable and sticky.

use super::*;

/// `/shared/skills/tool`, with the modes and owners of a case.
struct Case {
    what: &'static str,
    /// Of `/shared`.
    mode: u32,
    /// Of `/shared` and of `/shared/skills`; `None` is the user who runs the tests.
    owners: [Option<Owner>; 2],
    /// The directory in which the skill is looked up.
    skills: &'static str,
    expected: Result<(), &'static str>,
}

#[derive(Clone, Copy)]
enum Owner {
    Runner,
    Stranger,
}

fn cases() -> Vec<Case> {
    let plain = |what, mode, expected| Case { what, mode, owners: [None, None], skills: "/shared/skills", expected };
    let owned = |what, owners, expected| Case { owners, ..plain(what, 0o1777, expected) };
    let at = |what, skills, expected| Case { skills, ..plain(what, 0o1777, expected) };
    let runner = Some(Owner::Runner);
    vec![
        plain("sticky: only its owner can swap the directory", 0o1777, Ok(())),
        plain("not writable", 0o755, Ok(())),
        plain("without the sticky bit", 0o777, Err("/shared")),
        owned("the runner's own", [runner, None], Err("/shared")),
        owned("an entry of the runner", [None, runner], Err("/shared")),
        owned("an entry of another user", [None, Some(Owner::Stranger)], Err("/shared")),
        at("a link in it", "/shared/link", Err("/shared")),
        at("the program in it", "/shared", Err("/shared")),
        at("back into it", "/shared/skills/..", Err("/shared")),
        at("through it and back", "/shared/skills/../skills", Ok(())),
        at("a link to it from elsewhere", "/opt/to-skills", Ok(())),
        at("a link back into it", "/opt/to-shared", Err("/shared")),
    ]
}

#[test]
fn what_is_in_a_sticky_directory_stays_there() {
    let is_root = rustix::process::geteuid().is_root();
    for content in [ELF, SCRIPT] {
        for case in cases() {
            let needs_root = case.owners.iter().any(Option::is_some);
            if needs_root && !is_root {
                continue;
            }
            let view = View::new();
            for directory in ["/shared", "/shared/skills"] {
                fs::create_dir(view.real(directory)).unwrap();
                view.set_mode(directory, 0o755);
            }
            view.put("/shared/skills/tool", content, 0o755);
            view.put("/shared/tool", content, 0o755);
            view.link("/shared/link", "skills");
            view.link("/opt/to-skills", "../shared/skills");
            view.link("/opt/to-shared", "../shared/skills/..");
            let runner = view.stranger();
            for (path, owner) in ["/shared", "/shared/skills"].iter().zip(case.owners) {
                let uid = match owner {
                    None => continue,
                    Some(Owner::Runner) => runner.uid,
                    Some(Owner::Stranger) => runner.uid + 1,
                };
                chown(view.real(path), Some(uid), None).unwrap();
            }
            view.set_mode("/shared", case.mode);
            let name = SkillName::parse("tool").unwrap();
            let skills = Path::new(case.skills);
            let found = describe(find_skill(view.root.as_fd(), skills, &name, &runner));
            let program = format!("{}/tool", case.skills);
            match case.expected {
                Ok(()) => assert!(found.is_ok(), "{}: {found:?}", case.what),
                Err(what) => assert_eq!(found, writable(&program, what), "{}", case.what),
            }
        }
    }
    if !is_root {
        sympozium_testkit::skip!("directories of others need root");
    }
}
