//! The files that `sympozium skill new` writes.

use sympozium_manifests::agent_skill::pack::BASE_IMAGE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkeletonKind {
    /// A script, and a text that makes the agent run it.
    Sidecar,
    /// A text, and a reference that the agent reads when it needs it.
    Text,
    /// A SkillPack with a declared tool, and the image that has its program.
    Pack,
}

#[derive(Debug, PartialEq, Eq)]
pub struct File {
    pub path: &'static str,
    pub text: String,
    pub is_executable: bool,
}

/// The placeholder for the skill's name in the templates.
const NAME_PLACEHOLDER: &str = "@NAME@";

const SIDECAR: &[(&str, &str, bool)] = &[
    ("SKILL.md", include_str!("skeleton/sidecar.md"), false),
    ("references/writing-skills.md", include_str!("skeleton/writing-skills.md"), false),
    ("scripts/hello.sh", include_str!("skeleton/hello.sh"), true),
];

const TEXT: &[(&str, &str, bool)] = &[
    ("SKILL.md", include_str!("skeleton/text.md"), false),
    ("references/writing-skills.md", include_str!("skeleton/writing-skills.md"), false),
];

const PACK: &[(&str, &str, bool)] = &[
    (PACK_FILE, include_str!("skeleton/pack.yaml"), false),
    ("Dockerfile", include_str!("skeleton/dockerfile.txt"), false),
    ("hello.sh", include_str!("skeleton/hello.sh"), true),
];

/// The manifest of a skeleton with a SkillPack.
pub const PACK_FILE: &str = "skillpack.yaml";

/// The placeholder for the base image in the templates.
const BASE_PLACEHOLDER: &str = "@BASE@";

pub fn files(name: &str, form: SkeletonKind) -> Vec<File> {
    let templates = match form {
        SkeletonKind::Sidecar => SIDECAR,
        SkeletonKind::Text => TEXT,
        SkeletonKind::Pack => PACK,
    };
    let file = |(path, text, is_executable): &(&'static str, &str, bool)| File {
        path,
        text: text.replace(NAME_PLACEHOLDER, name).replace(BASE_PLACEHOLDER, BASE_IMAGE),
        is_executable: *is_executable,
    };
    templates.iter().map(file).collect()
}
