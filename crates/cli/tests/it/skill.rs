//! `sympozium skill`, and skills as input of other commands.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::{Value, json};
use sympozium_testkit::command;
use sympozium_testkit::static_build::workspace_root;

use crate::hostile::bounded;
use crate::{fixtures, format_output, program, stderr, stdout, sympozium, sympozium_reading};

fn import(arguments: &[&str]) -> Value {
    let mut all = vec!["skill", "import", "-o", "json"];
    all.extend(arguments);
    let output = sympozium(&all);
    assert_eq!(output.status.code(), Some(0), "{}", format_output(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code and output, with the version replaced.
fn imported(path: &str) -> String {
    let image = concat!("skill-sidecar:", env!("CARGO_PKG_VERSION"));
    format_output(&sympozium(&["skill", "import", path])).replace(image, "skill-sidecar:VERSION")
}

#[test]
fn a_valid_skill_has_no_warnings() {
    insta::assert_snapshot!("import", imported("skills/pdf-tools"));
}

#[test]
fn mistakes_of_a_skill_are_corrected_with_warnings() {
    insta::assert_snapshot!("import-careless", imported("skills/careless"));
}

#[test]
fn skills_below_a_directory_become_one_pack() {
    insta::assert_snapshot!("import-several", imported("skills/team"));
    let named = import(&["skills/team", "--name", "project", "--namespace", "dev"]);
    assert_eq!(named["metadata"]["name"], "project");
    assert_eq!(named["metadata"]["namespace"], "dev");
}

#[test]
fn nothing_is_printed_for_an_invalid_skill() {
    for (path, code, message) in [
        ("skills/broken", 1, "skills/broken/SKILL.md:2:1: error[description]: the skill has no description\n"),
        ("skills", 1, "skills/broken/SKILL.md:2:1: error[description]: the skill has no description\n"),
        ("skills/reserved", 3, "skills/reserved/SKILL.md:2:7: denied[pack-name-reserved]: metadata.name: "),
        ("agent.yaml", 1, "agent.yaml:1:1: error[skill]: not a skill\n"),
        ("nowhere", 1, "nowhere:1:1: error[file]: no such file or directory\n"),
        ("skills/pdf-tools/assets", 1, "skills/pdf-tools/assets:1:1: error[skill]: the directory contains no skill\n"),
    ] {
        let output = sympozium(&["skill", "import", path]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(code), ""), "{path}");
        assert!(stderr(&output).contains(message), "{path}: {}", stderr(&output));
        assert!(stderr(&output).contains("\n  hint: "), "{path}: {}", stderr(&output));
    }
    let renamed = import(&["skills/reserved", "--name", "other"]);
    assert_eq!(renamed["metadata"]["name"], "other");
}

#[test]
fn an_invalid_name_is_a_usage_error() {
    for arguments in [
        &["skill", "import", "x", "--name", "No Name"][..],
        &["skill", "import", "x", "--namespace", "a.b"],
        &["skill", "new", "No Name"],
        &["skill", "new", "sandbox"],
        &["skill", "new", "../x"],
        &["skill", "new", "a--b"],
        &["skill", "new", "x", "--text", "--sidecar"],
        &["skill", "new", "x", "--text", "--pack"],
    ] {
        let output = sympozium(arguments);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{arguments:?}");
    }
}

#[test]
fn the_file_and_its_directory_are_the_same_skill() {
    let expected = import(&["skills/pdf-tools"]);
    assert_eq!(import(&["skills/pdf-tools/SKILL.md"]), expected);
    assert_eq!(import(&["skills/pdf-tools/"]), expected);
    for path in [".", "SKILL.md"] {
        let output = program(&["skill", "import", "-o", "json", path])
            .current_dir(fixtures().join("skills/pdf-tools"))
            .output()
            .unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found, expected, "{path}");
    }
}

/// Imported packs are valid, and the same as YAML, as JSON and when read again.
#[test]
fn an_imported_pack_is_valid_and_reads_back() {
    for (arguments, objects) in [
        (&["skills/pdf-tools"][..], 1),
        (&["skills/careless", "--image", "python:3.13-slim", "--category", "x"], 1),
        (&["skills/team"], 1),
    ] {
        let json = import(arguments);
        let yaml = sympozium(&[&["skill", "import"], arguments].concat());
        let read: Value = serde_saphyr::from_str(stdout(&yaml)).unwrap();
        assert_eq!(read, json, "{arguments:?}");
        let output = sympozium_reading(&["validate", "--strict", "-"], &yaml.stdout);
        let expected =
            format!("exit code: 0\n----- stdout -----\n----- stderr -----\nok: {objects} object in 1 file\n");
        assert_eq!(format_output(&output), expected, "{arguments:?}");
    }
}

#[test]
fn validate_takes_a_skill_wherever_it_takes_a_pack() {
    let directory = tempfile::tempdir().unwrap();
    let agent = directory.path().join("agent.yaml");
    let text = "apiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {name: a}\nspec:\n  agents: {default: {model: m}}\n  skills: [{skillPackRef: pdf-tools}]\n";
    fs::write(&agent, text).unwrap();
    let agent = agent.to_str().unwrap();
    let output = sympozium(&["validate", "--strict", agent]);
    assert_eq!(output.status.code(), Some(1), "{}", format_output(&output));
    for skill in ["skills/pdf-tools", "skills/pdf-tools/SKILL.md"] {
        let output = sympozium(&["validate", "--strict", agent, skill, "skills/pdf-tools/SKILL.md"]);
        assert_eq!(
            (output.status.code(), stdout(&output), stderr(&output)),
            (Some(0), "", "ok: 2 objects in 2 files\n")
        );
    }
}

/// The files of a skill belong to it, manifests or not.
#[test]
fn manifests_within_a_skill_are_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::create_dir_all(root.join("skill/assets")).unwrap();
    let text = "---\nname: skill\ndescription: d\n---\nx\n";
    fs::write(root.join("skill/SKILL.md"), text).unwrap();
    fs::write(root.join("skill/assets/template.yaml"), "not: [a manifest").unwrap();
    let output = sympozium(&["validate", root.to_str().unwrap()]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), "ok: 1 object in 1 file\n"), "{}", stdout(&output));
    // A link to a skill is not followed, and a link instead of `SKILL.md` is an error.
    symlink(root.join("skill"), root.join("link")).unwrap();
    fs::create_dir(root.join("other")).unwrap();
    symlink(root.join("skill/SKILL.md"), root.join("other/SKILL.md")).unwrap();
    let output = sympozium(&["validate", root.to_str().unwrap()]);
    let found = stdout(&output).replace(root.to_str().unwrap(), "DIR");
    assert_eq!(
        found,
        "DIR/other/SKILL.md:1:1: error[file]: a symbolic link; it is not followed\n  hint: replace the link by the file\n"
    );
}

