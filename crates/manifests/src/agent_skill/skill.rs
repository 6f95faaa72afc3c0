//! Makes one skill of a pack from the files of its directory.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sympozium_api::skill_pack::{Skill as SkillSpec, SkillFile, SkillRequirements};
use sympozium_api::text::quote;

use super::super::load::Budget;
use super::super::problem::{Problem, Problems, Severity};
use super::super::tree::{Entry, Mark, Node, Value};
use super::directory::{RawFile, RawSkill};
use super::frontmatter::{self, Document, is_text_char};
use super::limits::{MAX_ANNOTATION_BYTES, MAX_BINARY_BYTES, MAX_DESCRIPTION, MAX_PROGRAMS, MAX_WORD};
use super::tools::AllowedTool;
use super::{names, programs, tools};

/// A skill, and what its pack needs to know about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// Without `allowedTools`, which contain the pack's name.
    pub spec: SkillSpec,
    pub allowed_tools: Option<Vec<AllowedTool>>,
    /// Whether it has scripts or may run commands, so that it needs a sidecar.
    pub runs_commands: bool,
    pub license: Option<String>,
    pub compatibility: Option<String>,
    /// The rest of `metadata`.
    pub metadata: BTreeMap<String, String>,
    pub version: Option<String>,
    pub category: Option<String>,
    pub marks: SkillMarks,
}

/// The positions of a skill's fields in `SKILL.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkillMarks {
    pub name: Mark,
    pub description: Mark,
    pub content: Mark,
    pub allowed_tools: Mark,
}

/// Parses a skill; `None` when there is an error among the problems.
pub fn parse(raw: RawSkill, budget: &mut Budget) -> (Option<Skill>, Problems) {
    let mut problems = raw.problems;
    let document = match frontmatter::parse(raw.text, budget) {
        Ok(document) => document,
        Err(found) => {
            found.items.into_iter().for_each(|problem| problems.add(problem));
            return (None, problems);
        }
    };
    let mut reading = SkillParser { document: &document, problems: &mut problems };
    let skill = reading.skill(raw.directory_name.as_deref(), raw.files);
    for warning in document.warnings {
        problems.add(warning);
    }
    let is_error = |problem: &Problem| problem.severity == Severity::Error;
    let is_broken = problems.errors_omitted > 0 || problems.items.iter().any(is_error);
    (skill.filter(|_| !is_broken), problems)
}

const NAME: &str = "name";
const DESCRIPTION: &str = "description";
const LICENSE: &str = "license";
const COMPATIBILITY: &str = "compatibility";
const METADATA: &str = "metadata";
const ALLOWED_TOOLS: &str = "allowed-tools";

/// The fields of the standard.
const FIELDS: &[&str] = &[NAME, DESCRIPTION, LICENSE, COMPATIBILITY, METADATA, ALLOWED_TOOLS];

/// The keys of `metadata` that have a field in a pack.
const PACK_FIELDS: &[&str] = &["version", "category", BINS];
/// Programs that the skill's commands need, separated by spaces. A run on one machine uses those of the machine.
const BINS: &str = "bins";

struct SkillParser<'a> {
    document: &'a Document,
    problems: &'a mut Problems,
}

