//! Runs that are started by runs: maximum depth and number.

use sympozium_api::{AgentSpec, limits};

use super::RuleContext;
use super::violation::{Findings, violation};
use crate::policy::EffectivePolicy;

/// How many runs a run may start, and how deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubagentBounds {
    /// Levels below the first run.
    pub depth: u32,
    /// Concurrent runs in the whole tree.
    pub concurrent: u32,
    /// Runs that one run may start.
    pub children: u32,
}

/// The bounds that policy and agent leave. An agent without the section has the same bounds as one with an empty
/// section.
pub fn subagent_bounds(policy: &EffectivePolicy, agent: Option<&AgentSpec>) -> SubagentBounds {
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let agent = agent.and_then(|agent| agent.agents.default.subagents.clone());
    let agent = agent.unwrap_or_default();
    let least = |policy: Option<u32>, agent: i32, most: i32| {
        let own = number(agent).min(number(most));
        policy.map_or(own, |policy| policy.min(own))
    };
    SubagentBounds {
        depth: least(policy.max_depth, agent.max_depth, limits::DEPTH),
        concurrent: least(policy.max_concurrent, agent.max_concurrent, limits::CONCURRENCY),
        children: least(None, agent.max_children_per_agent, limits::DELEGATES as i32),
    }
}

/// Checks depth and number. Without a policy, the limits of the API apply.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    let Some(parent) = &case.run.spec.parent else {
        return;
    };
    let facts = &case.input.facts;
    let bounds = subagent_bounds(case.policy, Some(case.agent));
    let max_depth = bounds.depth;
    match u32::try_from(parent.spawn_depth) {
        Ok(0) | Err(_) => findings.deny(
            &case.subject,
            violation(
                "spec.parent.spawnDepth",
                "subagent-depth-false",
                format!("a run with a parent has at least one run above it, not {}", parent.spawn_depth),
                "leave `parent` to the gateway",
            ),
        ),
        Ok(depth) => {
            if depth > max_depth {
                findings.deny(
                    &case.subject,
                    violation(
                        "spec.parent.spawnDepth",
                        "subagent-depth",
                        format!("the run is {depth} levels below the first; at most {max_depth} are allowed"),
                        "do the work in fewer levels, or raise `maxDepth`",
                    ),
                );
            }
            if facts.parent_depth.is_some_and(|above| above.saturating_add(1) != depth) {
                findings.deny(
                    &case.subject,
                    violation(
                        "spec.parent.spawnDepth",
                        "subagent-depth-false",
                        format!(
                            "the parent's depth makes this one {}, not {depth}",
                            facts.parent_depth.unwrap_or(0).saturating_add(1)
                        ),
                        "leave `parent` to the gateway",
                    ),
                );
            }
        }
    }
    let max_concurrent = bounds.concurrent;
    if facts.runs_in_tree.is_some_and(|running| running >= max_concurrent) {
        findings.deny(
            &case.subject,
            violation(
                "spec.parent",
                "subagent-concurrency",
                format!(
                    "{} runs of the tree are going on; at most {max_concurrent} are allowed",
                    facts.runs_in_tree.unwrap_or(0)
                ),
                "wait until one has ended, or raise `maxConcurrent`",
            ),
        );
    }
    let max_children = bounds.children;
    if facts.siblings.is_some_and(|siblings| siblings >= max_children) {
        findings.deny(
            &case.subject,
            violation(
                "spec.parent",
                "subagent-children",
                format!(
                    "the parent has started {} runs; at most {max_children} are allowed",
                    facts.siblings.unwrap_or(0)
                ),
                "start fewer, or raise `subagents.maxChildrenPerAgent` of the agent",
            ),
        );
    }
}
