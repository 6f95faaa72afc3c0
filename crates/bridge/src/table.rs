//! The tool table of a plan.

use std::collections::BTreeMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::builtin_tool::EXECUTE_COMMAND;
use sympozium_api::run_plan::{Gate, SANDBOX, ToolPlan};
use sympozium_api::text::quote;
use sympozium_ipc::door::{Refusal, RefusalCode};

/// The argument that names the pack.
const TARGET: &str = "target";
/// Maximum number of schema errors in one refusal.
const MAX_ERRORS: usize = 8;
/// Maximum number of characters of a schema error.
const MAX_ERROR_CHARS: usize = 300;
/// Backtracking limit for the patterns of a schema: a pack's pattern together with a model's text must not stall the
/// bridge. A text that needs more does not match.
const MAX_BACKTRACKS: usize = 20_000;
/// Maximum nesting depth of arrays and objects in arguments.
pub const MAX_DEPTH: usize = 32;

pub struct ToolTable {
    tools: Vec<Tool>,
}

pub struct Tool {
    pub plan: ToolPlan,
    schema: Validator,
}

#[derive(Debug, thiserror::Error)]
#[error("the schema of tool `{tool}` is none: {why}")]
pub struct InvalidSchema {
    pub tool: String,
    pub why: String,
}

/// A call that passed gate, schema and target.
pub struct FoundTool<'t> {
    /// The index of the tool in the table.
    pub index: usize,
    pub tool: &'t ToolPlan,
    /// The arguments without the target, which is resolved.
    pub arguments: Value,
}

impl ToolTable {
    /// Builds the table of a plan. Every schema is compiled here, so that an invalid one ends the run before anything
    /// is called.
    ///
    /// # Errors
    ///
    /// Returns an error if a schema is invalid.
    pub fn new(plan: &RunPlan) -> Result<Self, InvalidSchema> {
        Self::from_tools(&plan.tools)
    }

    /// Builds the table of these tools.
    pub(crate) fn from_tools(tools: &[ToolPlan]) -> Result<Self, InvalidSchema> {
        let tool = |tool: &ToolPlan| {
            let schema = Value::Object(tool.parameters.0.clone().into_iter().collect());
            let patterns = PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS);
            let reader = jsonschema::options().with_pattern_options(patterns);
            let schema = reader
                .build(&schema)
                .map_err(|error| InvalidSchema { tool: tool.name.clone(), why: error.to_string() })?;
            Ok(Tool { plan: tool.clone(), schema })
        };
        let tools: Result<Vec<Tool>, InvalidSchema> = tools.iter().map(tool).collect();
        Ok(Self { tools: tools? })
    }

    /// Looks a call up. Has no side effects. A call that is found may still need an approval.
    ///
    /// `active` is the pack of the active skill.
    ///
    /// # Errors
    ///
    /// Returns the refusal for the model.
    pub fn look_up(&self, name: &str, mut arguments: Value, active: Option<&str>) -> Result<FoundTool<'_>, Refusal> {
        let mut named: Vec<usize> =
            (0..self.tools.len()).filter(|index| self.tools[*index].plan.name == name).collect();
        if named.is_empty() {
            return Err(refusal(RefusalCode::UnknownTool, format!("there is no tool {}", quote(name))));
        }
        // The model is not told which one is denied if others of the same name are allowed.
        named.retain(|index| self.tools[*index].plan.gate != Gate::Deny);
        if named.is_empty() {
            return Err(refusal(RefusalCode::Denied, format!("the tool {} is denied by policy", quote(name))));
        }
        if depth(&arguments) > MAX_DEPTH {
            let message = format!("the arguments are nested more than {MAX_DEPTH} deep");
            return Err(refusal(RefusalCode::Arguments, message));
        }
        let index = match name {
            EXECUTE_COMMAND => self.resolve_target(&named, &mut arguments, active)?,
            _ => named[0],
        };
        let tool = &self.tools[index];
        check_arguments(&tool.schema, &arguments)?;
        Ok(FoundTool { index, tool: &tool.plan, arguments })
    }

    /// Which pack runs a command line: the named one, the sandbox if there is one, the only one, or that of the active
    /// skill.
    fn resolve_target(&self, named: &[usize], arguments: &mut Value, active: Option<&str>) -> Result<usize, Refusal> {
        let packs: BTreeMap<&str, usize> =
            named.iter().filter_map(|index| Some((self.tools[*index].plan.pack.as_deref()?, *index))).collect();
        let written = arguments.as_object_mut().and_then(|arguments| arguments.remove(TARGET));
        let written = match written {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => normalise(&text),
            Some(_) => {
                let message = format!("`{TARGET}` is the name of a skill pack");
                return Err(refusal(RefusalCode::Arguments, message));
            }
        };
        let list = || packs.keys().copied().collect::<Vec<_>>().join(", ");
        if !written.is_empty() {
            let found = packs.iter().find(|(pack, _)| normalise(pack) == written);
            return found.map(|(_, index)| *index).ok_or_else(|| {
                let message = format!("no skill pack {} runs commands here; there are: {}", quote(&written), list());
                refusal(RefusalCode::Arguments, message)
            });
        }
        let only = (packs.len() == 1).then(|| packs.values().next()).flatten();
        let found = packs.get(SANDBOX).or(only).or_else(|| packs.get(active?));
        found.copied().ok_or_else(|| {
            let message = format!("say in `{TARGET}` which skill pack runs this: {}", list());
            refusal(RefusalCode::Arguments, message)
        })
    }
}

/// Normalises a target as sidecars do: lower case, without white space.
fn normalise(target: &str) -> String {
    let letters = target.chars().filter(|letter| !letter.is_whitespace());
    letters.flat_map(char::to_lowercase).collect()
}

fn check_arguments(schema: &Validator, arguments: &Value) -> Result<(), Refusal> {
    let problems: Vec<String> = schema
        .iter_errors(arguments)
        .take(MAX_ERRORS)
        .map(|error| {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "arguments".to_owned() } else { place };
            let problem: String = error.to_string().chars().take(MAX_ERROR_CHARS).collect();
            format!("{place}: {problem}")
        })
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    let message = format!("the arguments do not fit: {}", problems.join("; "));
    Err(refusal(RefusalCode::Arguments, message))
}

/// The nesting depth of a value. The JSON parser has a limit of its own, so the recursion is bounded.
fn depth(value: &Value) -> usize {
    let of = |values: &mut dyn Iterator<Item = &Value>| values.map(depth).max().unwrap_or(0) + 1;
    match value {
        Value::Array(values) => of(&mut values.iter()),
        Value::Object(fields) => of(&mut fields.values()),
        _ => 0,
    }
}

fn refusal(code: RefusalCode, message: String) -> Refusal {
    Refusal { code, message, retry_after_ms: None }
}

#[cfg(test)]
mod tests;