impl<'a> SkillParser<'a> {
    fn skill(&mut self, directory_name: Option<&str>, files: Vec<RawFile>) -> Option<Skill> {
        let document = self.document;
        self.check_keys();
        let (name, name_at) = self.name(directory_name)?;
        let (description, description_at) = self.description()?;
        let license = self.annotation(LICENSE);
        let compatibility = self.annotation(COMPATIBILITY);
        let mut metadata = self.metadata();
        // What is too long for the field stays in `metadata`.
        let mut word = |key: &str| {
            let fits = |text: &String| text.chars().count() <= MAX_WORD;
            metadata.get(key).is_some_and(fits).then(|| metadata.remove(key))?
        };
        let (version, category) = (word("version"), word("category"));
        let allowed = self.field(ALLOWED_TOOLS).map(|entry| {
            let (tools, problems) = tools::read(&entry.node);
            problems.into_iter().for_each(|problem| self.problems.add(problem));
            (tools, entry.at)
        });
        if document.body.is_empty() {
            let message = "the skill has no text below the frontmatter";
            let problem = Problem::warning("skill-empty", document.body_at, message);
            self.problems.add(problem.with_hint("describe the steps of the skill"));
        }
        let listed = self.bins(metadata.remove(BINS));
        let needed = required_programs(&files, listed);
        let has_scripts = files.iter().any(is_script);
        let may_run = allowed.as_ref().map(|(tools, _)| tools.contains(&AllowedTool::OwnCommands));
        if let (true, Some((_, at)), Some(false)) = (has_scripts, &allowed, may_run) {
            let message = "`allowed-tools` has no `Bash`, so the skill's scripts cannot be started";
            let problem = Problem::warning("allowed-tools", *at, message);
            self.problems.add(problem.with_hint("add `Bash`, or remove the scripts"));
        }
        let files = files.into_iter().filter_map(|file| self.read_skill_file(file)).collect();
        Some(Skill {
            spec: SkillSpec {
                name: name.into(),
                description: Some(description),
                requires: (!needed.is_empty()).then(|| SkillRequirements { bins: needed, tools: Vec::new() }),
                content: document.body.clone(),
                allowed_tools: None,
                files,
            },
            runs_commands: has_scripts || may_run == Some(true),
            license,
            compatibility,
            metadata,
            version,
            category,
            marks: SkillMarks {
                name: name_at,
                description: description_at,
                content: document.body_at,
                allowed_tools: allowed.as_ref().map_or(document.head.at, |(_, at)| *at),
            },
            allowed_tools: allowed.map(|(tools, _)| tools),
        })
    }

