//! Which tools may be used, which not, and for which a person is asked.

use std::collections::{BTreeMap, BTreeSet};

use sympozium_api::Feature;
use sympozium_api::policy::{ToolAction, ToolGating};
use sympozium_api::run_plan;

/// The tool that runs commands in a sidecar.
pub const EXECUTE_COMMAND: &str = "execute_command";
/// The tool that reaches hosts.
pub const FETCH_URL: &str = "fetch_url";
/// The tool that goes by the event bus.
pub const SEND_CHANNEL_MESSAGE: &str = "send_channel_message";

/// The tool that reads a file.
pub const READ_FILE: &str = "read_file";
/// The tool that writes one.
pub const WRITE_FILE: &str = "write_file";
/// The tool that changes one.
pub const EDIT_FILE: &str = "edit_file";
/// The tool that lists a directory.
pub const LIST_DIRECTORY: &str = "list_directory";
/// The tool that keeps recurring tasks.
pub const SCHEDULE_TASK: &str = "schedule_task";
/// The tool that starts runs.
pub const SPAWN_SUBAGENTS: &str = "spawn_subagents";
/// The tool that reads the text of a skill.
pub const LOAD_SKILL: &str = "load_skill";

/// Tools that no pack may declare, with the feature that each belongs to.
pub const BUILT_IN: &[(&str, Option<Feature>)] = &[
    (EXECUTE_COMMAND, Some(Feature::CodeExecution)),
    (READ_FILE, Some(Feature::FileAccess)),
    (WRITE_FILE, Some(Feature::FileAccess)),
    (EDIT_FILE, Some(Feature::FileAccess)),
    (LIST_DIRECTORY, Some(Feature::FileAccess)),
    (FETCH_URL, None),
    (SEND_CHANNEL_MESSAGE, None),
    (SCHEDULE_TASK, None),
    (LOAD_SKILL, None),
    ("delegate_to_persona", Some(Feature::SubAgents)),
    (SPAWN_SUBAGENTS, Some(Feature::SubAgents)),
    ("memory_search", None),
    ("memory_store", None),
    ("memory_list", None),
    ("workflow_memory_search", None),
    ("workflow_memory_store", None),
    ("workflow_memory_list", None),
];

/// What becomes of a call, the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// It is refused.
    Deny,
    /// A person decides.
    Ask,
    /// It is made.
    Allow,
}

impl From<ToolAction> for Action {
    fn from(action: ToolAction) -> Self {
        match action {
            ToolAction::Allow => Self::Allow,
            ToolAction::Ask => Self::Ask,
            ToolAction::Deny => Self::Deny,
        }
    }
}

impl Action {
    /// The same in a plan.
    pub const fn gate(self) -> run_plan::Gate {
        match self {
            Self::Deny => run_plan::Gate::Deny,
            Self::Ask => run_plan::Gate::Ask,
            Self::Allow => run_plan::Gate::Allow,
        }
    }

    /// The stricter of two.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        self.min(other)
    }

    /// The word in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Ask => "ask",
            Self::Allow => "allow",
        }
    }
}

/// A tool of a run, as gates see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool<'a> {
    /// One that every run has.
    BuiltIn(&'a str),
    /// A command in the sidecar of a pack.
    Command {
        /// The pack.
        pack: &'a str,
    },
    /// One that a pack declares.
    Declared {
        /// The pack.
        pack: &'a str,
        /// Its name.
        name: &'a str,
    },
}

/// The gates of all policies that hold: what the strictest says is done. Without any, everything is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gates(BTreeSet<Gate>);

/// The rules of one policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Gate {
    default: Action,
    /// By `tool`, `pack/tool` or `pack/*`. Of two rules for one pattern the stricter is kept.
    rules: BTreeMap<String, Action>,
}

impl Gates {
    /// The gates of one policy; none when it has no such part.
    pub fn of(gating: Option<&ToolGating>) -> Self {
        Self(gating.map(Gate::of).into_iter().collect())
    }

    /// The gates of both.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).cloned().collect())
    }

    /// What becomes of a call of a tool.
    pub fn action(&self, tool: Tool<'_>) -> Action {
        let actions = self.0.iter().map(|gate| gate.action(tool));
        actions.reduce(Action::stricter).unwrap_or(Action::Allow)
    }

    /// What the rules say that name a tool and nothing else; the defaults do not count.
    pub fn written(&self, name: &str) -> Option<Action> {
        let rules = self.0.iter().filter_map(|gate| gate.rules.get(name));
        rules.copied().min()
    }

    /// Every pattern that a rule names.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|gate| gate.rules.keys().map(String::as_str))
    }
}

