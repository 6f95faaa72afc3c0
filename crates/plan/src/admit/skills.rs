//! Skill texts of a pack, and the files beside them.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sympozium_api::SkillPackSpec;
use sympozium_api::skill_pack::{Skill, SkillFile};
use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::Subject;
use super::violation::{Findings, ViolationDetail, violation};

/// Maximum size of all texts and files of one pack: they reach the run in one ConfigMap, which holds 1 MiB.
pub const MAX_PACK_BYTES: usize = 900 << 10;

/// Checks the texts of a pack, independently of a run.
pub fn check(subject: &Subject, spec: &SkillPackSpec, findings: &mut Findings) {
    for (index, skill) in spec.skills.iter().enumerate() {
        let field = format!("spec.skills[{index}]");
        if let Err(error) = skill.name.check() {
            let remedy = "use letters, digits, `.`, `_` and `-`";
            let field = format!("{field}.name");
            findings.deny(subject, violation(field, "skill-name", error.to_string(), remedy));
        }
        if spec.skills[..index].iter().any(|earlier| earlier.name == skill.name) {
            let name = printable(truncate(skill.name.as_str(), MAX_NAME));
            let message = format!("two skills are called `{name}`");
            let field = format!("{field}.name");
            findings.deny(subject, violation(field, "skill-name", message, "rename one of them"));
        }
        for problem in file_violations(&field, skill) {
            findings.deny(subject, problem);
        }
    }
    let bytes: usize = spec.skills.iter().map(config_map_size).sum();
    if bytes > MAX_PACK_BYTES {
        let message = format!("texts and files of the pack are {bytes} bytes; {MAX_PACK_BYTES} fit");
        let remedy = "put large files into the sidecar's image";
        findings.deny(subject, violation("spec.skills", "pack-too-large", message, remedy));
    }
}

fn file_violations(field: &str, skill: &Skill) -> Vec<ViolationDetail> {
    let mut problems = Vec::new();
    let paths: BTreeSet<&str> = skill.files.iter().map(|file| file.path.as_str()).collect();
    for (index, file) in skill.files.iter().enumerate() {
        let field = format!("{field}.files[{index}]");
        let path = file.path.as_str();
        let shown = quote(path);
        let mut add = |field: String, message: String, remedy: &'static str| {
            problems.push(violation(field, "skill-file", message, remedy));
        };
        if let Err(error) = file.path.check() {
            let remedy = "write it as `scripts/check.sh`";
            add(format!("{field}.path"), error.to_string(), remedy);
        }
        if path.eq_ignore_ascii_case("SKILL.md") {
            let message = format!("{shown} is the text of the skill itself");
            add(format!("{field}.path"), message, "put the text into `content` of the skill");
        }
        if skill.files[..index].iter().any(|earlier| earlier.path == file.path) {
            let message = format!("two files are at {shown}");
            add(format!("{field}.path"), message, "rename one of them");
        }
        let above = path.rmatch_indices('/').map(|(end, _)| &path[..end]);
        if let Some(above) = above.into_iter().find(|above| paths.contains(above)) {
            let message = format!("{} is a file, and {shown} would be below it", quote(above));
            add(format!("{field}.path"), message, "rename one of them");
        }
        if file.content.is_some() == file.content_base64.is_some() {
            let message = "a file has `content` or `contentBase64`".to_owned();
            add(field.clone(), message, "write one of them");
        }
        if decode_contents(file).is_none() {
            let message = "this is not Base64".to_owned();
            add(format!("{field}.contentBase64"), message, "encode it, or write text into `content`");
        }
    }
    problems
}

/// The contents of a file; `None` where its Base64 is invalid.
pub fn decode_contents(file: &SkillFile) -> Option<Vec<u8>> {
    match &file.content_base64 {
        Some(text) => BASE64.decode(text).ok(),
        None => Some(file.content.as_deref().unwrap_or_default().as_bytes().to_vec()),
    }
}

/// The size of a skill in a ConfigMap, where binary data is Base64.
fn config_map_size(skill: &Skill) -> usize {
    let of_file = |file: &SkillFile| {
        let texts = [&file.content, &file.content_base64];
        let bytes: usize = texts.into_iter().flatten().map(String::len).sum();
        bytes + file.path.as_str().len()
    };
    let description = skill.description.as_ref().map_or(0, String::len);
    let files: usize = skill.files.iter().map(of_file).sum();
    skill.content.len() + description + files
}