    fn entries(&self) -> &'a [Entry] {
        match &self.document.head.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a field. `allowedTools` counts as `allowed-tools`: a restriction must not be lost to a spelling
    /// mistake.
    fn field(&self, name: &str) -> Option<&'a Entry> {
        let exact = self.entries().iter().find(|entry| entry.key == name);
        exact.or_else(|| {
            let same = |entry: &&Entry| normalize_key(&entry.key) == normalize_key(name);
            self.entries().iter().find(same)
        })
    }

    fn check_keys(&mut self) {
        let entries = self.entries();
        let written: Vec<&str> =
            FIELDS.iter().copied().filter(|field| entries.iter().any(|entry| entry.key == *field)).collect();
        for entry in entries {
            if FIELDS.contains(&entry.key.as_str()) {
                continue;
            }
            let key = quote(&entry.key);
            let meant = FIELDS.iter().find(|field| normalize_key(field) == normalize_key(&entry.key));
            let problem = match meant {
                Some(meant) if !written.contains(meant) => {
                    let message = format!("{key} is read as `{meant}`");
                    let problem = Problem::warning("frontmatter-field", entry.at, message);
                    problem.with_hint(format!("write `{meant}`"))
                }
                _ => {
                    let message = format!("{key} is not a field of a skill; it is omitted");
                    let problem = Problem::warning("frontmatter-field", entry.at, message);
                    problem.with_hint("move it below `metadata` to preserve it")
                }
            };
            self.problems.add(problem);
        }
    }

    fn name(&mut self, directory_name: Option<&str>) -> Option<(String, Mark)> {
        let entry = self.field(NAME);
        let at = entry.map_or(self.document.head.at, |entry| entry.node.at);
        let written = entry.and_then(|entry| self.document.scalar_text(&entry.node));
        let mut warn = |message: String, hint: String| {
            self.problems.add(Problem::warning("skill-name", at, message).with_hint(hint));
        };
        let own = written.as_deref().and_then(names::normalize);
        let of_directory = directory_name.and_then(names::normalize);
        let Some(name) = own.clone().or(of_directory) else {
            let problem = Problem::error("skill-name", at, "the skill has no name");
            self.problems.add(problem.with_hint("add `name: …` with lower-case letters, digits and `-`"));
            return None;
        };
        match (&written, directory_name) {
            (None, _) => warn(
                format!("the skill has no name; the name of its directory, `{name}`, is used"),
                format!("add `name: {name}`"),
            ),
            (Some(written), _) if !names::is_normalized(written) => warn(
                format!("{} is not a valid name of a skill; `{name}` is used", quote(written)),
                format!("write `name: {name}`"),
            ),
            (Some(_), Some(directory)) if directory != name => warn(
                format!(
                    "the name of the skill is `{name}`, and its directory is {}; `{name}` is used",
                    quote(directory)
                ),
                "give both the same name".to_owned(),
            ),
            _ => {}
        }
        Some((name, at))
    }

    fn description(&mut self) -> Option<(String, Mark)> {
        let entry = self.field(DESCRIPTION);
        let at = entry.map_or(self.document.head.at, |entry| entry.node.at);
        let written = entry.and_then(|entry| self.document.scalar_text(&entry.node));
        let text = strip_non_text(written.unwrap_or_default().trim());
        if text.is_empty() {
            let problem = Problem::error("description", at, "the skill has no description");
            self.problems.add(problem.with_hint(
                "add `description: …` with what the skill does and when to use it; agents select skills by it",
            ));
            return None;
        }
        let length = text.chars().count();
        if length <= MAX_DESCRIPTION {
            return Some((text, at));
        }
        let message = format!("the description has {length} characters; it is truncated to {MAX_DESCRIPTION}");
        let problem = Problem::warning("description", at, message);
        self.problems.add(problem.with_hint("shorten it; put details below the frontmatter"));
        Some((text.chars().take(MAX_DESCRIPTION).collect(), at))
    }

    /// A text that is stored as an annotation.
    fn annotation(&mut self, field: &str) -> Option<String> {
        let entry = self.field(field)?;
        let text = self.document.scalar_text(&entry.node).map(|text| strip_non_text(text.trim()));
        match text {
            Some(text) if text.is_empty() => None,
            Some(text) if text.len() <= MAX_ANNOTATION_BYTES => Some(text),
            Some(_) => self.warn_too_long(entry),
            None if entry.node.value == Value::Null => None,
            None => {
                self.warn_type(entry.at, field, "a string", &entry.node);
                None
            }
        }
    }

    /// The programs that the author lists. Reports a warning about invalid names.
    fn bins(&mut self, listed: Option<String>) -> Vec<String> {
        let listed = listed.unwrap_or_default();
        let words = listed.split([' ', ',', '\t', '\n']).filter(|word| !word.is_empty());
        let (names, others): (Vec<&str>, Vec<&str>) = words.partition(|word| programs::is_program_name(word));
        if let (Some(other), Some(entry)) = (others.first(), self.field(METADATA)) {
            let message = format!("{} is not a valid name of a program", quote(other));
            let problem = Problem::warning("skill-programs", entry.at, message);
            let hint = "list names in `metadata.bins`, separated by spaces: `bins: du sort`";
            self.problems.add(problem.with_hint(hint));
        }
        names.into_iter().map(str::to_owned).collect()
    }

    fn metadata(&mut self) -> BTreeMap<String, String> {
        let Some(entry) = self.field(METADATA) else {
            return BTreeMap::new();
        };
        let entries = match &entry.node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => {
                self.warn_type(entry.at, METADATA, "an object of strings", &entry.node);
                &[]
            }
        };
        let mut kept = BTreeMap::new();
        let mut bytes = 0;
        for inner in entries {
            // In JSON, at worst: quotes, a colon and a comma, and each character escaped.
            bytes += 6;
            match self.document.scalar_text(&inner.node) {
                Some(text) => {
                    let (key, text) = (strip_non_text(&inner.key), strip_non_text(&text));
                    bytes += 2 * (key.len() + text.len());
                    kept.insert(key, text);
                }
                None if inner.node.value == Value::Null => {}
                None => self.warn_type(inner.at, &inner.key, "a string", &inner.node),
            }
            // If it is too long, all of it is omitted, so that the rest need not be read.
            if bytes > MAX_ANNOTATION_BYTES {
                self.warn_too_long::<()>(entry);
                return PACK_FIELDS
                    .iter()
                    .filter_map(|key| {
                        let text = self.document.scalar_text(entry.node.get(key)?)?;
                        Some(((*key).to_owned(), strip_non_text(&text)))
                    })
                    .collect();
            }
        }
        kept
    }

    fn warn_too_long<T>(&mut self, entry: &Entry) -> Option<T> {
        let message = format!("{} is longer than {MAX_ANNOTATION_BYTES} bytes; it is omitted", quote(&entry.key));
        let problem = Problem::warning("frontmatter-field", entry.at, message);
        self.problems.add(problem.with_hint("move it below the frontmatter, or into a file"));
        None
    }

    fn warn_type(&mut self, at: Mark, key: &str, expected: &str, node: &Node) {
        let message = format!("{} must be {expected}, not {}; it is omitted", quote(key), node.value.type_name());
        let problem = Problem::warning("frontmatter-field", at, message);
        self.problems.add(problem.with_hint("write it as `key: \"text\"`"));
    }

    fn read_skill_file(&mut self, file: RawFile) -> Option<SkillFile> {
        let executable = is_executable(&file).then_some(true);
        let path = file.path;
        let (content, content_base64) = match String::from_utf8(file.bytes) {
            Ok(text) if text.chars().all(is_text_char) => (Some(text), None),
            other => {
                let bytes = other.map_or_else(|error| error.into_bytes(), String::into_bytes);
                if bytes.len() > MAX_BINARY_BYTES {
                    let message = format!(
                        "{} is not UTF-8, and larger than {} KiB; it is omitted",
                        quote(&path),
                        MAX_BINARY_BYTES >> 10
                    );
                    let problem = Problem::warning("skill-file", Mark::START, message);
                    self.problems.add(problem.with_hint("put it into an image for the skill"));
                    return None;
                }
                (None, Some(BASE64.encode(bytes)))
            }
        };
        Some(SkillFile { path: path.into(), content, content_base64, executable })
    }
}

