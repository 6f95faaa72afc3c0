//! The table of native tools.

use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{EDIT_FILE, LIST_DIRECTORY, LOAD_SKILL, READ_FILE, WRITE_FILE};
use sympozium_api::run_plan::SkillPlan;

use super::ToolError;
use super::files::{self, Roots};
use crate::skills::load_skill;

/// What a tool does. Its schema and description are in the plan.
#[derive(Debug, Clone, Copy)]
pub struct NativeTool {
    pub name: &'static str,
    /// Runs on a blocking thread. The bridge has permitted the call and validated the arguments.
    pub run: fn(&ToolContext, &Map<String, Value>) -> Result<String, ToolError>,
}

/// Everything that native tools can reach: no network, no programs, no other files.
#[derive(Debug)]
pub struct ToolContext {
    pub roots: Roots,
    pub skills: Vec<SkillPlan>,
    /// Most bytes of a result.
    pub max_result_bytes: usize,
}

pub const TOOLS: &[NativeTool] = &[
    NativeTool {
        name: READ_FILE,
        run: |context, arguments| files::read_file(&context.roots, arguments, context.max_result_bytes),
    },
    NativeTool {
        name: WRITE_FILE,
        run: |context, arguments| files::write_file(&context.roots, arguments, context.max_result_bytes),
    },
    NativeTool {
        name: EDIT_FILE,
        run: |context, arguments| files::edit_file(&context.roots, arguments, context.max_result_bytes),
    },
    NativeTool {
        name: LIST_DIRECTORY,
        run: |context, arguments| files::list_directory(&context.roots, arguments, context.max_result_bytes),
    },
    NativeTool {
        name: LOAD_SKILL,
        run: |context, arguments| load_skill(&context.skills, &context.roots, arguments, context.max_result_bytes),
    },
];

#[derive(Debug)]
pub struct NativeTools {
    pub context: ToolContext,
    pub tools: &'static [NativeTool],
}

impl NativeTools {
    /// Blocks: to be called on a blocking thread.
    pub fn run(&self, name: &str, arguments: &Map<String, Value>) -> Result<String, ToolError> {
        match self.tools.iter().find(|tool| tool.name == name) {
            Some(tool) => (tool.run)(&self.context, arguments),
            None => {
                let reason = format!("this release does not know how to act on `{name}`");
                Err(ToolError(reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sympozium_api::builtin_tool::{BUILTIN_TOOLS, ToolActor};

    use super::*;

    #[test]
    fn every_tool_on_which_the_agent_acts_is_in_the_table() {
        let of_agent = BUILTIN_TOOLS.iter().filter(|tool| {
            let offer = tool.offer.as_ref();
            offer.is_some_and(|offer| offer.actor == ToolActor::Agent)
        });
        let expected: BTreeSet<_> = of_agent.map(|tool| tool.name).collect();
        assert_eq!(TOOLS.iter().map(|tool| tool.name).collect::<BTreeSet<_>>(), expected);
    }
}
