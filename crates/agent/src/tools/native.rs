//! The tools that the agent acts on itself, by name.

use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{EDIT_FILE, LIST_DIRECTORY, LOAD_SKILL, READ_FILE, WRITE_FILE};
use sympozium_api::run_plan::SkillPlan;

use super::ToolError;
use super::files::{self, Roots};
use crate::skills::load_skill;

/// One tool. What it takes and says of itself is in the plan; here is what it does.
#[derive(Debug, Clone, Copy)]
pub struct NativeTool {
    /// Its name in the plan.
    pub name: &'static str,
    /// What it does. It may wait for a disk: it has a thread of its own. The bridge has permitted the call, and has seen
    /// that the arguments fit the tool's schema.
    pub act: fn(&Own, &Map<String, Value>) -> Result<String, ToolError>,
}

/// What native tools act on. There is nothing else: no network, no program, no other file.
#[derive(Debug)]
pub struct Own {
    /// Files.
    pub roots: Roots,
    /// Texts of skills.
    pub skills: Vec<SkillPlan>,
    /// Most bytes of an answer.
    pub most: usize,
}

/// The tools of every agent.
pub const TOOLS: &[NativeTool] = &[
    NativeTool { name: READ_FILE, act: |own, arguments| files::read_file(&own.roots, arguments, own.most) },
    NativeTool { name: WRITE_FILE, act: |own, arguments| files::write_file(&own.roots, arguments, own.most) },
    NativeTool { name: EDIT_FILE, act: |own, arguments| files::edit_file(&own.roots, arguments, own.most) },
    NativeTool { name: LIST_DIRECTORY, act: |own, arguments| files::list_directory(&own.roots, arguments, own.most) },
    NativeTool { name: LOAD_SKILL, act: |own, arguments| load_skill(&own.skills, &own.roots, arguments, own.most) },
];

/// The tools of an agent, and what they act on.
#[derive(Debug)]
pub struct Native {
    /// What they act on.
    pub own: Own,
    /// The tools.
    pub tools: &'static [NativeTool],
}

impl Native {
    /// Acts. It may wait for a disk, so it is for a thread of its own.
    ///
    /// # Errors
    ///
    /// With what the model is told.
    pub fn act(&self, name: &str, arguments: &Map<String, Value>) -> Result<String, ToolError> {
        match self.tools.iter().find(|tool| tool.name == name) {
            Some(tool) => (tool.act)(&self.own, arguments),
            None => {
                let why = format!("this release does not know how to act on `{name}`");
                Err(ToolError(why))
            }
        }
    }
}
