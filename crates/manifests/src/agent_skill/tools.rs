//! `allowed-tools`: maps the tool names of other agents to ours.
//!
//! The list only restricts. Unknown names are omitted, which restricts further; nothing here can allow a tool.

use sympozium_api::builtin_tool::{
    BuiltinTool, EDIT_FILE, EXECUTE_COMMAND, FETCH_URL, LIST_DIRECTORY, READ_FILE, WRITE_FILE,
};
use sympozium_api::names::ToolPattern;
use sympozium_api::text::quote;

use super::super::problem::Problem;
use super::super::tree::{Mark, Node, Value};
use super::limits::MAX_TOOLS;

/// The names that other agents have for tools. Case does not matter.
const TOOL_ALIASES: &[(&str, &str)] = &[
    ("bash", EXECUTE_COMMAND),
    ("shell", EXECUTE_COMMAND),
    ("read", READ_FILE),
    ("write", WRITE_FILE),
    ("edit", EDIT_FILE),
    ("multiedit", EDIT_FILE),
    ("glob", LIST_DIRECTORY),
    ("ls", LIST_DIRECTORY),
    ("webfetch", FETCH_URL),
];

/// A tool that the skill may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedTool {
    /// Commands in the sidecar of the skill's own pack, whose name is not known yet.
    OwnCommands,
    /// A pattern in our own form.
    Pattern(String),
}

/// The tools that the value of `allowed-tools` names, each once, in its order.
pub fn read(value: &Node) -> (Vec<AllowedTool>, Vec<Problem>) {
    let mut reading = ToolsReader { tools: Vec::new(), problems: Vec::new(), is_full: false };
    match &value.value {
        Value::Text(text) => reading.add_text(text, value.at),
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Text(text) => reading.add_text(text, item.at),
                    other => reading.warn_type(other.type_name(), item.at),
                }
            }
        }
        Value::Null => {}
        other => reading.warn_type(other.type_name(), value.at),
    }
    if reading.tools.is_empty() {
        let message = "`allowed-tools` leaves no tool: the agent can only read the skill";
        let problem = Problem::warning("allowed-tools", value.at, message);
        reading.problems.push(problem.with_hint("name tools, as in `allowed-tools: Bash Read`, or omit the field"));
    }
    (reading.tools, reading.problems)
}

struct ToolsReader {
    tools: Vec<AllowedTool>,
    problems: Vec<Problem>,
    is_full: bool,
}

impl ToolsReader {
    fn add_text(&mut self, text: &str, at: Mark) {
        for word in split_words(text) {
            if self.tools.len() >= MAX_TOOLS || self.problems.len() >= MAX_TOOLS {
                return self.warn_too_long(at);
            }
            self.add_word(word, at);
        }
    }

    fn add_word(&mut self, word: &str, at: Mark) {
        let (name, pattern) = match word.split_once('(') {
            Some((name, pattern)) => (name, Some(pattern)),
            None => (word, None),
        };
        let Some(tool) = resolve_tool(name) else {
            let message = format!("there is no tool {}; it is omitted", quote(name));
            let problem = Problem::warning("allowed-tools", at, message);
            self.problems.push(problem.with_hint(
                "the tools are Bash, Read, Write, Edit, Glob, LS, WebFetch, and those of Sympozium by name: `read_file`, `pack/tool`",
            ));
            return;
        };
        if let Some(pattern) = pattern {
            self.warn_about_pattern(word, pattern, &tool, at);
        }
        if !self.tools.contains(&tool) {
            self.tools.push(tool);
        }
    }

    fn warn_about_pattern(&mut self, word: &str, pattern: &str, tool: &AllowedTool, at: Mark) {
        let inner = pattern.strip_suffix(')').unwrap_or(pattern);
        let (message, hint) = match tool {
            AllowedTool::OwnCommands => (
                format!(
                    "{} allows every command: {} cannot be enforced for shell command lines",
                    quote(word),
                    quote(inner)
                ),
                "declare the program as a tool of the pack (`spec.sidecar.tools`), or use a policy with `ask` for `execute_command`",
            ),
            AllowedTool::Pattern(name) => (
                format!("{} allows all of `{name}`: {} is not enforced", quote(word), quote(inner)),
                "use a policy with `ask` for the tool, or omit it",
            ),
        };
        self.problems.push(Problem::warning("allowed-tools-pattern", at, message).with_hint(hint));
    }

    fn warn_type(&mut self, kind: &str, at: Mark) {
        if self.problems.len() >= MAX_TOOLS {
            return self.warn_too_long(at);
        }
        let message = format!("`allowed-tools` must be a string, not {kind}; this is omitted");
        self.problems.push(
            Problem::warning("allowed-tools", at, message)
                .with_hint("separate the names by spaces, as in `allowed-tools: Bash Read`"),
        );
    }

