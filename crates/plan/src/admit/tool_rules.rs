//! Rules of a policy that may not mean what their author meant.

use super::Case;
use super::finding::{Findings, told};
use super::tools::{ToolDecision, is_about, namespace_of};
use super::unused::policy_subject;
use crate::policy::packs::PackId;
use crate::policy::tools::{BUILT_IN, EXECUTE_COMMAND, Tool};

/// Warns about rules that would allow more, but only for a pack of the same name in the system namespace.
pub fn warn_about_other_packs(case: &Case<'_, '_>, tools: &[ToolDecision], findings: &mut Findings) {
    let is_ours = |name: &str| BUILT_IN.iter().any(|(built_in, _)| *built_in == name);
    for (pattern, action) in case.policy.gates.rules() {
        if pattern.matches('/').count() > 1 || pattern == "*" || is_ours(pattern) {
            continue;
        }
        let mut about = tools.iter().filter(|tool| is_about(case, pattern, tool));
        let held = about.find(|tool| tool.action < action && is_held_by_origin(case, tool));
        let Some((tool, namespace)) = held.and_then(|it| Some((it, namespace_of(case, it)?))) else {
            continue;
        };
        let pack = tool.pack.as_deref().unwrap_or_default();
        let name = match pattern.split_once('/') {
            Some((_, name)) => name,
            None => pattern,
        };
        let shown = crate::text::shown(pattern);
        let qualified = format!("{namespace}/{pack}/{name}");
        findings.warn(
            &policy_subject(case),
            told(
                "spec.toolGating.rules",
                "tool-rule-elsewhere",
                format!(
                    "the rule `{shown}: {}` is for packs of the system namespace; pack `{}` is of namespace `{}`",
                    action.as_str(),
                    crate::text::shown(pack),
                    crate::text::shown(namespace)
                ),
                format!("write `{}` if that pack is meant", crate::text::shown(&qualified)),
            ),
        );
    }
}

/// Whether the same tool of a pack of the system namespace would be allowed more.
fn is_held_by_origin(case: &Case<'_, '_>, tool: &ToolDecision) -> bool {
    let (Some(pack), Some(namespace)) = (tool.pack.as_deref(), namespace_of(case, tool)) else {
        return false;
    };
    let action = |is_of_system| {
        let pack = PackId { namespace, name: pack, is_of_system };
        case.policy.gates.action(match tool.name.as_str() {
            EXECUTE_COMMAND => Tool::Command { pack },
            name => Tool::Declared { pack, name },
        })
    };
    let is_of_system = namespace == case.input.settings.system_namespace;
    !is_of_system && action(false) < action(true)
}
