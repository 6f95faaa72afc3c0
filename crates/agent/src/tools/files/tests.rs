//! The file tools on real files.

mod access;
mod edit;
mod hostile;
mod list;
mod races;
mod read;
mod write;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use sympozium_api::run_plan::Root;
use tempfile::TempDir;

use super::{Commands, Roots, edit_file, fuzzing, list_directory, read_file, write_file};
use crate::tools::ToolError;

const SECRET: &str = "the secret outside";
const MOST: usize = 32 << 10;

type Tool = fn(&Roots, &Map<String, Value>, usize) -> Result<String, ToolError>;

/// `in` can be written, `read-only` cannot, `outside` is no root and has a secret.
struct Fixture {
    directory: TempDir,
    roots: Roots,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["in", "read-only", "outside"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        fs::write(directory.path().join("outside/secret"), SECRET).expect("a file");
        let root = |name: &str, writable| Root { path: directory.path().join(name).display().to_string(), writable };
        let here = directory.path().display().to_string();
        let roots = Roots::open(&[root("in", true), root("read-only", false)], &[&here]);
        let roots = roots.with_commands(Commands::Offered);
        Self { directory, roots }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    fn write(&self, below: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(below), content).expect("a file");
    }

    fn link(&self, target: &str, below: &str) {
        symlink(self.placed(target), self.path(below)).expect("a link");
    }

    fn content(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).expect("text")
    }

    fn placed(&self, text: &str) -> String {
        text.replace('@', &self.directory.path().display().to_string())
    }

    /// Calls a tool. `@` in the arguments and in the answer is the directory of the fixture.
    fn call(&self, tool: Tool, arguments: Value) -> Result<String, String> {
        self.call_with(tool, arguments, MOST)
    }

    fn call_with(&self, tool: Tool, mut arguments: Value, max_bytes: usize) -> Result<String, String> {
        if let Some(Value::String(path)) = arguments.get_mut("path") {
            *path = self.placed(path);
        }
        let arguments = arguments.as_object().expect("an object");
        let here = self.directory.path().display().to_string();
        match tool(&self.roots, arguments, max_bytes) {
            Ok(answer) => {
                assert!(answer.len() <= max_bytes, "{} bytes of {max_bytes}", answer.len());
                assert!(!answer.contains(SECRET), "{answer}");
                Ok(answer.replace(&here, "@"))
            }
            Err(ToolError(error)) => {
                assert!(!error.contains(SECRET), "{error}");
                Err(error.replace(&here, "@"))
            }
        }
    }

    fn check_outside(&self) {
        assert_eq!(self.content("outside/secret"), SECRET);
        let count = fs::read_dir(self.path("outside")).expect("it is there").count();
        assert_eq!(count, 1);
    }

    /// Checks that no temporary file is left.
    fn check_clean(&self, below: &str) {
        let names: Vec<String> = fs::read_dir(self.path(below))
            .expect("it is there")
            .map(|entry| entry.expect("an entry").file_name().display().to_string())
            .filter(|name| name.starts_with(".writing-"))
            .collect();
        assert_eq!(names, Vec::<String>::new());
    }
}

/// Every case of a table, compared whole.
#[track_caller]
fn check(fixture: &Fixture, tool: Tool, cases: &[(Value, Result<&str, &str>)]) {
    for (arguments, expected) in cases {
        let answer = fixture.call(tool, arguments.clone());
        let answer = answer.as_deref().map_err(String::as_str);
        assert_eq!(answer, *expected, "{arguments}");
    }
}

#[test]
fn arguments_of_the_wrong_type_are_errors() {
    let fixture = Fixture::new();
    check(
        &fixture,
        read_file,
        &[
            (json!({}), Err("the arguments do not fit: missing field `path`")),
            (
                json!({ "path": "@/in/a", "offset": "1" }),
                Err("the arguments do not fit: invalid type: string \"1\", expected a whole number from 1 on"),
            ),
            (
                json!({ "path": "@/in/a", "offset": 0 }),
                Err("the arguments do not fit: invalid value: integer `0`, expected a whole number from 1 on"),
            ),
            (
                json!({ "path": "@/in/a", "limit": 1.5 }),
                Err("the arguments do not fit: invalid value: floating point `1.5`, expected a whole number from 1 on"),
            ),
            (json!({ "path": 5 }), Err("the arguments do not fit: invalid type: integer `5`, expected a string")),
        ],
    );
    let long = json!({ "path": "@/in/a", "offset": "x".repeat(100_000) });
    let error = fixture.call(read_file, long).expect_err("it is no number");
    assert!(error.len() < 400, "{} bytes", error.len());
}

#[test]
fn fuzz_targets_hold_for_their_seeds() {
    sympozium_testkit::replay::replay(&[
        ("agent_edit", fuzzing::agent_edit),
        ("agent_arguments", fuzzing::agent_arguments),
    ]);
}