impl Gate {
    fn of(gating: &ToolGating) -> Self {
        let mut rules: BTreeMap<String, Action> = BTreeMap::new();
        for rule in &gating.rules {
            let action = Action::from(rule.action);
            let kept = rules.entry(rule.tool.as_str().to_owned()).or_insert(action);
            *kept = action.min(*kept);
        }
        // `*` is what holds for the rest, as the default is; being written out, it counts instead.
        let default = rules.remove("*").unwrap_or(gating.default_action.into());
        Self { default, rules }
    }

    fn action(&self, tool: Tool<'_>) -> Action {
        let own = match tool {
            Tool::BuiltIn(name) => self.rules.get(name).copied(),
            Tool::Command { pack } => self.rule_of_pack(pack, EXECUTE_COMMAND),
            // A tool of a sidecar is a command in it by another name.
            Tool::Declared { pack, name } => {
                self.rule_of_pack(pack, name).or_else(|| self.rule_of_pack(pack, EXECUTE_COMMAND))
            }
        };
        own.unwrap_or(self.default)
    }

    /// `pack/tool` decides alone; of `tool` and `pack/*`, neither of which is more exact, the stricter.
    fn rule_of_pack(&self, pack: &str, tool: &str) -> Option<Action> {
        let exact = self.rules.get(&format!("{pack}/{tool}"));
        let wider = || {
            let any_of_pack = self.rules.get(&format!("{pack}/*"));
            self.rules.get(tool).into_iter().chain(any_of_pack).min()
        };
        exact.or_else(wider).copied()
    }
}

#[cfg(test)]
mod tests {
    use sympozium_api::policy::ToolRule;

    use super::*;

    fn gates(default: ToolAction, rules: &[(&str, ToolAction)]) -> Gates {
        Gates::of(Some(&ToolGating {
            default_action: default,
            rules: rules.iter().map(|(tool, action)| ToolRule { tool: (*tool).into(), action: *action }).collect(),
        }))
    }

    #[test]
    fn the_most_exact_rule_decides() {
        use ToolAction::{Allow, Ask, Deny};
        let command = Tool::Command { pack: "p" };
        let declared = Tool::Declared { pack: "p", name: "t" };
        let fetch = Tool::BuiltIn(FETCH_URL);
        for (default, rules, tool, expected) in [
            (Allow, &[][..], fetch, Action::Allow),
            (Deny, &[], fetch, Action::Deny),
            (Deny, &[(FETCH_URL, Ask)], fetch, Action::Ask),
            (Deny, &[("*", Allow)], fetch, Action::Allow),
            (Allow, &[(FETCH_URL, Allow), (FETCH_URL, Deny)], fetch, Action::Deny),
            (Allow, &[(EXECUTE_COMMAND, Ask)], command, Action::Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask)], declared, Action::Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("t", Allow)], declared, Action::Allow),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/*", Allow)], declared, Action::Allow),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/*", Allow)], command, Action::Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/execute_command", Allow)], command, Action::Allow),
            (Allow, &[("t", Allow), ("p/*", Deny)], declared, Action::Deny),
            (Allow, &[("t", Deny), ("p/t", Ask)], declared, Action::Ask),
            (Allow, &[("q/*", Deny), ("q/t", Deny)], declared, Action::Allow),
            (Deny, &[(EXECUTE_COMMAND, Allow)], declared, Action::Allow),
            (Deny, &[("p/*", Allow)], fetch, Action::Deny),
        ] {
            assert_eq!(gates(default, rules).action(tool), expected, "{default:?} {rules:?} {tool:?}");
        }
        assert_eq!(Gates::default().action(command), Action::Allow);
    }

    #[test]
    fn of_several_policies_the_strictest_counts() {
        let asks = gates(ToolAction::Ask, &[("read_file", ToolAction::Allow)]);
        let denies = gates(ToolAction::Allow, &[("read_file", ToolAction::Deny)]);
        let both = asks.meet(&denies);
        assert_eq!(both.action(Tool::BuiltIn("read_file")), Action::Deny);
        assert_eq!(both.action(Tool::BuiltIn(FETCH_URL)), Action::Ask);
        assert_eq!(both, denies.meet(&asks));
        let names: BTreeSet<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), BUILT_IN.len());
    }
}
