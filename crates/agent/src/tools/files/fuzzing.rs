//! The bodies of the fuzz targets of the file tools.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};
use sympozium_api::run_plan::{Root, SkillContents, SkillPlan};

use super::apply::{Edit, EditError, Scope, apply};
use super::{Roots, edit_file, list_directory, read_file, write_file};
use crate::skills::load_skill;
use crate::tools::ToolError;

/// Between the parts of an input of [`agent_edit`]: no byte of UTF-8.
const BETWEEN: u8 = 0xfe;
/// Most bytes of a file, because the reference is slow.
const MAX_FUZZ_FILE: usize = 2 << 10;
/// Most edits, for the same reason.
const MAX_EDITS: usize = 8;
/// Bytes of an answer.
const MAX_ANSWER: usize = 4 << 10;
/// The text of a skill.
const TEXT: &str = "# One\n";
/// Most bytes of a refusal.
const MAX_ERROR: usize = 4 << 10;

/// A file, then what is replaced and by what in turn; `*` before what is replaced means wherever it is. The edits do what a
/// simple and slow way of making them does, and refuse what it refuses.
pub fn agent_edit(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == BETWEEN);
    let file = parts.next().unwrap_or_default();
    let file = &file[..file.len().min(MAX_FUZZ_FILE)];
    let texts: Vec<&str> = parts.map_while(|bytes| std::str::from_utf8(bytes).ok()).collect();
    let edits: Vec<Edit<'_>> = texts
        .chunks_exact(2)
        .take(MAX_EDITS)
        .map(|pair| match pair[0].strip_prefix('*') {
            Some(old) => edit(old, pair[1], Scope::All),
            None => edit(pair[0], pair[1], Scope::Once),
        })
        .collect();
    match (apply(file, &edits), slowly(file, &edits)) {
        (Ok(result), Ok(expected)) => assert_eq!(result, expected),
        (Err(error), Err(number)) => {
            assert_eq!(number_of(&error), number, "{error}");
            assert!(error.to_string().len() < MAX_ERROR, "{error}");
        }
        (result, expected) => panic!("{result:?} is not {expected:?}"),
    }
}

fn edit<'a>(old: &'a str, new: &'a str, scope: Scope) -> Edit<'a> {
    Edit { old, new, scope }
}

fn number_of(error: &EditError) -> usize {
    match error {
        EditError::Empty(edit)
        | EditError::Same(edit)
        | EditError::TooLong(edit)
        | EditError::TooLarge(edit)
        | EditError::TooMuch(edit)
        | EditError::NotFound { edit, .. }
        | EditError::Ambiguous { edit, .. } => *edit,
    }
}

