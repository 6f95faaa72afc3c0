//! The arguments of `sympozium skill`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sympozium_api::names::SkillPackName;
use sympozium_manifests::agent_skill::is_skill_name;

use crate::arguments::{ObjectFormat, OutputFormat, parse_namespace};

/// The arguments of `skill`.
#[derive(Debug, Args)]
pub struct SkillArguments {
    /// The command.
    #[command(subcommand)]
    pub command: SkillCommand,
}

/// The commands about skills.
#[derive(Debug, Subcommand)]
pub enum SkillCommand {
    /// Convert the directory of a skill into a SkillPack, and print it.
    ///
    /// A skill is a directory with `SKILL.md`: YAML between two lines of `---`, then Markdown. The other files of the
    /// directory are included. Mistakes that can be corrected are corrected, with a warning on standard error. A missing
    /// description is an error, and so is frontmatter that is not YAML even with its values in quotes.
    ///
    /// The pack gets a sidecar if the skill has scripts or names `Bash` in `allowed-tools`. It never gets RBAC permissions,
    /// hosts, Secrets or access to the node: add those to the printed pack if they are needed.
    ///
    /// A directory without `SKILL.md` is searched for skills, and all of them become one pack with one sidecar. Import
    /// each skill separately to give it a sidecar of its own.
    Import(ImportArguments),

    /// Create the directory of a new skill: a working skeleton to edit.
    New(NewArguments),
}

/// The arguments of `skill import`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Print the SkillPack of a skill:
    sympozium skill import ./pdf-tools

  Install it with an image that has the programs of its scripts:
    sympozium skill import ./pdf-tools --image python:3.13-slim | kubectl apply -f -

  Convert all skills of a project into one pack:
    sympozium skill import .agents/skills --name project-skills

  Validate a skill together with the agents that use it:
    sympozium validate ./pdf-tools agent.yaml

Exit codes:
  0  printed; there may be warnings
  1  the skill could not be read or is invalid, or the command failed; nothing is printed
  2  the command line is invalid
  3  the cluster would reject the pack; nothing is printed")]
pub struct ImportArguments {
    /// A directory with `SKILL.md`, the file itself, or a directory that contains such directories.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// The name of the pack. The default is the name of the skill, or of the directory if it contains several.
    #[arg(long, value_parser = pack_name)]
    pub name: Option<String>,

    /// The namespace of the pack. Without it, none is written.
    #[arg(short, long, value_parser = parse_namespace)]
    pub namespace: Option<String>,

    /// The image of the sidecar, in which the Sympozium executor runs. The default is the base image with `sh`.
    #[arg(long)]
    pub image: Option<String>,

    /// The category of the pack. The default is `metadata.category` if it has only one skill.
    #[arg(long, value_parser = category)]
    pub category: Option<String>,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml)]
    pub output: ObjectFormat,
}

/// The arguments of `skill new`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Create a skill with a script in the current directory:
    sympozium skill new release-notes

  Create a skill with texts only in another directory:
    sympozium skill new code-style --text --dir .agents/skills

  Create a skill with an image of its own:
    sympozium skill new report-tools --pack

Exit codes:
  0  the skill was created
  1  the directory exists already or could not be written; nothing was changed
  2  the command line is invalid")]
pub struct NewArguments {
    /// The name of the skill and of its directory: lower-case letters, digits and single hyphens.
    #[arg(value_parser = skill_name)]
    pub name: String,

    /// The parent of the new directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,

    /// A skill with a script, which runs in a sidecar. This is the default.
    #[arg(long, group = "form")]
    pub sidecar: bool,

    /// A skill with texts only, without script and sidecar.
    #[arg(long, group = "form")]
    pub text: bool,

    /// A SkillPack with a tool of its own, and a Dockerfile for its image, instead of `SKILL.md`.
    #[arg(long, group = "form")]
    pub pack: bool,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

fn pack_name(typed: &str) -> Result<String, &'static str> {
    match SkillPackName::from(typed).check() {
        Ok(()) => Ok(typed.to_owned()),
        Err(_) => {
            Err("invalid name of a pack\n  hint: use lower-case letters, digits, `-` and `.`, at most 253 characters")
        }
    }
}

fn skill_name(typed: &str) -> Result<String, &'static str> {
    match is_skill_name(typed) {
        true => Ok(typed.to_owned()),
        false => Err(
            "invalid name of a skill\n  hint: use lower-case letters, digits and single hyphens, at most 63 characters",
        ),
    }
}

fn category(typed: &str) -> Result<String, &'static str> {
    match typed.chars().count() <= sympozium_api::limits::WORD {
        true => Ok(typed.to_owned()),
        false => Err("the category is longer than 128 characters\n  hint: use one word, such as `development`"),
    }
}