    fn warn_too_long(&mut self, at: Mark) {
        if !std::mem::replace(&mut self.is_full, true) {
            let message = format!("`allowed-tools` has more than {MAX_TOOLS} names; the others are omitted");
            self.problems.push(Problem::warning("allowed-tools", at, message).with_hint("name each tool once"));
        }
    }
}

/// The tool that a name means. A command always runs in the skill's own sidecar, so that its scripts run nowhere else.
fn resolve_tool(name: &str) -> Option<AllowedTool> {
    let usual = TOOL_ALIASES.iter().find(|(alias, _)| name.eq_ignore_ascii_case(alias));
    let name = usual.map_or(name, |(_, ours)| *ours);
    if name == EXECUTE_COMMAND {
        return Some(AllowedTool::OwnCommands);
    }
    let is_ours = BuiltinTool::find(name).is_some();
    let is_of_pack = name.contains('/') && ToolPattern::new(name).check().is_ok();
    (is_ours || is_of_pack).then(|| AllowedTool::Pattern(name.to_owned()))
}

/// Words separated by spaces and commas, except within brackets, as in `Bash(git add:*, jq)`.
fn split_words(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let is_between = move |character: char| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && (character.is_whitespace() || character == ',')
    };
    text.split(is_between).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Node {
        Node { at: Mark { line: 4, column: 16 }, value: Value::Text(text.to_owned()) }
    }

    /// The tools, and the rules of the problems, as words.
    fn read_words(node: &Node) -> (String, String) {
        let (tools, problems) = read(node);
        let tools: Vec<&str> = tools
            .iter()
            .map(|tool| match tool {
                AllowedTool::OwnCommands => "OWN",
                AllowedTool::Pattern(pattern) => pattern,
            })
            .collect();
        let rules: Vec<&str> = problems.iter().map(|problem| problem.rule).collect();
        (tools.join(" "), rules.join(" "))
    }

    #[test]
    fn names_of_other_agents_are_mapped() {
        for (typed, tools, rules) in [
            ("Bash Read", "OWN read_file", ""),
            ("bash,Read,  Write", "OWN read_file write_file", ""),
            ("Edit MultiEdit Glob LS WebFetch", "edit_file list_directory fetch_url", ""),
            ("execute_command shell", "OWN", ""),
            ("memory_store k8s-ops/execute_command other/*", "memory_store k8s-ops/execute_command other/*", ""),
            ("Bash(git:*) Bash(jq:*) Read", "OWN read_file", "allowed-tools-pattern allowed-tools-pattern"),
            ("Bash(git add:*, git commit:*)", "OWN", "allowed-tools-pattern"),
            ("Read(./docs/**)", "read_file", "allowed-tools-pattern"),
            ("Bash(", "OWN", "allowed-tools-pattern"),
            ("Grep Read", "read_file", "allowed-tools"),
            ("WebSearch mcp__github__search *", "", "allowed-tools allowed-tools allowed-tools allowed-tools"),
            ("a/b/c a/b/* Read", "a/b/c a/b/* read_file", ""),
            ("a/b/c/d a//c Read", "read_file", "allowed-tools allowed-tools"),
            ("", "", "allowed-tools"),
            (") ) Read", "read_file", "allowed-tools allowed-tools"),
        ] {
            assert_eq!(read_words(&text(typed)), (tools.to_owned(), rules.to_owned()), "{typed}");
        }
    }

    #[test]
    fn lists_are_accepted_and_other_values_omitted() {
        let list = Node {
            at: Mark::START,
            value: Value::List(vec![text("Read"), text("Bash Write"), Node { at: Mark::START, value: Value::Null }]),
        };
        assert_eq!(read_words(&list), ("read_file OWN write_file".to_owned(), "allowed-tools".to_owned()));
        for value in [Value::Null, Value::Bool(true), Value::Map(Vec::new())] {
            let (tools, problems) = read(&Node { at: Mark::START, value });
            assert_eq!(tools, []);
            assert!(!problems.is_empty());
        }
    }

    #[test]
    fn the_warning_about_patterns_has_a_hint() {
        let (_, problems) = read(&text("Bash(git:*)"));
        let [problem] = problems.try_into().unwrap();
        assert_eq!(problem.at, Mark { line: 4, column: 16 });
        assert_eq!(
            problem.message,
            "`Bash(git:*)` allows every command: `git:*` cannot be enforced for shell command lines"
        );
        assert!(problem.hint.unwrap().contains("spec.sidecar.tools"));
    }

    #[test]
    fn a_long_list_is_truncated() {
        let many: String = (0..10_000).map(|number| format!("pack/tool{number} ")).collect();
        let (tools, problems) = read(&text(&many));
        assert_eq!((tools.len(), problems.len()), (MAX_TOOLS, 1));
        let unknown = "x ".repeat(10_000);
        let (tools, problems) = read(&text(&unknown));
        assert_eq!((tools.len(), problems.len()), (0, MAX_TOOLS + 2));
    }
}
