//! Builds a SkillPack from skills.
//!
//! Such a pack has texts, and a sidecar with an image and the workspace if one of its skills runs commands. It has no
//! permissions, no network, no secret, no environment and no access to the node: users add those to the manifest.

use std::collections::BTreeMap;

use sympozium_api::builtin_tool::EXECUTE_COMMAND;
use sympozium_api::labels::GROUP;
use sympozium_api::names::ToolPattern;
use sympozium_api::skill_pack::{Executor, Sidecar, Skill as SkillSpec};
use sympozium_api::{SkillPack, SkillPackSpec};

use super::super::problem::Problem;
use super::super::tree::{Entry, Mark, Node, Path, Value};
use super::skill::{Skill, SkillMarks};
use super::tools::AllowedTool;

/// The image of our own executor and a shell, of this version.
pub const BASE_IMAGE: &str = concat!("ghcr.io/sympozium-ai/sympozium/skill-sidecar:", env!("CARGO_PKG_VERSION"));

/// The `source` of imported packs.
const SOURCE: &str = "agent-skill";

/// The options of the user who imports the pack.
#[derive(Debug, Default, Clone)]
pub struct PackOptions {
    /// Instead of the name of its only skill.
    pub name: Option<String>,
    pub namespace: Option<String>,
    /// Instead of [`BASE_IMAGE`].
    pub image: Option<String>,
    pub category: Option<String>,
}

/// Warnings about a skill in a pack with these options.
pub fn warnings(skill: &Skill, options: &PackOptions) -> Vec<Problem> {
    let needed = skill.spec.requires.as_ref().map_or(&[][..], |requires| &requires.bins);
    if options.image.is_some() || needed.is_empty() {
        return Vec::new();
    }
    let message = format!("the skill needs `{}`, but the base image has only `sh`", needed.join("`, `"));
    let hint = "use an image with these programs: sympozium skill import --image IMAGE DIR";
    vec![Problem::warning("skill-programs", Mark::START, message).with_hint(hint)]
}

pub fn build(skills: Vec<Skill>, options: &PackOptions) -> SkillPack {
    let only = match skills.as_slice() {
        [only] => Some(only),
        _ => None,
    };
    let first = skills.first().map(|skill| skill.spec.name.as_str().to_owned());
    let name = options.name.clone().or(first).unwrap_or_default();
    let version = only.and_then(|skill| skill.version.clone());
    let category = only.and_then(|skill| skill.category.clone());
    let is_only = only.is_some();
    let runs_commands = skills.iter().any(|skill| skill.runs_commands);
    let annotations: BTreeMap<String, String> = skills.iter().flat_map(|skill| annotations(skill, is_only)).collect();
    let skills = skills.into_iter().map(|skill| to_spec(skill, &name)).collect();
    let mut pack = SkillPack::new(
        &name,
        SkillPackSpec {
            skills,
            category: options.category.clone().or(category),
            source: Some(SOURCE.to_owned()),
            version,
            sidecar: runs_commands.then(|| sidecar(options)),
            ..SkillPackSpec::default()
        },
    );
    pack.metadata.namespace.clone_from(&options.namespace);
    pack.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    pack
}

/// The Sympozium executor is injected into an image that the user names: most images have no executor.
fn sidecar(options: &PackOptions) -> Sidecar {
    let (image, executor) = match &options.image {
        Some(image) => (image.as_str(), Executor::Injected),
        None => (BASE_IMAGE, Executor::Image),
    };
    Sidecar { image: image.into(), executor, mount_workspace: true, ..Sidecar::default() }
}

fn to_spec(skill: Skill, pack: &str) -> SkillSpec {
    let pattern = |tool: AllowedTool| match tool {
        AllowedTool::OwnCommands => ToolPattern::new(format!("{pack}/{EXECUTE_COMMAND}")),
        AllowedTool::Pattern(pattern) => ToolPattern::new(pattern),
    };
    SkillSpec { allowed_tools: skill.allowed_tools.map(|tools| tools.into_iter().map(pattern).collect()), ..skill.spec }
}

/// Values without a field in a pack, by skill: `license.skills.sympozium.ai/<skill>` and so on.
fn annotations(skill: &Skill, is_only: bool) -> Vec<(String, String)> {
    let mut metadata = skill.metadata.clone();
    if !is_only {
        let own = [("version", &skill.version), ("category", &skill.category)];
        for (key, value) in own {
            let value = value.as_ref().map(|value| (key.to_owned(), value.clone()));
            metadata.extend(value);
        }
    }
    let object = || metadata.iter().map(|(key, text)| (key.clone(), text.as_str().into())).collect();
    let metadata = (!metadata.is_empty()).then(|| serde_json::Value::Object(object()).to_string());
    let texts =
        [("license", skill.license.clone()), ("compatibility", skill.compatibility.clone()), ("metadata", metadata)];
    let name = &skill.spec.name;
    let named = |(field, text): (&str, Option<String>)| Some((format!("{field}.skills.{GROUP}/{name}"), text?));
    texts.into_iter().filter_map(named).collect()
}

/// The pack as a document, with the positions of its only skill if it has one.
///
/// # Errors
/// Never, but the types cannot say so.
pub fn to_document(pack: &SkillPack, marks: Option<SkillMarks>) -> Result<Node, serde_json::Error> {
    let value = serde_json::to_value(pack)?;
    Ok(to_node(value, Path::Root, marks.as_ref()))
}

/// The problem of a pack that cannot be serialised.
pub fn serialize_problem(error: &serde_json::Error) -> Problem {
    let message = format!("cannot serialize the SkillPack: {error}");
    Problem::error("skill", Mark::START, message).with_hint("report this as a bug")
}

/// Recurses as deep as a SkillPack is.
fn to_node(value: serde_json::Value, path: Path<'_>, marks: Option<&SkillMarks>) -> Node {
    use serde_json::Value as Json;
    let at = marks.map_or(Mark::START, |marks| marks.find(&path.to_string()));
    let value = match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => Value::Number(number),
        Json::String(text) => Value::Text(text),
        Json::Array(items) => {
            let items = items.into_iter().enumerate();
            Value::List(items.map(|(index, item)| to_node(item, path.index(index), marks)).collect())
        }
        Json::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| {
                let node = to_node(value, path.field(&key), marks);
                let at = node.at;
                Entry { key, at, node }
            });
            Value::Map(fields.collect())
        }
    };
    Node { at, value }
}

impl SkillMarks {
    /// The position of a field of the pack, or of what it was made from.
    fn find(&self, path: &str) -> Mark {
        let fields = [
            ("metadata.name", self.name),
            ("spec.skills[0].name", self.name),
            ("spec.skills[0].description", self.description),
            ("spec.skills[0].content", self.content),
            ("spec.skills[0].allowedTools", self.allowed_tools),
        ];
        let found = fields.iter().find(|(field, _)| path.starts_with(field));
        found.map_or(Mark::START, |(_, at)| *at)
    }
}