#[test]
fn hostile_skills_take_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("SKILL.md");
    let bomb: String =
        (1..40).map(|level| format!("a{level}: &a{level} [{}]\n", format!("*a{},", level - 1).repeat(20))).collect();
    let bomb = format!("---\ndescription: d\na0: &a0 [x]\n{bomb}---\n");
    fs::write(&path, bomb).unwrap();
    let arguments = ["skill", "import", directory.path().to_str().unwrap()];
    let output = bounded(&arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("error[too-large]"), "{output:?}");
    // The maximum number of files and directories.
    for (head, piece) in [
        ("metadata:\n", "  k{}: 1\n"),
        ("metadata:\n", "  k{}: []\n"),
        ("", "na{-}me: 1\n"),
        ("", "x{}: 1\n"),
        ("allowed-tools: [", "{}, "),
        ("allowed-tools: ", "a{} "),
        ("x: *\n", "{ }a: b: c\n"),
    ] {
        let numbered = |number: usize| {
            let piece = piece.replace("{}", &number.to_string());
            let piece = piece.replace("{-}", &"-".repeat(number % 900 + 1));
            piece.replace("{ }", &" ".repeat(number % 100))
        };
        let mut text = format!("---\ndescription: d\n{head}");
        for number in 0.. {
            text += &numbered(number);
            if text.len() > 250_000 {
                break;
            }
        }
        text += if head.ends_with('[') { "]\n---\n" } else { "\n---\n" };
        fs::write(&path, text).unwrap();
        let output = bounded(&arguments);
        assert!(output.status.code().is_some(), "{piece}: {output:?}");
    }
    fs::File::create(&path).unwrap().set_len(100_000_000).unwrap();
    let output = bounded(&arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("the file is larger than 256 KiB and is not read"), "{output:?}");
}

fn new(directory: &Path, arguments: &[&str]) -> std::process::Output {
    let mut all = vec!["skill", "new"];
    all.extend(arguments);
    program(&all).current_dir(directory).output().unwrap()
}