/// A key in the form in which keys are compared: `allowed_tools`, `allowedTools` and `Allowed-Tools` are equal.
fn normalize_key(key: &str) -> String {
    let kept = key.chars().filter(|character| !matches!(character, '-' | '_' | ' '));
    kept.flat_map(char::to_lowercase).collect()
}

/// The text without control characters, which escapes in YAML can produce.
fn strip_non_text(text: &str) -> String {
    text.chars().filter(|character| is_text_char(*character)).collect()
}

fn is_executable(file: &RawFile) -> bool {
    file.has_execute_bit || programs::has_interpreter(&file.bytes)
}

/// Files that are meant to be executed, whether or not their mode was preserved.
fn is_script(file: &RawFile) -> bool {
    is_executable(file) || file.path.starts_with("scripts/")
}

/// The programs that the scripts need, and those that the author lists.
fn required_programs(files: &[RawFile], listed: Vec<String>) -> Vec<String> {
    let scripts = files.iter().filter(|file| is_script(file));
    let mut needed: Vec<String> = scripts
        .filter_map(|file| programs::interpreter(&file.path, &file.bytes))
        .chain(listed)
        .filter(|program| program != programs::SHELL)
        .collect();
    needed.sort();
    needed.dedup();
    needed.truncate(MAX_PROGRAMS);
    needed
}
