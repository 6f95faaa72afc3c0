//! The gates of tools: which calls are allowed, which are denied, and which need approval.

use std::collections::{BTreeMap, BTreeSet};

use sympozium_api::Feature;
use sympozium_api::policy::{ToolAction, ToolGating};
use sympozium_api::run_plan;

use super::packs::PackId;

/// Runs a command in a sidecar.
pub const EXECUTE_COMMAND: &str = "execute_command";
/// Fetches a page from the network.
pub const FETCH_URL: &str = "fetch_url";
/// Sends a message over the event bus.
pub const SEND_CHANNEL_MESSAGE: &str = "send_channel_message";

/// Reads a file.
pub const READ_FILE: &str = "read_file";
/// Writes a file.
pub const WRITE_FILE: &str = "write_file";
/// Edits a file.
pub const EDIT_FILE: &str = "edit_file";
/// Lists a directory.
pub const LIST_DIRECTORY: &str = "list_directory";
/// Manages recurring tasks.
pub const SCHEDULE_TASK: &str = "schedule_task";
/// Starts runs below this one.
pub const SPAWN_SUBAGENTS: &str = "spawn_subagents";
/// Reads the text of a skill.
pub const LOAD_SKILL: &str = "load_skill";

/// Tools that no pack may declare, with the feature that each belongs to.
pub const BUILT_IN_TOOLS: &[(&str, Option<Feature>)] = &[
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

/// The decision about a call, the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GateAction {
    /// The call is refused.
    Deny,
    /// An approver decides.
    Ask,
    /// The call is dispatched.
    Allow,
}

impl From<ToolAction> for GateAction {
    fn from(action: ToolAction) -> Self {
        match action {
            ToolAction::Allow => Self::Allow,
            ToolAction::Ask => Self::Ask,
            ToolAction::Deny => Self::Deny,
        }
    }
}

impl GateAction {
    /// The same as the gate of a plan.
    pub const fn to_gate(self) -> run_plan::Gate {
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

/// A tool of a run, as the rules of a policy match it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool<'a> {
    /// A tool that every run has.
    BuiltIn(&'a str),
    /// A command in the sidecar of a pack.
    Command {
        /// The pack of the sidecar.
        pack: PackId<'a>,
    },
    /// A tool that a pack declares.
    Declared {
        /// The pack that declares it.
        pack: PackId<'a>,
        /// The name of the tool.
        name: &'a str,
    },
}

/// The gates of all policies that apply: the strictest decides. Without any, everything is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gates(BTreeSet<PolicyGates>);

/// The rules of one policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PolicyGates {
    default: GateAction,
    /// By `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`. Of two rules for one pattern, the
    /// stricter one is stored.
    rules: BTreeMap<String, GateAction>,
}

impl Gates {
    /// The gates of one policy; none when it has no such section.
    pub fn from_policy(gating: Option<&ToolGating>) -> Self {
        Self(gating.map(PolicyGates::from_policy).into_iter().collect())
    }

    /// The gates of both.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).cloned().collect())
    }

    /// The decision about calls of a tool.
    pub fn action(&self, tool: Tool<'_>) -> GateAction {
        let actions = self.0.iter().map(|gate| gate.action(tool));
        actions.reduce(GateAction::stricter).unwrap_or(GateAction::Allow)
    }

    /// The decision of the rules that name exactly this tool; defaults do not count.
    pub fn explicit_action(&self, name: &str) -> Option<GateAction> {
        let rules = self.0.iter().filter_map(|gate| gate.rules.get(name));
        rules.copied().min()
    }

    /// Every rule: its pattern, and its action.
    pub fn rules(&self) -> impl Iterator<Item = (&str, GateAction)> {
        self.0.iter().flat_map(|gate| {
            let rules = gate.rules.iter();
            rules.map(|(pattern, action)| (pattern.as_str(), *action))
        })
    }
}

impl PolicyGates {
    fn from_policy(gating: &ToolGating) -> Self {
        let mut rules: BTreeMap<String, GateAction> = BTreeMap::new();
        for rule in &gating.rules {
            let action = GateAction::from(rule.action);
            let kept = rules.entry(rule.tool.as_str().to_owned()).or_insert(action);
            *kept = action.min(*kept);
        }
        // `*` applies to all other tools, as the default does; when it is written, it replaces the default.
        let default = rules.remove("*").unwrap_or(gating.default_action.into());
        Self { default, rules }
    }

