//! Agent Skills as SkillPacks: a directory with `SKILL.md`, accepted wherever a manifest is.
//!
//! The stages: [`directory`] reads the bytes of a directory without following links, [`frontmatter`] splits and parses
//! `SKILL.md`, [`skill`] makes one skill of both, and [`pack`] a SkillPack of one or more. Only the first touches
//! files; the others are pure functions.
//!
//! Loading is lenient, as the standard advises: what can be corrected is, with a warning. Nothing in a skill can give
//! its pack access to anything: [`pack`] has no field for it.

pub mod directory;
mod frontmatter;
pub mod limits;
mod names;
pub mod pack;
mod programs;
pub mod skill;
mod tools;

#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;

use sympozium_plan::admit::SANDBOX_PACK;

use super::load::{Budget, LoadedFile};
use super::problem::{Problem, Problems};
use directory::{Allowance, RawSkill};
use pack::PackOptions;
use skill::Skill;

/// The name of the file that makes a directory a skill, in exactly this case.
pub const FILE_NAME: &str = "SKILL.md";

/// Whether this is a valid name of a skill and its pack.
pub fn is_skill_name(name: &str) -> bool {
    names::is_normalized(name) && name != SANDBOX_PACK
}

pub use names::normalize as fitted_name;

/// Reads the skill in `directory` as a pack of its own: one document, as if it had been written as a manifest.
pub fn load(
    directory: &OwnedFd,
    directory_name: Option<String>,
    allowance: &mut Allowance,
    budget: &mut Budget,
) -> LoadedFile {
    let (skill, problems) = match read(directory, directory_name, allowance, budget) {
        Ok(read) => read,
        Err(problem) => {
            let mut problems = Problems::default();
            problems.add(problem);
            (None, problems)
        }
    };
    load_parsed(skill, problems)
}

/// The same from bytes that were read before.
pub fn load_raw(raw: RawSkill, budget: &mut Budget) -> LoadedFile {
    let (skill, problems) = skill::parse(raw, budget);
    load_parsed(skill, problems)
}

fn load_parsed(skill: Option<Skill>, mut problems: Problems) -> LoadedFile {
    let mut documents = Vec::new();
    if let Some(skill) = skill {
        let options = PackOptions::default();
        let places = skill.marks;
        for warning in pack::warnings(&skill, &options) {
            problems.add(warning);
        }
        match pack::to_document(&pack::build(vec![skill], &options), Some(places)) {
            Ok(document) => documents.push(document),
            Err(error) => problems.add(pack::serialize_problem(&error)),
        }
    }
    LoadedFile { documents, problems }
}

/// Reads the skill in `directory`; `None` when it has an error, which is then among the problems.
///
/// # Errors
/// When the directory has no readable `SKILL.md`.
pub fn read(
    directory: &OwnedFd,
    directory_name: Option<String>,
    allowance: &mut Allowance,
    budget: &mut Budget,
) -> Result<(Option<Skill>, Problems), Problem> {
    let raw = directory::read(directory, directory_name, allowance)?;
    Ok(skill::parse(raw, budget))
}
