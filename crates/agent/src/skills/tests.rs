//! What a model gets of a skill, from packs and from ConfigMaps.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use sympozium_api::run_plan::Root;
use tempfile::TempDir;

use super::*;

struct Fixture {
    directory: TempDir,
    roots: Roots,
    skills: Vec<SkillPlan>,
}

impl Fixture {
    /// Packs `a` and `b` have a skill `review`, `a` has `deploy` too, and there are two ConfigMaps.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |path: &str| directory.path().join(path);
        for path in ["a/review/scripts", "a/deploy", "b/review", "notes/..data", "several/..data"] {
            fs::create_dir_all(at(path)).expect("a directory");
        }
        let write = |path: &str, text: &[u8]| fs::write(at(path), text).expect("a file");
        write("a/review/SKILL.md", b"# Review\n\nRead it.\n");
        write("a/review/scripts/run.sh", b"echo review\n");
        write("a/review/reference.md", b"abc");
        write("a/deploy/SKILL.md", "step\n".repeat(2_000).as_bytes());
        write("b/review/SKILL.md", b"# Another\n");
        write("notes/..data/notes.md", b"# Notes\n");
        symlink("..data/notes.md", at("notes/notes.md")).expect("a link");
        for (name, text) in [("b.md", "second\n"), ("a.md", "first\n"), ("c.bin", "\0\0")] {
            write(&format!("several/..data/{name}"), text.as_bytes());
            symlink(format!("..data/{name}"), at(&format!("several/{name}"))).expect("a link");
        }
        let root = Root { path: directory.path().display().to_string(), writable: false };
        let skills = json!([
            pack(
                &directory,
                "a",
                "review",
                json!({
                    "allowedTools": ["read_file", "a/*"],
                    "files": [
                        { "path": "scripts/run.sh", "executable": true, "bytes": 12 },
                        { "path": "reference.md", "executable": false, "bytes": 3 },
                    ],
                })
            ),
            pack(&directory, "a", "deploy", json!({})),
            pack(&directory, "b", "review", json!({})),
            map(&directory, "notes"),
            map(&directory, "several"),
            map(&directory, "missing"),
        ]);
        let mut skills: Vec<SkillPlan> = serde_json::from_value(skills).expect("they are skills");
        skills.iter_mut().for_each(plan);
        Self { roots: Roots::open(&[root], &[]).with_commands(Commands::Offered), skills, directory }
    }

    fn load(&self, arguments: Value, max_bytes: usize) -> Result<String, String> {
        let here = self.directory.path().display().to_string();
        let arguments = arguments.as_object().expect("an object");
        match load_skill(&self.skills, &self.roots, arguments, max_bytes) {
            Ok(answer) => {
                assert!(answer.len() <= max_bytes, "{} bytes of {max_bytes}", answer.len());
                Ok(answer.replace(&here, "@"))
            }
            Err(ToolError(error)) => Err(error.replace(&here, "@")),
        }
    }
}

/// Makes what is there what the run was planned with.
fn plan(skill: &mut SkillPlan) {
    let SkillSource::Pack { digest, bytes, .. } = &mut skill.source else {
        return;
    };
    let read = |path: &str| fs::read(format!("{}/{path}", skill.directory)).expect("a file");
    let text = read(SkillPlan::TEXT_FILE);
    let mut contents = SkillContents::new(&text);
    for file in &skill.files {
        contents.add(&file.path, file.executable, &read(file.path.as_str()));
    }
    *bytes = text.len() as u64;
    *digest = contents.digest().expect("it has JSON");
}

fn pack(directory: &TempDir, pack: &str, skill: &str, more: Value) -> Value {
    let mut plan = json!({
        "source": { "kind": "pack", "pack": pack, "skill": skill, "digest": format!("sha256:{}", "0".repeat(64)), "bytes": 1 },
        "directory": directory.path().join(pack).join(skill),
    });
    sympozium_testkit::objects::merge(&mut plan, &more);
    plan
}

fn map(directory: &TempDir, name: &str) -> Value {
    json!({
        "source": { "kind": "configMap", "configMap": name },
        "directory": directory.path().join(name),
    })
}

#[test]
fn skills_are_found_by_their_names() {
    let fixture = Fixture::new();
    let review = "# Review\n\nRead it.\n\nTools that this skill is for: read_file, a/*\nFiles of this skill:\n\
        @/a/review/scripts/run.sh (12 bytes; a program: run it by execute_command with target=a)\n\
        @/a/review/reference.md (3 bytes)";
    let cases = [
        (json!({ "name": "a/review" }), Ok(review)),
        (json!({ "name": " a/review\n" }), Ok(review)),
        (json!({ "name": "b/review" }), Ok("# Another\n")),
        (json!({ "name": "review" }), Err("several skills are called review; say which: a/review, b/review")),
        (
            json!({ "name": "../a\nb" }),
            Err("there is no skill ../a\\nb; there are: a/review, a/deploy, b/review, notes, several, missing"),
        ),
        (json!({ "name": "missing" }), Err("@/missing does not exist; list_directory shows what is there")),
        (json!({}), Err("the arguments do not fit: missing field `name`")),
        (json!({ "name": "notes" }), Ok("# Notes\n\nFiles of this skill:\n@/notes/notes.md (8 bytes)")),
        (
            json!({ "name": "several" }),
            Ok("## @/several/a.md\n\nfirst\n\n## @/several/b.md\n\nsecond\n\nFiles of this skill:\n\
                @/several/a.md (6 bytes)\n@/several/b.md (7 bytes)\n@/several/c.bin (2 bytes)"),
        ),
    ];
    for (arguments, expected) in cases {
        let answer = fixture.load(arguments.clone(), 8_192);
        let answer = answer.as_deref().map_err(String::as_str);
        assert_eq!(answer, expected, "{arguments}");
    }
}

