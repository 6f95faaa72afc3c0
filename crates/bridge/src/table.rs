//! The tool table of a plan, ready to be asked.

use std::collections::BTreeMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{Gate, SANDBOX, ToolPlan};
use sympozium_ipc::door::{Refusal, RefusalCode};

/// The tool that takes command lines, once for each pack.
const EXECUTE_COMMAND: &str = "execute_command";
/// The argument that says which pack.
const TARGET: &str = "target";
/// Problems of arguments that the model is told at once.
const MAX_PROBLEMS: usize = 8;
/// Most characters of such a problem.
const MAX_PROBLEM: usize = 300;
/// Steps that a pattern of a schema may go back in a text: a pack's pattern and a model's text together must not stop the
/// bridge. A text that needs more does not fit.
const MAX_BACKTRACKS: usize = 20_000;
/// Most levels of arrays and objects in arguments.
pub const MAX_DEPTH: usize = 32;

/// Every tool of a run.
pub struct Table {
    tools: Vec<Tool>,
}

/// One of them.
pub struct Tool {
    /// What the plan says.
    pub plan: ToolPlan,
    schema: Validator,
}

/// Why a plan's table cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the schema of tool `{tool}` is none: {why}")]
pub struct UnusableSchema {
    /// The tool.
    pub tool: String,
    /// What is wrong with its schema.
    pub why: String,
}

/// A call that may go on: gate, schema and target are in order.
pub struct Found<'t> {
    /// Which tool, by its place in the table.
    pub index: usize,
    /// The tool.
    pub tool: &'t ToolPlan,
    /// The arguments without the target, which is decided.
    pub arguments: Value,
}

impl Table {
    /// Makes the table of a plan. Every schema is read here, so that a bad one ends the run before anything is called.
    ///
    /// # Errors
    ///
    /// When a schema is none.
    pub fn new(plan: &RunPlan) -> Result<Self, UnusableSchema> {
        Self::of(&plan.tools)
    }

    /// The same, of these tools.
    pub(crate) fn of(tools: &[ToolPlan]) -> Result<Self, UnusableSchema> {
        let tool = |tool: &ToolPlan| {
            let schema = Value::Object(tool.parameters.0.clone().into_iter().collect());
            let patterns = PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS);
            let reader = jsonschema::options().with_pattern_options(patterns);
            let schema = reader
                .build(&schema)
                .map_err(|error| UnusableSchema { tool: tool.name.clone(), why: error.to_string() })?;
            Ok(Tool { plan: tool.clone(), schema })
        };
        let tools: Result<Vec<Tool>, UnusableSchema> = tools.iter().map(tool).collect();
        Ok(Self { tools: tools? })
    }

    /// Looks a call up. Nothing has happened when this refuses; what it finds may still have to be asked about.
    ///
    /// `active` is the pack of the skill that the agent reads, where there is one.
    ///
    /// # Errors
    ///
    /// With what the model is told.
    pub fn look_up(&self, name: &str, mut arguments: Value, active: Option<&str>) -> Result<Found<'_>, Refusal> {
        let mut named: Vec<usize> =
            (0..self.tools.len()).filter(|index| self.tools[*index].plan.name == name).collect();
        if named.is_empty() {
            return Err(refusal(RefusalCode::UnknownTool, format!("there is no tool `{}`", shown(name))));
        }
        // Which one is denied is not told where others of the name are open.
        named.retain(|index| self.tools[*index].plan.gate != Gate::Deny);
        if named.is_empty() {
            return Err(refusal(RefusalCode::Denied, format!("the tool `{}` is denied by policy", shown(name))));
        }
        if depth(&arguments) > MAX_DEPTH {
            let message = format!("the arguments are nested more than {MAX_DEPTH} deep");
            return Err(refusal(RefusalCode::Arguments, message));
        }
        let index = match name {
            EXECUTE_COMMAND => self.target(&named, &mut arguments, active)?,
            _ => named[0],
        };
        let tool = &self.tools[index];
        check(&tool.schema, &arguments)?;
        Ok(Found { index, tool: &tool.plan, arguments })
    }

    /// Which pack runs a command line: the one that is named, the sandbox where there is one, the only one, the one of the
    /// skill that is being read.
    fn target(&self, named: &[usize], arguments: &mut Value, active: Option<&str>) -> Result<usize, Refusal> {
        let packs: BTreeMap<&str, usize> =
            named.iter().filter_map(|index| Some((self.tools[*index].plan.pack.as_deref()?, *index))).collect();
        let written = arguments.as_object_mut().and_then(|arguments| arguments.remove(TARGET));
        let written = match written {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => normalised(&text),
            Some(_) => {
                let message = format!("`{TARGET}` is the name of a skill pack");
                return Err(refusal(RefusalCode::Arguments, message));
            }
        };
        let list = || packs.keys().copied().collect::<Vec<_>>().join(", ");
        if !written.is_empty() {
            let found = packs.iter().find(|(pack, _)| normalised(pack) == written);
            return found.map(|(_, index)| *index).ok_or_else(|| {
                let message = format!("no skill pack `{}` runs commands here; there are: {}", shown(&written), list());
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

/// As sidecars compare targets: in lower case, without any white space.
fn normalised(target: &str) -> String {
    let letters = target.chars().filter(|letter| !letter.is_whitespace());
    letters.flat_map(char::to_lowercase).collect()
}

fn check(schema: &Validator, arguments: &Value) -> Result<(), Refusal> {
    let problems: Vec<String> = schema
        .iter_errors(arguments)
        .take(MAX_PROBLEMS)
        .map(|error| {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "arguments".to_owned() } else { place };
            let problem: String = error.to_string().chars().take(MAX_PROBLEM).collect();
            format!("{place}: {problem}")
        })
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    let message = format!("the arguments do not fit: {}", problems.join("; "));
    Err(refusal(RefusalCode::Arguments, message))
}

/// How deep a value is nested. The reader of the request has a bound of its own, so this ends.
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

fn shown(text: &str) -> String {
    sympozium_ipc::receipt::shortened(text)
}

#[cfg(test)]
mod tests;