/// The edits made by looking at every place. The error is the number of the edit that cannot be made.
fn slowly(file: &[u8], edits: &[Edit<'_>]) -> Result<Vec<u8>, usize> {
    let mut current = file.to_vec();
    for (index, edit) in edits.iter().enumerate() {
        let old = edit.old.as_bytes();
        if old.is_empty() || edit.old == edit.new {
            return Err(index + 1);
        }
        let count = current.windows(old.len()).filter(|window| *window == old).count();
        if count == 0 || count > 1 && edit.scope == Scope::Once {
            return Err(index + 1);
        }
        let mut result = Vec::new();
        let mut rest = current.as_slice();
        while let Some(first) = rest.first() {
            if let Some(after) = rest.strip_prefix(old) {
                result.extend_from_slice(edit.new.as_bytes());
                rest = after;
            } else {
                result.push(*first);
                rest = &rest[1..];
            }
        }
        if result.len() > super::MAX_FILE {
            return Err(index + 1);
        }
        current = result;
    }
    Ok(current)
}

/// A tool's name in the first line, arguments in the rest; `@` at the start of a path is the directory that the tools have.
/// Nothing outside of it is read or changed, and answers are short.
pub fn agent_arguments(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (name, body) = data.split_at(end);
    let Ok(Value::Object(mut arguments)) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    let fixture = Fixture::new();
    fixture.resolve_path(&mut arguments);
    let roots = Roots::open(&fixture.roots(), &[&fixture.0.to_string_lossy()]);
    match fixture.call(name, &roots, &arguments) {
        Some(Ok(answer)) => {
            assert!(answer.len() <= MAX_ANSWER, "{} bytes", answer.len());
            assert!(!answer.contains(&fixture.secret()), "{answer}");
        }
        Some(Err(ToolError(refusal))) => {
            assert!(refusal.len() <= MAX_ERROR, "{} bytes", refusal.len());
            assert!(!refusal.contains(&fixture.secret()), "{refusal}");
        }
        None => {}
    }
    fixture.check();
}

/// A directory that the tools have, one that they can only read, and one beside with a secret.
struct Fixture(PathBuf);

impl Fixture {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sympozium-fuzz-{}-{count}", process::id());
        let fixture = Self(std::env::temp_dir().join(name));
        if let Err(error) = fixture.fill() {
            panic!("{}: {error}", fixture.0.display());
        }
        fixture
    }

    fn fill(&self) -> std::io::Result<()> {
        // Fails if it exists: it might belong to another process.
        fs::create_dir(&self.0)?;
        for directory in ["outside", "in", "in/directory", "skills", "skills/one"] {
            fs::create_dir(self.0.join(directory))?;
        }
        fs::write(self.0.join("outside/secret"), self.secret())?;
        fs::write(self.0.join("in/text"), "one\ntwo\nthree\n")?;
        fs::write(self.0.join("in/binary"), b"\x7fELF\0\0")?;
        fs::write(self.0.join("in/wide"), b"\xff\xfea\0\n\0")?;
        fs::write(self.0.join("skills/one/SKILL.md"), TEXT)?;
        symlink("../outside", self.0.join("in/out"))?;
        symlink(self.0.join("outside/secret"), self.0.join("in/secret"))?;
        symlink("directory", self.0.join("in/link"))?;
        symlink("loop", self.0.join("in/loop"))
    }

    fn secret(&self) -> String {
        format!("secret-of-{}", self.0.display())
    }

    fn roots(&self) -> [Root; 2] {
        [("in", true), ("skills", false)]
            .map(|(name, writable)| Root { path: format!("{}/{name}", self.0.display()), writable })
    }

    fn resolve_path(&self, arguments: &mut Map<String, Value>) {
        if let Some(Value::String(path)) = arguments.get_mut("path")
            && let Some(rest) = path.strip_prefix('@')
        {
            *path = format!("{}{rest}", self.0.display());
        }
    }

    fn call(&self, name: &[u8], roots: &Roots, arguments: &Map<String, Value>) -> Option<Result<String, ToolError>> {
        Some(match name {
            b"read_file" => read_file(roots, arguments, MAX_ANSWER),
            b"write_file" => write_file(roots, arguments, MAX_ANSWER),
            b"edit_file" => edit_file(roots, arguments, MAX_ANSWER),
            b"list_directory" => list_directory(roots, arguments, MAX_ANSWER),
            b"load_skill" => load_skill(&self.skills(), roots, arguments, MAX_ANSWER),
            _ => return None,
        })
    }

    fn skills(&self) -> Vec<SkillPlan> {
        let skill =
            |source: Value| json!({ "source": source, "directory": format!("{}/skills/one", self.0.display()) });
        let digest = SkillContents::new(TEXT.as_bytes()).digest().ok();
        let other = SkillContents::new(b"").digest().ok();
        let pack =
            |pack: &str, digest| json!({ "kind": "pack", "pack": pack, "skill": "one", "digest": digest, "bytes": 6 });
        let skills = json!([
            skill(pack("a", digest)),
            skill(pack("b", other)),
            skill(json!({ "kind": "configMap", "configMap": "map" })),
        ]);
        match serde_json::from_value(skills) {
            Ok(skills) => skills,
            Err(error) => panic!("they are skills: {error}"),
        }
    }

    /// That all is as it was, but for what may be written.
    fn check(&self) {
        assert_eq!(names(&self.0), ["in", "outside", "skills"]);
        assert_eq!(names(&self.0.join("outside")), ["secret"]);
        assert_eq!(names(&self.0.join("skills/one")), ["SKILL.md"]);
        let secret = fs::read_to_string(self.0.join("outside/secret")).ok();
        assert_eq!(secret, Some(self.secret()));
        for name in names(&self.0.join("in")) {
            assert!(!name.starts_with(".writing-"), "{name} was left");
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // An error here must not hide the property that failed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
