//! `sympozium skill`: skills as directories with `SKILL.md`, made into SkillPacks and begun anew.

pub mod arguments;
mod import;
mod new;
mod skeleton;

use std::process::ExitCode;

use crate::failure::Failure;
use arguments::{SkillArguments, SkillCommand};

/// Does what the arguments say.
pub fn run(arguments: &SkillArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        SkillCommand::Import(arguments) => import::run(arguments),
        SkillCommand::New(arguments) => new::run(arguments),
    }
}