    fn action(&self, tool: Tool<'_>) -> GateAction {
        let found = match tool {
            Tool::BuiltIn(name) => RuleMatch { rule: self.rules.get(name).copied(), ceiling: None },
            Tool::Command { pack } => self.find(pack, EXECUTE_COMMAND),
            // A declared tool of a sidecar is a command in it by another name.
            Tool::Declared { pack, name } => {
                let found = self.find(pack, name);
                match found.rule {
                    Some(_) => found,
                    None => found.or_else(&self.find(pack, EXECUTE_COMMAND)),
                }
            }
        };
        let action = found.rule.unwrap_or(self.default);
        found.ceiling.map_or(action, |it| action.stricter(it))
    }

    /// The rules about a tool of a pack. The most specific pattern decides alone; of the others, none of which is more
    /// specific, the stricter.
    ///
    /// Any user can choose the name of a pack or of its tools, so a pattern without a namespace means packs of the
    /// system namespace. For other packs it only restricts.
    fn find(&self, pack: PackId<'_>, tool: &str) -> RuleMatch {
        let rule = |pattern: String| self.rules.get(&pattern).copied();
        let strictest = |rules: &[Option<GateAction>]| rules.iter().flatten().min().copied();
        let by_namespace = rule(format!("{pack}/{tool}"));
        let any_by_namespace = rule(format!("{pack}/*"));
        let by_pack = rule(format!("{}/{tool}", pack.name));
        let any_by_pack = rule(format!("{}/*", pack.name));
        let plain = rule(tool.to_owned());
        if pack.is_system {
            let exact = strictest(&[by_namespace, by_pack]);
            return RuleMatch {
                rule: exact.or_else(|| strictest(&[plain, any_by_namespace, any_by_pack])),
                ceiling: None,
            };
        }
        if by_namespace.is_some() {
            return RuleMatch { rule: by_namespace, ceiling: None };
        }
        let is_ours = BUILT_IN_TOOLS.iter().any(|(name, _)| *name == tool);
        let (given, taken) = if is_ours { (plain, None) } else { (None, plain) };
        RuleMatch { rule: strictest(&[given, any_by_namespace]), ceiling: strictest(&[taken, by_pack, any_by_pack]) }
    }
}

/// The result of the rules of one policy for a tool.
#[derive(Debug, Clone, Copy)]
struct RuleMatch {
    /// Replaces the default.
    rule: Option<GateAction>,
    /// An upper bound of the action.
    ceiling: Option<GateAction>,
}

impl RuleMatch {
    /// Falls back to the rule of another tool where none was found, and applies the bounds of both.
    fn or_else(&self, other: &Self) -> Self {
        Self { rule: self.rule.or(other.rule), ceiling: [self.ceiling, other.ceiling].into_iter().flatten().min() }
    }
}

#[cfg(test)]
mod tests {
    use sympozium_api::policy::ToolRule;

    use super::*;

    fn gates(default: ToolAction, rules: &[(&str, ToolAction)]) -> Gates {
        Gates::from_policy(Some(&ToolGating {
            default_action: default,
            rules: rules.iter().map(|(tool, action)| ToolRule { tool: (*tool).into(), action: *action }).collect(),
        }))
    }

    const SYSTEM: PackId<'_> = PackId { namespace: "sympozium-system", name: "p", is_system: true };
    const TEAM: PackId<'_> = PackId { namespace: "team", name: "p", is_system: false };