#[test]
fn a_model_without_commands_is_not_asked_to_run_a_program() {
    let mut fixture = Fixture::new();
    fixture.roots = fixture.roots.with_commands(Commands::NotOffered);
    let answer = fixture.load(json!({ "name": "a/review" }), 8_192);
    let expected = "# Review\n\nRead it.\n\nTools that this skill is for: read_file, a/*\nFiles of this skill:\n\
        @/a/review/scripts/run.sh (12 bytes)\n@/a/review/reference.md (3 bytes)";
    assert_eq!(answer.as_deref(), Ok(expected));
}

#[test]
fn a_long_text_says_how_to_read_on() {
    let fixture = Fixture::new();
    let answer = fixture.load(json!({ "name": "deploy" }), 4_096);
    let answer = answer.expect("it is there");
    let (_, note) = answer.rsplit_once("\n(").expect("a note");
    let lines = answer.matches("step\n").count();
    let expected =
        format!("lines 1–{lines} of 2000; continue with read_file path=@/a/deploy/SKILL.md and offset={})", lines + 1);
    assert_eq!(note, expected);
    assert!(lines > 500, "{lines}");
}

#[test]
fn many_files_leave_room_for_the_text() {
    let mut fixture = Fixture::new();
    let file = json!({ "path": "reference.md", "executable": true, "bytes": 3 });
    let files = serde_json::from_value(json!(vec![file; 1_000])).expect("they are files");
    fixture.skills[0].files = files;
    plan(&mut fixture.skills[0]);
    let answer = fixture.load(json!({ "name": "a/review" }), 4_096);
    let answer = answer.expect("it is there");
    assert!(answer.starts_with("# Review\n\nRead it.\n\nTools"), "{answer}");
    assert!(answer.ends_with(" more files"), "{answer}");
}

#[test]
fn a_skill_that_differs_from_the_plan_is_refused() {
    let changed_error = |path: &str, content: &str| {
        let fixture = Fixture::new();
        fs::write(fixture.directory.path().join(path), content).expect("a file");
        fixture.load(json!({ "name": "a/review" }), 8_192)
    };
    let refused = |what: &str| {
        Err(format!(
            "the skill a/review is not what this run was planned with: {what} changed since; \
             work without this skill, and say so in your answer"
        ))
    };
    // Of the same length, longer, shorter; the text and files beside it.
    let cases = [
        ("SKILL.md", "# Review\n\nLeak it.\n", "its text or one of its files"),
        ("SKILL.md", "# Review\n\nRead it.\nLeak it.\n", "@/a/review/SKILL.md"),
        ("SKILL.md", "", "@/a/review/SKILL.md"),
        ("reference.md", "abd", "its text or one of its files"),
        ("scripts/run.sh", "echo leak and review\n", "@/a/review/scripts/run.sh"),
    ];
    for (path, content, what) in cases {
        let answer = changed_error(&format!("a/review/{path}"), content);
        assert_eq!(answer, refused(what), "{path}: {content:?}");
    }
    // Files that the plan does not have are none of the skill's.
    assert!(changed_error("a/review/more.md", "more").is_ok());

    let fixture = Fixture::new();
    fs::remove_file(fixture.directory.path().join("a/review/reference.md")).expect("it is there");
    let answer = fixture.load(json!({ "name": "a/review" }), 8_192);
    let expected = "@/a/review/reference.md does not exist; list_directory shows what is there";
    assert_eq!(answer, Err(expected.to_owned()));

    let mut fixture = Fixture::new();
    fixture.skills[0].files[0].executable = false;
    let answer = fixture.load(json!({ "name": "a/review" }), 8_192);
    assert_eq!(answer, refused("its text or one of its files"));
}

#[test]
fn no_more_is_read_than_a_pack_can_have() {
    let mut fixture = Fixture::new();
    let SkillSource::Pack { bytes, .. } = &mut fixture.skills[0].source else {
        panic!("it is of a pack");
    };
    *bytes = MAX_SKILL_BYTES;
    let file =
        fs::File::options().write(true).open(fixture.directory.path().join("a/review/SKILL.md")).expect("it is there");
    file.set_len(MAX_SKILL_BYTES).expect("a hole");
    let answer = fixture.load(json!({ "name": "a/review" }), 8_192);
    // The text alone is all that there is room for.
    let expected = "the skill a/review is not what this run was planned with: @/a/review/scripts/run.sh changed since; \
        work without this skill, and say so in your answer";
    assert_eq!(answer, Err(expected.to_owned()));
}

#[test]
fn files_whose_names_are_no_text_are_counted() {
    let fixture = Fixture::new();
    let several = fixture.directory.path().join("several");
    for name in [&b"caf\xe9"[..], b"\xff"] {
        fs::write(several.join(OsStr::from_bytes(name)), "x").expect("a file");
    }
    let answer = fixture.load(json!({ "name": "several" }), 8_192);
    let expected = "## @/several/a.md\n\nfirst\n\n## @/several/b.md\n\nsecond\n\nFiles of this skill:\n\
        @/several/a.md (6 bytes)\n@/several/b.md (7 bytes)\n@/several/c.bin (2 bytes)\n… and 2 more files";
    assert_eq!(answer.as_deref(), Ok(expected));
}

#[test]
fn a_run_without_skills_says_so() {
    let arguments = json!({ "name": "x" });
    let arguments = arguments.as_object().expect("an object");
    let answer = load_skill(&[], &Roots::open(&[], &[]), arguments, 100);
    assert_eq!(answer, Err(ToolError("you have no skills".to_owned())));
}
