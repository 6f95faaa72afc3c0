//! The gates of tools: which calls are allowed, which are denied, and which need approval.

use std::collections::{BTreeMap, BTreeSet};

use sympozium_api::builtin_tool::{BuiltinTool, EXECUTE_COMMAND};
use sympozium_api::policy::ToolGating;
use sympozium_api::run_plan::Gate;

use super::packs::PackId;

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
    default: Gate,
    /// By `tool`, `pack/tool`, `pack/*`, `namespace/pack/tool` or `namespace/pack/*`. Of two rules for one pattern, the
    /// stricter one is stored.
    rules: BTreeMap<String, Gate>,
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
    pub fn action(&self, tool: Tool<'_>) -> Gate {
        let actions = self.0.iter().map(|gate| gate.action(tool));
        actions.reduce(Gate::min).unwrap_or(Gate::Allow)
    }

    /// The decision of the rules that name exactly this tool; defaults do not count.
    pub fn explicit_action(&self, name: &str) -> Option<Gate> {
        let rules = self.0.iter().filter_map(|gate| gate.rules.get(name));
        rules.copied().min()
    }

    /// Every rule: its pattern, and its action.
    pub fn rules(&self) -> impl Iterator<Item = (&str, Gate)> {
        self.0.iter().flat_map(|gate| {
            let rules = gate.rules.iter();
            rules.map(|(pattern, action)| (pattern.as_str(), *action))
        })
    }
}

impl PolicyGates {
    fn from_policy(gating: &ToolGating) -> Self {
        let mut rules: BTreeMap<String, Gate> = BTreeMap::new();
        for rule in &gating.rules {
            let action = rule.action;
            let kept = rules.entry(rule.tool.as_str().to_owned()).or_insert(action);
            *kept = action.min(*kept);
        }
        // `*` applies to all other tools, as the default does; when it is written, it replaces the default.
        let default = rules.remove("*").unwrap_or(gating.default_action);
        Self { default, rules }
    }

    fn action(&self, tool: Tool<'_>) -> Gate {
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
        found.ceiling.map_or(action, |ceiling| action.min(ceiling))
    }

    /// The rules about a tool of a pack. The most specific pattern decides alone; of the others, none of which is more
    /// specific, the stricter.
    ///
    /// Any user can choose the name of a pack or of its tools, so a pattern without a namespace means packs of the
    /// system namespace. For other packs it only restricts.
    fn find(&self, pack: PackId<'_>, tool: &str) -> RuleMatch {
        let rule = |pattern: String| self.rules.get(&pattern).copied();
        let strictest = |rules: &[Option<Gate>]| rules.iter().flatten().min().copied();
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
        let is_ours = BuiltinTool::find(tool).is_some();
        let (given, taken) = if is_ours { (plain, None) } else { (None, plain) };
        RuleMatch { rule: strictest(&[given, any_by_namespace]), ceiling: strictest(&[taken, by_pack, any_by_pack]) }
    }
}

/// The result of the rules of one policy for a tool.
#[derive(Debug, Clone, Copy)]
struct RuleMatch {
    /// Replaces the default.
    rule: Option<Gate>,
    /// An upper bound of the action.
    ceiling: Option<Gate>,
}

impl RuleMatch {
    /// Falls back to the rule of another tool where none was found, and applies the bounds of both.
    fn or_else(&self, other: &Self) -> Self {
        Self { rule: self.rule.or(other.rule), ceiling: [self.ceiling, other.ceiling].into_iter().flatten().min() }
    }
}

#[cfg(test)]
mod tests {
    use sympozium_api::builtin_tool::FETCH_URL;
    use sympozium_api::policy::ToolRule;

    use super::*;