    /// Users who may write packs in a namespace can give a pack, and its tools, any name.
    #[test]
    fn names_without_a_namespace_give_nothing_to_packs_from_elsewhere() {
        use ToolAction::{Allow, Ask, Deny};
        type Row<'r> = (ToolAction, &'r [(&'r str, ToolAction)], GateAction, GateAction);
        let rules: &[Row<'_>] = &[
            // The rules, the action for `t` of the system's pack, and for the pack of that name in another namespace.
            (Deny, &[("p/*", Allow)], GateAction::Allow, GateAction::Deny),
            (Deny, &[("p/t", Allow)], GateAction::Allow, GateAction::Deny),
            (Deny, &[("p/t", Ask)], GateAction::Ask, GateAction::Deny),
            (Deny, &[("t", Allow)], GateAction::Allow, GateAction::Deny),
            (Deny, &[("execute_command", Ask)], GateAction::Ask, GateAction::Ask),
            (Allow, &[("execute_command", Ask), ("p/*", Allow)], GateAction::Allow, GateAction::Ask),
            (Allow, &[("execute_command", Ask), ("t", Allow)], GateAction::Allow, GateAction::Ask),
            (Allow, &[("p/*", Deny), ("p/t", Allow)], GateAction::Allow, GateAction::Deny),
            (Allow, &[("p/execute_command", Deny), ("p/t", Allow)], GateAction::Allow, GateAction::Deny),
            // Rules that restrict apply to both.
            (Allow, &[("p/*", Deny)], GateAction::Deny, GateAction::Deny),
            (Allow, &[("p/t", Ask)], GateAction::Ask, GateAction::Ask),
            (Allow, &[("t", Deny)], GateAction::Deny, GateAction::Deny),
            (Allow, &[("p/execute_command", Ask)], GateAction::Ask, GateAction::Ask),
            // With a namespace a rule means one of them.
            (Deny, &[("team/p/*", Allow)], GateAction::Deny, GateAction::Allow),
            (Deny, &[("team/p/t", Allow)], GateAction::Deny, GateAction::Allow),
            (Deny, &[("sympozium-system/p/t", Allow)], GateAction::Allow, GateAction::Deny),
            (Deny, &[("other/p/*", Allow), ("team/q/*", Allow)], GateAction::Deny, GateAction::Deny),
            (Allow, &[("team/p/*", Deny)], GateAction::Allow, GateAction::Deny),
            (Allow, &[("p/*", Deny), ("team/p/t", Allow)], GateAction::Deny, GateAction::Allow),
            (Allow, &[("p/t", Deny), ("team/p/*", Allow)], GateAction::Deny, GateAction::Deny),
            (Allow, &[("execute_command", Ask), ("team/p/*", Allow)], GateAction::Ask, GateAction::Allow),
            (Deny, &[("p/t", Allow), ("sympozium-system/p/t", Ask)], GateAction::Ask, GateAction::Deny),
        ];
        for (default, rules, of_system, of_team) in rules {
            let action = |pack| gates(*default, rules).action(Tool::Declared { pack, name: "t" });
            assert_eq!(action(SYSTEM), *of_system, "{default:?} {rules:?}, of the system");
            assert_eq!(action(TEAM), *of_team, "{default:?} {rules:?}, of a team");
        }
        let commands = gates(Deny, &[("p/execute_command", Allow)]);
        assert_eq!(commands.action(Tool::Command { pack: SYSTEM }), GateAction::Allow);
        assert_eq!(commands.action(Tool::Command { pack: TEAM }), GateAction::Deny);
        let commands = gates(Deny, &[("team/p/execute_command", Allow)]);
        assert_eq!(commands.action(Tool::Command { pack: TEAM }), GateAction::Allow);
    }

    #[test]
    fn the_most_exact_rule_decides() {
        use ToolAction::{Allow, Ask, Deny};
        let command = Tool::Command { pack: SYSTEM };
        let declared = Tool::Declared { pack: SYSTEM, name: "t" };
        let fetch = Tool::BuiltIn(FETCH_URL);
        for (default, rules, tool, expected) in [
            (Allow, &[][..], fetch, GateAction::Allow),
            (Deny, &[], fetch, GateAction::Deny),
            (Deny, &[(FETCH_URL, Ask)], fetch, GateAction::Ask),
            (Deny, &[("*", Allow)], fetch, GateAction::Allow),
            (Allow, &[(FETCH_URL, Allow), (FETCH_URL, Deny)], fetch, GateAction::Deny),
            (Allow, &[(EXECUTE_COMMAND, Ask)], command, GateAction::Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask)], declared, GateAction::Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("t", Allow)], declared, GateAction::Allow),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/*", Allow)], declared, GateAction::Allow),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/*", Allow)], command, GateAction::Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/execute_command", Allow)], command, GateAction::Allow),
            (Allow, &[("t", Allow), ("p/*", Deny)], declared, GateAction::Deny),
            (Allow, &[("t", Deny), ("p/t", Ask)], declared, GateAction::Ask),
            (Allow, &[("q/*", Deny), ("q/t", Deny)], declared, GateAction::Allow),
            (Deny, &[(EXECUTE_COMMAND, Allow)], declared, GateAction::Allow),
            (Deny, &[("p/*", Allow)], fetch, GateAction::Deny),
        ] {
            assert_eq!(gates(default, rules).action(tool), expected, "{default:?} {rules:?} {tool:?}");
        }
        assert_eq!(Gates::default().action(command), GateAction::Allow);
    }

    #[test]
    fn of_several_policies_the_strictest_counts() {
        let asks = gates(ToolAction::Ask, &[("read_file", ToolAction::Allow)]);
        let denies = gates(ToolAction::Allow, &[("read_file", ToolAction::Deny)]);
        let both = asks.meet(&denies);
        assert_eq!(both.action(Tool::BuiltIn("read_file")), GateAction::Deny);
        assert_eq!(both.action(Tool::BuiltIn(FETCH_URL)), GateAction::Ask);
        assert_eq!(both, denies.meet(&asks));
        let names: BTreeSet<&str> = BUILT_IN_TOOLS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), BUILT_IN_TOOLS.len());
    }
}
