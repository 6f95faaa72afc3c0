//! The skill texts that the agent can read.

use sympozium_api::digest::CanonicalJsonError;
use sympozium_api::names::{Digest, ToolPattern};
use sympozium_api::run_plan::{SkillContents, SkillFilePlan, SkillPlan, SkillSource, paths};
use sympozium_api::skill_pack::{Skill, SkillFile};

use super::PackTexts;
use crate::admit::{Admitted, ResolvedPack, decode_contents};

/// The directory of the ConfigMaps that are skills. No pack can have this name.
pub const CONFIG_MAPS: &str = "_config";

/// The packs whose texts the agent sees, each with its index: those that have texts and are active in this run.
pub fn packs_with_texts<'p, 'a>(admitted: &'p Admitted<'a>) -> impl Iterator<Item = (usize, &'p ResolvedPack<'a>)> {
    let packs = admitted.packs.iter().enumerate();
    packs.filter(|(_, pack)| pack.starts_sidecar && !pack.spec.skills.is_empty())
}

/// The ConfigMaps that are skills, each once.
pub fn config_maps<'p>(admitted: &'p Admitted<'_>) -> Vec<&'p str> {
    let mut names = Vec::new();
    let skills = admitted.run.spec.skills.iter();
    for name in skills.filter_map(|skill| skill.config_map_ref.as_ref()) {
        if !names.contains(&name.as_str()) {
            names.push(name.as_str());
        }
    }
    names
}

/// The texts, to be stored beside the plan.
pub fn texts<'a>(admitted: &Admitted<'a>) -> Vec<PackTexts<'a>> {
    let texts = packs_with_texts(admitted)
        .map(|(_, pack)| PackTexts { pack: pack.name.as_str().to_owned(), skills: &pack.spec.skills });
    texts.collect()
}

/// Plans every skill of the run.
pub fn plan_skills(admitted: &Admitted<'_>) -> Result<Vec<SkillPlan>, CanonicalJsonError> {
    let mut plans = Vec::new();
    for (_, pack) in packs_with_texts(admitted) {
        for skill in &pack.spec.skills {
            plans.push(plan_pack_skill(admitted, pack.name.as_str(), skill)?);
        }
    }
    for name in config_maps(admitted) {
        plans.push(SkillPlan {
            source: SkillSource::ConfigMap { config_map: name.to_owned() },
            directory: format!("{}/{CONFIG_MAPS}/{name}", paths::SKILLS),
            description: None,
            allowed_tools: None,
            files: Vec::new(),
        });
    }
    Ok(plans)
}

/// The digest of a skill's text and files, as the agent reads them.
///
/// # Errors
///
/// Never for a skill that was read from JSON.
pub fn skill_digest(skill: &Skill) -> Result<Digest, CanonicalJsonError> {
    let mut all = SkillContents::new(skill.content.as_bytes());
    for file in &skill.files {
        // Admission has checked it.
        let content = decode_contents(file).unwrap_or_default();
        all.add(&file.path, is_executable(file), &content);
    }
    all.digest()
}

fn is_executable(file: &SkillFile) -> bool {
    file.executable == Some(true)
}

fn plan_pack_skill(admitted: &Admitted<'_>, pack: &str, skill: &Skill) -> Result<SkillPlan, CanonicalJsonError> {
    let file = |file: &SkillFile| SkillFilePlan {
        path: file.path.clone(),
        executable: is_executable(file),
        bytes: decode_contents(file).map_or(0, |content| content.len() as u64),
    };
    Ok(SkillPlan {
        source: SkillSource::Pack {
            pack: pack.to_owned(),
            skill: skill.name.as_str().to_owned(),
            digest: skill_digest(skill)?,
            bytes: skill.content.len() as u64,
        },
        directory: format!("{}/{pack}/{}", paths::SKILLS, skill.name),
        description: skill.description.clone(),
        allowed_tools: skill.allowed_tools.as_ref().map(|all| {
            let patterns = all.iter();
            patterns.filter_map(|pattern| without_namespace(admitted, pattern)).collect()
        }),
        files: skill.files.iter().map(file).collect(),
    })
}

/// The pattern in the form that the bridge matches, by tool and pack: a run has only one pack of a name, and its
/// namespace is known here. `None` for a pattern that names a pack of another namespace: it matches no tool of the run.
fn without_namespace(admitted: &Admitted<'_>, pattern: &ToolPattern) -> Option<ToolPattern> {
    let words: Vec<&str> = pattern.as_str().split('/').collect();
    let [namespace, name, tool] = words.as_slice() else {
        return Some(pattern.clone());
    };
    let mut packs = admitted.packs.iter();
    let is_meant = packs.any(|pack| pack.name == *name && pack.namespace == *namespace);
    is_meant.then(|| ToolPattern::new(format!("{name}/{tool}")))
}