    fn gates(default: Gate, rules: &[(&str, Gate)]) -> Gates {
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
        use Gate::{Allow, Ask, Deny};
        type Row<'r> = (Gate, &'r [(&'r str, Gate)], Gate, Gate);
        let rules: &[Row<'_>] = &[
            // The rules, the action for `t` of the system's pack, and for the pack of that name in another namespace.
            (Deny, &[("p/*", Allow)], Allow, Deny),
            (Deny, &[("p/t", Allow)], Allow, Deny),
            (Deny, &[("p/t", Ask)], Ask, Deny),
            (Deny, &[("t", Allow)], Allow, Deny),
            (Deny, &[("execute_command", Ask)], Ask, Ask),
            (Allow, &[("execute_command", Ask), ("p/*", Allow)], Allow, Ask),
            (Allow, &[("execute_command", Ask), ("t", Allow)], Allow, Ask),
            (Allow, &[("p/*", Deny), ("p/t", Allow)], Allow, Deny),
            (Allow, &[("p/execute_command", Deny), ("p/t", Allow)], Allow, Deny),
            // Rules that restrict apply to both.
            (Allow, &[("p/*", Deny)], Deny, Deny),
            (Allow, &[("p/t", Ask)], Ask, Ask),
            (Allow, &[("t", Deny)], Deny, Deny),
            (Allow, &[("p/execute_command", Ask)], Ask, Ask),
            // With a namespace a rule means one of them.
            (Deny, &[("team/p/*", Allow)], Deny, Allow),
            (Deny, &[("team/p/t", Allow)], Deny, Allow),
            (Deny, &[("sympozium-system/p/t", Allow)], Allow, Deny),
            (Deny, &[("other/p/*", Allow), ("team/q/*", Allow)], Deny, Deny),
            (Allow, &[("team/p/*", Deny)], Allow, Deny),
            (Allow, &[("p/*", Deny), ("team/p/t", Allow)], Deny, Allow),
            (Allow, &[("p/t", Deny), ("team/p/*", Allow)], Deny, Deny),
            (Allow, &[("execute_command", Ask), ("team/p/*", Allow)], Ask, Allow),
            (Deny, &[("p/t", Allow), ("sympozium-system/p/t", Ask)], Ask, Deny),
        ];
        for (default, rules, of_system, of_team) in rules {
            let action = |pack| gates(*default, rules).action(Tool::Declared { pack, name: "t" });
            assert_eq!(action(SYSTEM), *of_system, "{default:?} {rules:?}, of the system");
            assert_eq!(action(TEAM), *of_team, "{default:?} {rules:?}, of a team");
        }
        let commands = gates(Deny, &[("p/execute_command", Allow)]);
        assert_eq!(commands.action(Tool::Command { pack: SYSTEM }), Allow);
        assert_eq!(commands.action(Tool::Command { pack: TEAM }), Deny);
        let commands = gates(Deny, &[("team/p/execute_command", Allow)]);
        assert_eq!(commands.action(Tool::Command { pack: TEAM }), Allow);
    }

    #[test]
    fn the_most_exact_rule_decides() {
        use Gate::{Allow, Ask, Deny};
        let command = Tool::Command { pack: SYSTEM };
        let declared = Tool::Declared { pack: SYSTEM, name: "t" };
        let fetch = Tool::BuiltIn(FETCH_URL);
        for (default, rules, tool, expected) in [
            (Allow, &[][..], fetch, Allow),
            (Deny, &[], fetch, Deny),
            (Deny, &[(FETCH_URL, Ask)], fetch, Ask),
            (Deny, &[("*", Allow)], fetch, Allow),
            (Allow, &[(FETCH_URL, Allow), (FETCH_URL, Deny)], fetch, Deny),
            (Allow, &[(EXECUTE_COMMAND, Ask)], command, Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask)], declared, Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("t", Allow)], declared, Allow),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/*", Allow)], declared, Allow),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/*", Allow)], command, Ask),
            (Allow, &[(EXECUTE_COMMAND, Ask), ("p/execute_command", Allow)], command, Allow),
            (Allow, &[("t", Allow), ("p/*", Deny)], declared, Deny),
            (Allow, &[("t", Deny), ("p/t", Ask)], declared, Ask),
            (Allow, &[("q/*", Deny), ("q/t", Deny)], declared, Allow),
            (Deny, &[(EXECUTE_COMMAND, Allow)], declared, Allow),
            (Deny, &[("p/*", Allow)], fetch, Deny),
        ] {
            assert_eq!(gates(default, rules).action(tool), expected, "{default:?} {rules:?} {tool:?}");
        }
        assert_eq!(Gates::default().action(command), Allow);
    }

    #[test]
    fn of_several_policies_the_strictest_counts() {
        let asks = gates(Gate::Ask, &[("read_file", Gate::Allow)]);
        let denies = gates(Gate::Allow, &[("read_file", Gate::Deny)]);
        let both = asks.meet(&denies);
        assert_eq!(both.action(Tool::BuiltIn("read_file")), Gate::Deny);
        assert_eq!(both.action(Tool::BuiltIn(FETCH_URL)), Gate::Ask);
        assert_eq!(both, denies.meet(&asks));
    }
}
