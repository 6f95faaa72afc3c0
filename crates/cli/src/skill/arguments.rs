//! The arguments of `sympozium skill`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sympozium_api::names::SkillPackName;
use sympozium_manifests::agent_skill::is_skill_name;

use crate::arguments::{ObjectFormat, OutputFormat, parse_namespace};

/// The arguments of `skill`.
#[derive(Debug, Args)]
pub struct SkillArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: SkillCommand,
}

/// The commands about skills.
#[derive(Debug, Subcommand)]
pub enum SkillCommand {
    /// Print the SkillPack that a skill's directory makes.
    ///
    /// A skill is a directory with `SKILL.md`: YAML between two lines of `---`, then Markdown. Files beside it come along.
    /// What can be put right is, with a warning on standard error: a missing description is an error, and so is
    /// frontmatter that is no YAML even with its values in quotes.
    ///
    /// The pack gets a sidecar when the skill has scripts or names `Bash` in `allowed-tools`. It never gets rights,
    /// hosts, secrets or access to the node: add those to the printed pack where they are needed.
    ///
    /// A directory without `SKILL.md` is searched for skills, and all of them become one pack with one sidecar. Import
    /// them one by one to give each a sidecar of its own.
    Import(ImportArguments),

    /// Begin a skill: write a directory that works, to be changed.
    New(NewArguments),
}

/// The arguments of `skill import`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Look at what a skill becomes:
    sympozium skill import ./pdf-tools

  Install it, with an image that has what its scripts need:
    sympozium skill import ./pdf-tools --image python:3.13-slim | kubectl apply -f -

  All skills of a project as one pack:
    sympozium skill import .agents/skills --name project-skills

  `validate` reads skills as well, so that they can be checked with the agents that use them:
    sympozium validate ./pdf-tools agent.yaml

Exit codes:
  0  printed; there may be warnings
  1  the skill could not be read or is no skill, or the command failed; nothing is printed
  2  the command line was not understood
  3  the cluster would refuse the pack by its rules; nothing is printed")]
pub struct ImportArguments {
    /// A directory with `SKILL.md`, the file itself, or a directory that holds such directories.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// The name of the pack: the skill's own, or the directory's where it holds several, when not given.
    #[arg(long, value_parser = pack_name)]
    pub name: Option<String>,

    /// The namespace of the pack; none is written when not given.
    #[arg(short, long, value_parser = parse_namespace)]
    pub namespace: Option<String>,

    /// The image of the sidecar, into which our executor is put: the base image with `sh` when not given.
    #[arg(long)]
    pub image: Option<String>,

    /// What the pack is about: `metadata.category` of its only skill when not given.
    #[arg(long, value_parser = category)]
    pub category: Option<String>,

    /// How to print the pack.
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml)]
    pub output: ObjectFormat,
}

/// The arguments of `skill new`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Begin a skill with a script, in this directory:
    sympozium skill new release-notes

  Begin one that is texts only, where a project keeps its skills:
    sympozium skill new code-style --text --dir .agents/skills

  Begin one that needs programs of its own, in an image:
    sympozium skill new report-tools --pack

Exit codes:
  0  written
  1  it is there already, or could not be written; nothing was changed
  2  the command line was not understood")]
pub struct NewArguments {
    /// The name of the skill and of its directory: lower case letters, digits and single hyphens.
    #[arg(value_parser = skill_name)]
    pub name: String,

    /// Where to make the skill's directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,

    /// With a script, which runs in a sidecar. So it is without a flag.
    #[arg(long, group = "form")]
    pub sidecar: bool,

    /// Texts only: no script, no sidecar.
    #[arg(long, group = "form")]
    pub text: bool,

    /// A SkillPack with a tool of its own, and a Dockerfile for its image, instead of `SKILL.md`.
    #[arg(long, group = "form")]
    pub pack: bool,

    /// How to print what was written.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

fn pack_name(typed: &str) -> Result<String, &'static str> {
    match SkillPackName::from(typed).check() {
        Ok(()) => Ok(typed.to_owned()),
        Err(_) => Err(
            "it cannot be the name of a pack\n  hint: use lower-case letters, digits, `-` and `.`, at most 253 of them",
        ),
    }
}

fn skill_name(typed: &str) -> Result<String, &'static str> {
    match is_skill_name(typed) {
        true => Ok(typed.to_owned()),
        false => Err(
            "it cannot be the name of a skill\n  hint: use lower-case letters, digits and single hyphens, at most 63 of them",
        ),
    }
}

fn category(typed: &str) -> Result<String, &'static str> {
    match typed.chars().count() <= sympozium_api::limits::WORD {
        true => Ok(typed.to_owned()),
        false => Err("it is longer than 128 characters\n  hint: one word is enough, such as `development`"),
    }
}
