//! Rules of a policy that may not mean what their author meant.

use sympozium_api::text::{MAX_NAME, printable, quote, truncate};

use super::RuleContext;
use super::tools::{ToolDecision, matches_pattern, pack_namespace};
use super::unused_fields::policy_subject;
use super::violation::{Findings, violation};
use sympozium_api::builtin_tool::{BuiltinTool, EXECUTE_COMMAND};

use crate::policy::packs::PackId;
use crate::policy::tools::Tool;

/// Warns about rules that would allow more, but only for a pack of the same name in the system namespace.
pub fn warn_about_other_packs(case: &RuleContext<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let is_ours = |name: &str| BuiltinTool::find(name).is_some();
    for (pattern, action) in case.policy.gates.rules() {
        if pattern.matches('/').count() > 1 || pattern == "*" || is_ours(pattern) {
            continue;
        }
        let mut about = tools.iter().filter(|tool| matches_pattern(case, pattern, tool));
        let held = about.find(|tool| tool.action < action && is_limited_by_origin(case, tool));
        let Some((tool, namespace)) = held.and_then(|tool| Some((tool, pack_namespace(case, tool)?))) else {
            continue;
        };
        let pack = tool.pack.as_deref().unwrap_or_default();
        let name = match pattern.split_once('/') {
            Some((_, name)) => name,
            None => pattern,
        };
        let shown = printable(truncate(pattern, MAX_NAME));
        let qualified = format!("{namespace}/{pack}/{name}");
        findings.warn(
            &policy_subject(case),
            violation(
                "spec.toolGating.rules",
                "tool-rule-elsewhere",
                format!(
                    "the rule `{shown}: {}` is for packs of the system namespace; pack {} is of namespace {}",
                    action.as_str(),
                    quote(pack),
                    quote(namespace)
                ),
                format!("write {} if that pack is meant", quote(&qualified)),
            ),
        );
    }
}

/// Whether the same tool of a pack of the system namespace would be allowed more.
fn is_limited_by_origin(case: &RuleContext<'_, '_>, tool: &ToolDecision) -> bool {
    let (Some(pack), Some(namespace)) = (tool.pack.as_deref(), pack_namespace(case, tool)) else {
        return false;
    };
    let action = |is_of_system| {
        let pack = PackId { namespace, name: pack, is_system: is_of_system };
        case.policy.gates.action(match tool.name.as_str() {
            EXECUTE_COMMAND => Tool::Command { pack },
            name => Tool::Declared { pack, name },
        })
    };
    let is_of_system = namespace == case.input.settings.system_namespace;
    !is_of_system && action(false) < action(true)
}
