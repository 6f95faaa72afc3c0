//! Resolves the packs that `--skill` names.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::{Value, json};
use sympozium_api::text::quote;
use sympozium_manifests::agent_skill::FILE_NAME;
use sympozium_manifests::built_in;
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::tree::Node;
use sympozium_manifests::validate::Object;

use super::Assembler;
use super::source::not_found;
use crate::failure::Failure;

impl Assembler<'_> {
    /// Resolves the packs that `--skill` names. Directories become packs of the run's namespace.
    pub(super) fn resolve_skills(&mut self, namespace: &str) -> Result<Vec<String>, Failure> {
        let arguments = self.arguments;
        let mut names: Vec<String> = Vec::new();
        for skill in &arguments.skills {
            // A cluster can have any pack.
            let is_known = self.target.is_cluster()
                || built_in::pack_text(skill).is_some()
                || packs(self.session.objects()).any(|it| it.name.name == *skill);
            let found = match directory(skill) {
                Some(path) if skill.contains('/') || !is_known => self.add_skill_directory(path, namespace),
                _ if is_known => vec![skill.clone()],
                _ => return Err(unknown_skill(self.session.objects(), skill)),
            };
            // A directory that cannot be read has findings, which are reported later.
            for name in found {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// Reads the packs of a directory into the run's namespace, and returns their names.
    fn add_skill_directory(&mut self, path: PathBuf, namespace: &str) -> Vec<String> {
        let first = self.session.objects().len();
        self.session.add_inputs(&[path], &mut self.reader);
        let mut names = Vec::new();
        for index in first..self.session.objects().len() {
            if let Some(pack) = self.session.object_mut(index).filter(|it| it.is_kind(Kind::SkillPack)) {
                pack.name.namespace = namespace.to_owned();
                pack.node.set(&["metadata", "namespace"], json!(namespace));
                names.push(pack.name.name.clone());
            }
        }
        names
    }
}

/// The directory of a skill, if `skill` is one or the `SKILL.md` in it.
pub fn directory(skill: &str) -> Option<PathBuf> {
    let path = Path::new(skill);
    let path = match path.file_name() {
        Some(name) if name == FILE_NAME && path.is_file() => path.parent()?,
        _ => path,
    };
    let path = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    path.join(FILE_NAME).is_file().then(|| path.to_owned())
}

/// A `skills` list for these packs, with the settings that the manifests have for them: the first manifest counts.
pub fn references(skills: &[String], manifests: &[&Node]) -> Value {
    let reference = |name: &String| {
        let lists = manifests.iter().filter_map(|it| it.get_path(&["spec", "skills"])?.as_list());
        let mut all = lists.flatten();
        let found = all.find(|it| it.get("skillPackRef").and_then(Node::as_text) == Some(name));
        found.map_or_else(|| json!({"skillPackRef": name}), Node::to_json)
    };
    skills.iter().map(reference).collect()
}

fn packs(objects: &[Object]) -> impl Iterator<Item = &Object> {
    objects.iter().filter(|it| it.is_kind(Kind::SkillPack))
}

fn unknown_skill(objects: &[Object], skill: &str) -> Failure {
    if Path::new(skill).exists() {
        let error = anyhow!("{} is not a skill: it has no {FILE_NAME}", quote(skill));
        return Failure::usage(error, "`sympozium skill new` creates one");
    }
    let built_in = built_in::PACKS.iter().map(|(name, _)| *name);
    let known: Vec<&str> = packs(objects).map(|it| it.name.name.as_str()).chain(built_in).collect();
    not_found("skill", skill, &known)
}