#[test]
fn a_new_skill_prints_its_files_and_next_steps() {
    let directory = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(format_output(&new(directory.path(), &["hello"])), @"
    exit code: 0
    ----- stdout -----
    wrote hello/SKILL.md
    wrote hello/references/writing-skills.md
    wrote hello/scripts/hello.sh (executable)
    next:
      edit hello/SKILL.md
      sympozium validate hello
      sympozium skill import hello
    ----- stderr -----
    ");
    fs::create_dir(directory.path().join("skills")).unwrap();
    let output = new(directory.path(), &["words", "--text", "--dir", "skills", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        answer,
        json!({
            "directory": "skills/words",
            "files": [
                {"path": "SKILL.md", "executable": false},
                {"path": "references/writing-skills.md", "executable": false},
            ],
            "next": [
                "edit skills/words/SKILL.md",
                "sympozium validate skills/words",
                "sympozium skill import skills/words",
            ],
        })
    );
}

/// It is valid, the printed next commands work, and its script does what its text describes.
#[test]
fn a_new_skill_works() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for (name, form, has_sidecar) in [("hello", "--sidecar", true), ("words", "--text", false)] {
        assert_eq!(new(root, &[name, form]).status.code(), Some(0));
        let path = root.join(name);
        let path = path.to_str().unwrap();
        let output = sympozium(&["validate", "--strict", path]);
        assert_eq!(
            format_output(&output),
            "exit code: 0\n----- stdout -----\n----- stderr -----\nok: 1 object in 1 file\n"
        );
        let output = sympozium(&["skill", "import", path, "-o", "json"]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
        let pack: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(pack["metadata"]["name"], name);
        assert_eq!(pack["spec"]["sidecar"].is_object(), has_sidecar);
    }
    let script = root.join("hello/scripts/hello.sh");
    let mode = fs::metadata(&script).unwrap().permissions().mode();
    assert_eq!(mode & 0o100, 0o100);
    let output = command(&script).arg("Ada").output().unwrap();
    assert_eq!(stdout(&output), "Good morning, Ada.\n");
    assert_eq!(command(&script).output().unwrap().status.code(), Some(2));
}

/// A declared tool needs no shell, so the skill needs no `execute_command`.
#[test]
fn a_new_pack_has_a_tool_and_an_image() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    insta::assert_snapshot!(format_output(&new(root, &["report-tools", "--pack"])), @"
    exit code: 0
    ----- stdout -----
    wrote report-tools/skillpack.yaml
    wrote report-tools/Dockerfile
    wrote report-tools/hello.sh (executable)
    next:
      edit report-tools/skillpack.yaml
      sympozium validate report-tools
      docker build -t ghcr.io/yourorg/report-tools:0.1.0 report-tools
    ----- stderr -----
    ");
    let output = sympozium(&["validate", "--strict", root.to_str().unwrap()]);
    assert_eq!(
        format_output(&output),
        "exit code: 0\n----- stdout -----\n----- stderr -----\nok: 1 object in 1 file\n"
    );
    let dockerfile = fs::read_to_string(root.join("report-tools/Dockerfile")).unwrap();
    let base = concat!("skill-sidecar:", env!("CARGO_PKG_VERSION"), "\n");
    assert!(dockerfile.contains(base), "{dockerfile}");
    assert!(!dockerfile.contains('@'), "{dockerfile}");
}

#[test]
fn nothing_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("file"), "mine").unwrap();
    symlink("nowhere", root.join("link")).unwrap();
    for name in ["empty", "file", "link"] {
        let output = new(root, &[name]);
        let expected = format!(
            "error: ./{name} exists already\nhint: choose another name, or remove the directory first; nothing is overwritten\n"
        );
        assert_eq!((output.status.code(), stdout(&output), stderr(&output)), (Some(1), "", expected.as_str()));
    }
    assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "mine");
    assert_eq!(fs::read_dir(root.join("empty")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(root).unwrap().count(), 3);
    let output = new(root, &["x", "--dir", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: cannot open nowhere: "), "{}", stderr(&output));
}

/// With a limit of zero bytes per file, so that writing fails.
#[test]
fn a_failed_run_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let output = command("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" skill new half"])
        .arg(env!("CARGO_BIN_EXE_sympozium"))
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The skill in the docs becomes the pack in the docs.
#[test]
fn the_page_has_the_output_of_the_program() {
    let page = fs::read_to_string(workspace_root().join("docs/agent-skills.md")).unwrap();
    let block = |language: &str| {
        let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    let pack: Value = serde_saphyr::from_str(block("yaml")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let skill = directory.path().join("pdf-tools");
    fs::create_dir_all(skill.join("scripts")).unwrap();
    fs::write(skill.join("SKILL.md"), block("markdown")).unwrap();
    let script = pack["spec"]["skills"][0]["files"][0]["content"].as_str().unwrap();
    fs::write(skill.join("scripts/pages.sh"), script).unwrap();
    let output = sympozium(&["skill", "import", skill.to_str().unwrap()]);
    assert_eq!((stdout(&output), stderr(&output)), (block("yaml"), ""));
}

#[test]
fn help_has_examples() {
    for (command, words) in [
        ("import", &["Examples:", "Exit codes:", "--image", "never gets"][..]),
        ("new", &["Examples:", "Exit codes:", "--text"]),
    ] {
        let output = sympozium(&["skill", command, "--help"]);
        for word in words {
            assert!(stdout(&output).contains(word), "{command}: {word}");
        }
    }
}
