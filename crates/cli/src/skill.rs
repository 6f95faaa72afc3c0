//! `sympozium skill`: creates skill directories with `SKILL.md`, and converts them into SkillPacks.

pub mod arguments;
mod import;
mod new;
mod skeleton;

use std::process::ExitCode;

use crate::failure::Failure;
use arguments::{SkillArguments, SkillCommand};

pub fn run(arguments: &SkillArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        SkillCommand::Import(arguments) => import::run(arguments),
        SkillCommand::New(arguments) => new::run(arguments),
    }
}
